"""What a seal is the hash of: the canonical bytes of entries, and which entries lie in which seal. Shared by sealing, verifying and exporting."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from agent.protocol.wire import dump_canonical
from fleet.models import AuditEntry, AuditSeal

FORMAT = 1
ZERO = bytes(32)  # what the first seal follows
LOWEST = -(2**63)
FINGERPRINT_BYTES = 16
FIELDS = (
    "id", "at", "actor", "through", "action", "kind", "object_key", "reason", "outcome", "detail", "request_id", "source_address", "transaction",
)  # fmt: skip
CHUNK = 2000

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Bounds:
    """Which entries a seal holds: `after_id < id <= until_id` and `from_transaction <= transaction < until_transaction`; None is no limit."""

    after_id: int
    from_transaction: int
    until_transaction: int | None
    until_id: int | None = None

    @classmethod
    def of(cls, seal: AuditSeal) -> Bounds:
        return cls(seal.after_id, seal.from_transaction, seal.until_transaction, seal.until_id)

    def entries(self, era_until_id: int | None = None) -> QuerySet[AuditEntry]:
        """`era_until_id`: the greatest id of an era that was closed."""
        found = AuditEntry.objects.filter(id__gt=self.after_id, transaction__gte=self.from_transaction)
        if self.until_transaction is not None:
            found = found.filter(transaction__lt=self.until_transaction)
        until_id = self.until_id if self.until_id is not None else era_until_id
        return found if until_id is None else found.filter(id__lte=until_id)


@dataclass(frozen=True)
class Position:
    """Where a chain ends: the next seal's number, the digest that it follows, and where its entries begin."""

    number: int = 1
    digest: bytes = ZERO
    after_id: int = LOWEST
    from_transaction: int = LOWEST

    @classmethod
    def behind(cls, seal: AuditSeal | None) -> Position:
        if seal is None:
            return cls()
        if seal.until_transaction is None:
            return cls(seal.number + 1, bytes(seal.digest), LOWEST if seal.until_id is None else seal.until_id, LOWEST)
        return cls(seal.number + 1, bytes(seal.digest), seal.after_id, seal.until_transaction)


@dataclass
class Content:
    """The entries of one seal as their hash, their ids and a fingerprint of each."""

    digest: bytes = b""
    ids: list[int] = field(default_factory=list)
    fingerprints: bytearray = field(default_factory=bytearray)

    def fingerprint(self, index: int) -> bytes:
        return bytes(self.fingerprints[index * FINGERPRINT_BYTES : (index + 1) * FINGERPRINT_BYTES])


def rows_of(entries: QuerySet[AuditEntry]) -> Iterable[Row]:
    """Streamed, in the order of their ids."""
    return entries.order_by("id").values(*FIELDS).iterator(chunk_size=CHUNK)


def canonical(row: Row) -> bytes:
    """The one byte string of an entry, as JSON: sorted names, no blanks, ASCII, the time in UTC to the microsecond."""
    at: datetime = row["at"]
    address = row["source_address"]
    return dump_canonical({**row, "at": at.astimezone(UTC).isoformat(timespec="microseconds"), "source_address": None if address is None else str(address)})


def hash_batch(*, number: int, previous: bytes, bounds: Bounds, sealed_at: datetime, rows: Iterable[Row]) -> Content:
    """SHA-256 over the digest before, a line that says what the seal holds, and a line for each entry."""
    head = {
        "format": FORMAT,
        "number": number,
        "sealed_at": sealed_at.astimezone(UTC).isoformat(timespec="microseconds"),
        "after_id": bounds.after_id,
        "from_transaction": bounds.from_transaction,
        "until_transaction": bounds.until_transaction,
        "until_id": bounds.until_id,
    }
    whole = hashlib.sha256(previous + dump_canonical(head) + b"\n")
    content = Content()
    for row in rows:
        line = canonical(row)
        whole.update(line + b"\n")
        content.ids.append(row["id"])
        content.fingerprints += hashlib.sha256(line).digest()[:FINGERPRINT_BYTES]
    content.digest = whole.digest()
    return content


def transaction_horizon() -> tuple[int, int]:
    """(a number below which every transaction has ended, the first number that no transaction has yet), as PostgreSQL says now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s")
        horizon, following = cursor.fetchone()
    return horizon, following


def try_lock(key: int) -> bool:
    """Take an advisory lock until the transaction ends; False when another holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [key])
        return bool(cursor.fetchone()[0])
