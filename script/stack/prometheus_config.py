"""The stack's Prometheus configuration: the one that `deploy/` ships, with this machine's addresses."""

from __future__ import annotations

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
    authorization = {"credentials_file": str(token_file)}
    for job in config["scrape_configs"]:
        for discovery in job["http_sd_configs"]:
            discovery |= {"url": console_url + urlsplit(discovery["url"]).path, "refresh_interval": "15s", "authorization": authorization}
    for target in config["remote_write"]:
        target |= {"url": telemetry_url + urlsplit(target["url"]).path, "authorization": authorization}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
