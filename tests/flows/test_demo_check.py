"""What `script/demo --check` checks, on the small stack."""

import os
from pathlib import Path

import pytest

from script.end_to_end import check
from script.stack.layout import Layout
from script.stack.stack import Stack

pytestmark = [pytest.mark.processes, pytest.mark.browser]


def test_from_a_metric_to_the_screen_and_one_control_back(stack: Stack) -> None:
    said: list[str] = []
    facts = check(stack, said.append, live_within_seconds=90)
    assert facts["ok"] is True
    assert facts["sites"] == facts["reporting"] == 6
    assert facts["gpus"] == sum(len(node.gpus) for node in stack.plan.nodes)
    assert facts["slices"] == sum(len(gpu.mig or ()) for node in stack.plan.nodes for gpu in node.gpus)
    assert facts["control_s"] <= 2 * stack.options.scrape_interval_seconds + 2


def test_the_gateway_cannot_read_the_signing_key(stack: Stack) -> None:
    gateway = stack.supervisor["gateway"].process
    assert gateway
    environment = Path(f"/proc/{gateway.pid}/environ").read_bytes()
    assert b"MASTHEAD_SECRET_KEY_FILE=" in environment
    assert b"SIGNING_KEY" not in environment
    if os.geteuid() == 0:
        status = Path(f"/proc/{gateway.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        key = Layout(stack.options.root).signing_key.stat()
        assert key.st_uid != 0
        assert key.st_mode & 0o077 == 0
