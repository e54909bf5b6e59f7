"""The audit leaves as JSON lines and as messages of syslog; a receiver that was away gets what it missed."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from fleet import tasks
from fleet.control.audit_receiver import Receiver, read_address
from fleet.control.audit_seal import seal_entries
from fleet.control.audit_stream import LONGEST_DATAGRAM, send_new
from fleet.models import AuditSeal, AuditStream
from tests.builders import T0
from tests.fleet.audit_support import act, acts, tamper

# What may be sealed depends on every transaction of the database server: other workers must be still.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

# The header of RFC 5424 §6: priority, version, timestamp, host, application, process, kind of message, no structured data, and the message.
MESSAGE = re.compile(r"<(\d{1,3})>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) ([!-~]{1,255}) masthead - ([!-~]{1,32}) - (.+)", re.DOTALL)


def read(text: str) -> tuple[int, str, dict[str, object]]:
    """(priority, kind of message, body) of one message."""
    found = MESSAGE.fullmatch(text)
    assert found, text
    return int(found[1]), found[4], json.loads(found[5])


class TcpReceiver:
    """Takes lines as rsyslog's imtcp does: reads until the sender is done, then closes. `breaks` connections are reset after their first bytes."""

    def __init__(self, *, port: int = 0, breaks: int = 0) -> None:
        self.lines: list[str] = []
        self.breaks = breaks
        self.server = socket.create_server(("127.0.0.1", port))
        self.port = self.server.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self.server.accept()
            except OSError:
                return
            with taken:
                if self.breaks:
                    self.breaks -= 1
                    taken.recv(10)
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                    continue
                data = b""
                while part := taken.recv(65536):
                    data += part
                self.lines += data.decode().splitlines()

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(10)


@contextmanager
def tcp_receiver(*, port: int = 0, breaks: int = 0) -> Iterator[TcpReceiver]:
    receiver = TcpReceiver(port=port, breaks=breaks)
    try:
        yield receiver
    finally:
        receiver.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_receiver_gets_entries_in_order_each_seal_behind_its_own() -> None:
    entries = [*acts(3), act(3, action="control.set", outcome="refused", reason="carries PHY\nreally")]
    seal_entries(now=T0, batch=2)
    with tcp_receiver() as receiver:
        address = f"tcp://127.0.0.1:{receiver.port}"
        assert send_new(address=address, now=T0) == 2
        assert send_new(address=address, now=T0) == 0
    read_lines = [read(line) for line in receiver.lines]
    assert [(priority, kind) for priority, kind, _ in read_lines] == [
        (110, "site.note"), (110, "site.note"), (110, "audit.seal"), (110, "site.note"), (108, "control.set"), (110, "audit.seal"),
    ]  # fmt: skip
    assert [body["id"] for _, kind, body in read_lines if kind != "audit.seal"] == [entry.pk for entry in entries]
    assert read_lines[4][2]["reason"] == "carries PHY\nreally"
    seal = AuditSeal.objects.get(number=2)
    assert (read_lines[5][2]["seal"], read_lines[5][2]["entries"]) == (f"2:{bytes(seal.digest).hex()}", 2)
    state = AuditStream.objects.get()
    assert (state.seal_number, state.sent_at, state.failing_since, state.claimed_until) == (2, T0, None, None)


def test_what_is_not_sealed_is_not_sent() -> None:
    act()
    with tcp_receiver() as receiver:
        assert send_new(address=f"tcp://127.0.0.1:{receiver.port}", now=T0) == 0
    assert receiver.lines == []


def test_a_receiver_that_was_away_gets_what_it_missed() -> None:
    port = closed_port()
    address = f"tcp://127.0.0.1:{port}"
    entries = acts(2)
    seal_entries(now=T0)
    assert send_new(address=address, now=T0) == 0
    assert send_new(address=address, now=T0 + timedelta(seconds=5)) == 0
    state = AuditStream.objects.get()
    assert (state.seal_number, state.failing_since, state.claimed_until) == (0, T0, None)
    assert "refused" in state.failure
    entries.append(act(2))
    seal_entries(now=T0)
    with tcp_receiver(port=port) as receiver:
        assert send_new(address=address, now=T0 + timedelta(seconds=10)) == 2
    assert [read(line)[2]["id"] for line in receiver.lines if "audit.seal" not in line] == [entry.pk for entry in entries]
    state.refresh_from_db()
    assert (state.failing_since, state.failure) == (None, "")


def test_a_connection_that_breaks_in_the_middle_loses_nothing() -> None:
    entries = acts(3)
    seal_entries(now=T0, batch=1)
    with tcp_receiver(breaks=1) as receiver:
        address = f"tcp://127.0.0.1:{receiver.port}"
        assert send_new(address=address, now=T0) == 0
        assert AuditStream.objects.get().seal_number == 0
        assert send_new(address=address, now=T0) == 3
    assert {read(line)[2].get("id") for line in receiver.lines} >= {entry.pk for entry in entries}


def test_one_sends_at_a_time_and_a_claim_that_was_left_behind_ends() -> None:
    act()
    seal_entries(now=T0)
    with tcp_receiver() as receiver:
        address = f"tcp://127.0.0.1:{receiver.port}"
        AuditStream.objects.create(address=address, claimed_until=T0 + timedelta(minutes=1))
        assert send_new(address=address, now=T0) == 0
        assert send_new(address=address, now=T0 + timedelta(minutes=2)) == 1


def test_datagrams_carry_one_message_each_and_leave_out_what_is_too_long(tmp_path: Path) -> None:
    act(0, detail={"preview": "x" * 20_000})
    act(1)
    seal_entries(now=T0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inet, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
        inet.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "log"))
        for receiver, address in ((inet, f"udp://127.0.0.1:{inet.getsockname()[1]}"), (unix, f"unix://{tmp_path}/log")):
            receiver.settimeout(10)
            assert send_new(address=address, now=T0) == 1
            raw = [receiver.recv(65536) for _ in range(3)]
            assert max(len(one) for one in raw) <= LONGEST_DATAGRAM
            bodies = [read(one.decode())[2] for one in raw]
            assert [body.get("detail") for body in bodies] == [{"left_out_bytes": 20_014}, {}, None]
    assert send_new(address=f"unix://{tmp_path}/nothing", now=T0) == 0
    assert AuditStream.objects.get(address=f"unix://{tmp_path}/nothing").failing_since == T0


@pytest.mark.parametrize(
    ("text", "receiver"),
    [
        ("tcp://siem.example.com:6514", Receiver("tcp", "siem.example.com", 6514)),
        ("udp://[2001:db8::1]", Receiver("udp", "2001:db8::1", 514)),
        ("unix:///dev/log", Receiver("unix", path="/dev/log")),
    ],
)
def test_addresses(text: str, receiver: Receiver) -> None:
    assert read_address(text) == receiver


@pytest.mark.parametrize("text", ["siem:514", "tcp://", "tcp://host:port", "tcp://host:99999", "unix://dev/log", "http://host", "udp://host/path", "tcp://[x"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_address(text)


# --- commands


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_export_as_json_lines_of_a_span() -> None:
    entries = acts(5)
    lines = [json.loads(line) for line in run("export_audit", "--since", "2026-11-20T10:00:01Z", "--until", "2026-11-20T11:00:04+01:00").splitlines()]
    assert [line["id"] for line in lines] == [entry.pk for entry in entries[1:4]]
    assert lines[0]["at"] == "2026-11-20T10:00:01.000000+00:00"
    assert len(run("export_audit").splitlines()) == 5


def test_export_as_syslog() -> None:
    act(reason="Größe")
    line = run("export_audit", "--format", "syslog").rstrip("\n")
    assert read(line)[2]["reason"] == "Größe"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--since", "yesterday"], "--since"), (["--until", "2026-11-20T10:00:00"], "--until"), (["--since", "2026-13-20T10:00:00Z"], "--since"),
     (["--since", "2026-11-21T10:00:00Z", "--until", "2026-11-20T10:00:00Z"], "--until")],
)  # fmt: skip
def test_a_wrong_time_is_named(arguments: list[str], word: str) -> None:
    with pytest.raises(CommandError, match=word):
        run("export_audit", *arguments)


def test_verify_audit_says_that_it_holds_or_what_is_broken() -> None:
    assert run("verify_audit").startswith("The audit holds: 0 entries in 0 seals.")
    entries = acts(3)
    seal_entries(now=T0)
    said = run("verify_audit")
    noted = f"1:{bytes(AuditSeal.objects.get().digest).hex()}"
    assert said == f"The audit holds: 3 entries in 1 seals. The newest is {noted}\n"
    assert run("verify_audit", "--seal", noted) == said
    for wrong, word in ((f"1:{'0' * 64}", "another"), (f"2:{'0' * 64}", "gone"), ("1", "hex"), (f"0:{'0' * 64}", "hex"), ("x:zz", "hex")):
        with pytest.raises(CommandError, match=word):
            run("verify_audit", "--seal", wrong)
    tamper("DELETE FROM fleet_auditentry WHERE id = %s", entries[1].pk)
    with pytest.raises(CommandError, match=f"seal 1, entry {entries[1].pk}: it was deleted") as raised:
        run("verify_audit")
    assert raised.value.returncode == 1


def test_tasks_seal_verify_and_send(settings: Settings) -> None:
    act()
    tasks.seal_audit()
    tasks.verify_audit()
    with tcp_receiver() as receiver:
        settings.AUDIT_SYSLOG = f"tcp://127.0.0.1:{receiver.port}"
        tasks.stream_audit()
    assert len(receiver.lines) == 2
