"""The Prometheus configuration that we ship is valid and sends what Masthead reads."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.telemetry.fields import FIELD_OF_METRIC, XID_COUNT_METRIC
from script.servers import find_binary
from script.stack.prometheus_config import SHIPPED, write_prometheus_config

JOBS = {"dcgm", "triton", "vllm", "node"}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    token = tmp_path / "token"
    token.write_text("secret")
    path = tmp_path / "prometheus.yml"
    write_prometheus_config(path, console_url="http://127.0.0.1:1", telemetry_url="http://127.0.0.1:2", token_file=token, scrape_interval_seconds=10)
    return path


def test_promtool_takes_it(written: Path) -> None:
    done = subprocess.run([find_binary("promtool", "prometheus"), "check", "config", str(written)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_finds_its_targets_by_discovery_alone(written: Path) -> None:
    config: dict[str, Any] = yaml.safe_load(written.read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == JOBS
    for job in config["scrape_configs"]:
        assert "static_configs" not in job
        assert [discovery["url"] for discovery in job["http_sd_configs"]] == [f"http://127.0.0.1:1/api/v1/sd/{job['job_name']}"]
        assert job["http_sd_configs"][0]["authorization"]["credentials_file"].endswith("/token")


def test_no_address_of_the_shipped_one_remains(written: Path) -> None:
    assert "masthead.example" in SHIPPED.read_text()
    assert "masthead.example" not in written.read_text()


def test_it_sends_every_metric_that_is_read() -> None:
    rules = yaml.safe_load(SHIPPED.read_text())["remote_write"][0]["write_relabel_configs"]
    keep = next(re.compile(rule["regex"]) for rule in rules if rule["action"] == "keep")
    assert [name for name in (*FIELD_OF_METRIC, XID_COUNT_METRIC, "up") if not keep.fullmatch(name)] == []
