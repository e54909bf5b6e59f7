"""The audit on its way out: JSON lines, and messages of syslog as RFC 5424 has them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.protocol.wire import dump_canonical
from fleet.control.audit_chain import Row, canonical
from fleet.models import AuditOutcome, AuditSeal

FACILITY = 13  # "log audit" in RFC 5424
SEVERITIES = {logging.INFO: 6, logging.WARNING: 4}
APP_NAME = "masthead"
LONGEST_NAME = 32  # of a MSGID
LINES = 500


@dataclass(frozen=True)
class Message:
    """`text` is a whole message of RFC 5424 without its priority; `level` is logging.INFO, or logging.WARNING for what was refused or failed."""

    level: int
    text: str

    def with_priority(self) -> str:
        return f"<{FACILITY << 3 | SEVERITIES[self.level]}>{self.text}"


def json_lines(rows: Iterable[Row]) -> Iterator[bytes]:
    """One JSON object a line, in chunks of some hundred lines. Each line is what the seal is the hash of."""
    held: list[bytes] = []
    for row in rows:
        held.append(canonical(row) + b"\n")
        if len(held) == LINES:
            yield b"".join(held)
            held.clear()
    if held:
        yield b"".join(held)


def entry_message(row: Row, *, longest: int | None = None) -> Message:
    """An entry. Where it would be longer than `longest` bytes, its detail is left out and said to be."""
    level = logging.WARNING if row["outcome"] in (AuditOutcome.REFUSED, AuditOutcome.FAILED) else logging.INFO
    body = canonical(row)
    text = _text(row["at"], row["action"], body)
    if longest is not None and len(text) > longest:
        text = _text(row["at"], row["action"], canonical({**row, "detail": {"left_out_bytes": len(dump_canonical(row["detail"]))}}))
    return Message(level, text)


def seal_message(seal: AuditSeal) -> Message:
    """A seal: whoever keeps it can tell later whether the chain up to it still stands (`verify_audit --seal`)."""
    body = {"seal": f"{seal.number}:{bytes(seal.digest).hex()}", "entries": len(seal.entry_ids), "sealed_at": seal.sealed_at.astimezone(UTC).isoformat()}
    return Message(logging.INFO, _text(seal.sealed_at, "audit.seal", dump_canonical(body)))


def _text(at: datetime, name: str, body: bytes) -> str:
    moment = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    word = "".join(letter if "!" <= letter <= "~" else "_" for letter in name)[:LONGEST_NAME] or "-"
    return f"1 {moment} {socket.gethostname() or '-'} {APP_NAME} - {word} - {body.decode()}"
