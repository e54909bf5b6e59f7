"""The sealer: closes what is certain of the audit into batches that are chained by hash. One at a time, wherever it runs.

An entry is certain once every transaction up to its own has ended: only then can nothing appear behind it (docs/decisions/004).
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max, Q

from fleet.control.audit_chain import Bounds, Position, hash_batch, rows_of, transaction_horizon, try_lock
from fleet.models import AuditEntry, AuditSeal

LOCK_KEY = 0x4D48_0001  # "MH", 1: the sealer
BATCH = 5000  # entries a seal, more only where one transaction wrote more
MOST = 100  # seals a run


def seal_entries(*, now: datetime, batch: int = BATCH, most: int = MOST) -> int:
    """Seal all entries that are certain; how many seals were made. 0 also while another sealer is at work."""
    for made in range(most):
        sealed, more = _seal_next(now, batch)
        if not more:
            return made + sealed
    return most


@transaction.atomic
def _seal_next(now: datetime, batch: int) -> tuple[bool, bool]:
    """Whether a seal was made, and whether more waits. What writers add meanwhile is for the next run: it would make many small seals."""
    if not try_lock(LOCK_KEY):
        return False, False
    last = newest_seal()
    at = Position.behind(last)
    horizon, following = transaction_horizon()
    if following < at.from_transaction:
        bounds = _rest_of_era(at)
    else:
        found = _bounds(at, horizon, batch)
        if found is None:
            return False, False
        bounds = found
    content = hash_batch(number=at.number, previous=at.digest, bounds=bounds, sealed_at=now, rows=rows_of(bounds.entries()))
    AuditSeal.objects.create(
        number=at.number,
        sealed_at=now,
        after_id=bounds.after_id,
        from_transaction=bounds.from_transaction,
        until_transaction=bounds.until_transaction,
        until_id=bounds.until_id,
        entry_ids=content.ids,
        fingerprints=bytes(content.fingerprints),
        previous=at.digest,
        digest=content.digest,
    )
    return True, bounds.until_transaction != horizon


def newest_seal() -> AuditSeal | None:
    return AuditSeal.objects.defer("entry_ids", "fingerprints").order_by("-number").first()


def unsealed(last: AuditSeal | None) -> Bounds:
    """What lies behind this seal."""
    at = Position.behind(last)
    return Bounds(at.after_id, at.from_transaction, None)


def seal_of(entry: AuditEntry) -> AuditSeal | None:
    """The seal that holds this entry; None when there is none yet."""
    at = Position.behind(newest_seal())
    if entry.pk > at.after_id and entry.transaction >= at.from_transaction:
        return None
    reaching = AuditSeal.objects.filter(Q(until_transaction__gt=entry.transaction) | Q(until_transaction__isnull=True))
    holding = reaching.filter(from_transaction__lte=entry.transaction, after_id__lt=entry.pk, entry_ids__contains=[entry.pk])
    return holding.defer("entry_ids", "fingerprints").order_by("-from_transaction").first()


def _bounds(at: Position, horizon: int, batch: int) -> Bounds | None:
    """Whole transactions below the horizon, about `batch` entries; None when there are none."""
    waiting = Bounds(at.after_id, at.from_transaction, horizon).entries().order_by("transaction", "id").values_list("transaction", flat=True)
    first = waiting.first()
    if first is None:
        return None
    beyond = waiting[batch : batch + 1].first()
    until = horizon if beyond is None else max(beyond, first + 1)
    return Bounds(at.after_id, at.from_transaction, until)


def _rest_of_era(at: Position) -> Bounds:
    """The database was restored where transactions are counted from lower numbers: what it brought along is closed, and counting begins anew."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(entry_ids[cardinality(entry_ids)]) FROM fleet_auditseal")
        sealed = cursor.fetchone()[0]
    brought = AuditEntry.objects.filter(id__gt=at.after_id, transaction__gte=at.from_transaction).aggregate(most=Max("id"))["most"]
    return Bounds(at.after_id, at.from_transaction, None, until_id=max(number for number in (sealed, brought, at.after_id) if number is not None))
