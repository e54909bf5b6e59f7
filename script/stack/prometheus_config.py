"""The stack's Prometheus configuration: the one that `deploy/` ships, with this machine's addresses."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from script.stack.layout import CHECKOUT

SHIPPED = CHECKOUT / "deploy" / "prometheus" / "prometheus.yml"


def write_prometheus_config(path: Path, *, console_url: str, telemetry_url: str, token_file: Path, scrape_interval_seconds: int) -> None:
    """Write the configuration for a console and a telemetry process at these base URLs."""
    config = yaml.safe_load(SHIPPED.read_text())
    config["global"] |= {"scrape_interval": f"{scrape_interval_seconds}s", "scrape_timeout": f"{max(1, scrape_interval_seconds * 4 // 5)}s"}
    config["global"]["external_labels"]["prometheus"] = "demo"
    authorization = {"type": "Bearer", "credentials_file": str(token_file)}
    for job in config["scrape_configs"]:
        for discovery in job["http_sd_configs"]:
            discovery |= {"url": console_url + urlsplit(discovery["url"]).path, "refresh_interval": "15s", "authorization": authorization}
    for target in config["remote_write"]:
        target |= {"url": telemetry_url + urlsplit(target["url"]).path, "authorization": authorization}
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m script.stack.prometheus_config", description="Write the shipped configuration with other addresses.")
    parser.add_argument("--console", required=True, help="base URL of the console")
    parser.add_argument("--telemetry", required=True, help="base URL of the telemetry process")
    parser.add_argument("--token-file", required=True, type=Path, help="where Prometheus will find its sender's token")
    parser.add_argument("--interval", required=True, type=int, metavar="SECONDS", help="scrape interval")
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    write_prometheus_config(
        given.out, console_url=given.console, telemetry_url=given.telemetry, token_file=given.token_file, scrape_interval_seconds=given.interval
    )


if __name__ == "__main__":
    main()
