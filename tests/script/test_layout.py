"""A stack's folder: private, found again, used by one supervisor at a time."""

import os
import socket
from pathlib import Path

import pytest

from script.servers import ServerError, free_port, reachable_by
from script.stack.layout import PORTS, Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "demo")
    layout.create()
    return layout


def test_secrets_are_made_once_and_are_private(layout: Layout) -> None:
    secret = layout.secret("redis")
    assert len(secret) >= 48
    assert Layout(layout.root).secret("redis") == secret
    assert (layout.secrets / "redis").stat().st_mode & 0o777 == 0o600
    assert layout.secrets.stat().st_mode & 0o777 == 0o700


def test_two_supervisors_do_not_share_a_folder(layout: Layout) -> None:
    with layout.lock(), pytest.raises(ServerError, match=f"in use by process {os.getpid()}"), Layout(layout.root).lock():
        pass
    with layout.lock():
        pass


def test_ports_are_kept_and_a_taken_one_is_passed_over(layout: Layout) -> None:
    web = free_port()
    ports = layout.ports(web=web)
    assert set(ports) == set(PORTS)
    assert len(set(ports.values())) == len(PORTS)
    assert Layout(layout.root).ports(web=web) == ports
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", ports["telemetry"]))
        sock.listen()
        again = layout.ports(web=web)
    assert again["telemetry"] not in ports.values()
    assert again["redis"] == ports["redis"]


def test_fresh_forgets_everything(layout: Layout) -> None:
    secret = layout.secret("redis")
    layout.remember(fleet=[1, 1, 1])
    layout.remove()
    layout.create()
    assert layout.state() == {}
    assert layout.secret("redis") != secret


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
def test_postgres_moves_out_of_a_closed_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    layout = Layout(home / "checkout" / ".demo")
    layout.create()
    folder = layout.postgres_folder()
    assert not reachable_by(layout.root / "postgres", "postgres")
    assert folder.parent == Path("/var/tmp")
    assert Layout(layout.root).postgres_folder() == folder
