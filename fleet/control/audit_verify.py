"""Verifies the chain of seals against the entries that stand in the database, and keeps what the last verification found.

Everything at once (`verify`), or bit by bit (`check_next`): what is new each time, and a share of what is older, round and round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction

from fleet.control.audit_chain import Bounds, Content, Position, hash_batch, rows_of
from fleet.control.audit_seal import unsealed
from fleet.models import AuditCheck, AuditSeal

SHARE = 20_000  # entries of older seals that one bit of the round verifies, about


@dataclass(frozen=True)
class Break:
    """The first thing that does not hold. `entry` is None where it is the seal itself."""

    seal: int
    entry: int | None
    why: str

    def __str__(self) -> str:
        return f"seal {self.seal}: {self.why}" if self.entry is None else f"seal {self.seal}, entry {self.entry}: {self.why}"


@dataclass(frozen=True)
class Verification:
    """Seals and entries that were looked at, the last seal that holds (number 0: none), and the first break."""

    seals: int
    entries: int
    number: int
    digest: bytes
    broken: Break | None
    whole: bool  # up to the newest seal, and what is not sealed yet


def verify(*, first: int = 1, last: int | None = None, share: int | None = None) -> Verification:
    """Seals `first` to `last` (None: the newest, and the entries that are not sealed yet) in order; stops at the first break.

    Stops as well once it has seen `share` entries.
    """
    before = AuditSeal.objects.filter(number=first - 1).first() if first > 1 else None
    seals = entries = 0
    if first > 1 and before is None:
        return Verification(0, 0, 0, b"", Break(first - 1, None, "it is gone."), False)
    ends = list(AuditSeal.objects.filter(until_id__isnull=False).order_by("number").values_list("number", "until_id"))
    newest = before
    for seal in _seals(first, last):
        content, broken = _verify_seal(seal, newest, next((until for number, until in ends if number >= seal.number), None))
        seals, entries = seals + 1, entries + len(content.ids)
        if broken is not None:
            return Verification(seals, entries, newest.number if newest else 0, bytes(newest.digest) if newest else b"", broken, False)
        newest = seal
        if share is not None and entries >= share:
            return Verification(seals, entries, seal.number, bytes(seal.digest), None, False)
    number, digest = (newest.number, bytes(newest.digest)) if newest else (0, b"")
    if last is not None and number < last:
        return Verification(seals, entries, number, digest, Break(number + 1, None, "it is gone."), False)
    broken = _stranger(newest) if last is None else None
    return Verification(seals, entries, number, digest, broken, last is None)


def _seals(first: int, last: int | None) -> Iterator[AuditSeal]:
    found = AuditSeal.objects.filter(number__gte=first).order_by("number")
    yield from (found if last is None else found.filter(number__lte=last)).iterator(chunk_size=20)


def _verify_seal(seal: AuditSeal, before: AuditSeal | None, era_until_id: int | None) -> tuple[Content, Break | None]:
    at, bounds = Position.behind(before), Bounds.of(seal)
    if seal.number != at.number:
        return Content(), Break(at.number, None, "it is gone.")
    if bytes(seal.previous) != at.digest:
        return Content(), Break(seal.number, None, "it does not follow the seal before it.")
    if (bounds.after_id, bounds.from_transaction) != (at.after_id, at.from_transaction):
        return Content(), Break(seal.number, None, "it does not begin where the seal before it ends.")
    rows = rows_of(bounds.entries(era_until_id))
    content = hash_batch(number=seal.number, previous=at.digest, bounds=bounds, sealed_at=seal.sealed_at, rows=rows)
    if content.digest == bytes(seal.digest) and content.ids == seal.entry_ids and bytes(content.fingerprints) == bytes(seal.fingerprints):
        return content, None
    return content, _name(seal, content)


def _name(seal: AuditSeal, found: Content) -> Break:
    """The entry with the lowest id that is gone, that was put in, or that was changed."""
    sealed = Content(b"", list(seal.entry_ids), bytearray(bytes(seal.fingerprints)))
    here = {number: found.fingerprint(index) for index, number in enumerate(found.ids)}
    then = {number: sealed.fingerprint(index) for index, number in enumerate(sealed.ids)}
    for number in sorted(here.keys() | then.keys()):
        if number not in here:
            return Break(seal.number, number, "it was deleted after it was sealed.")
        if number not in then:
            return Break(seal.number, number, "it was put in after the seal was made.")
        if here[number] != then[number]:
            return Break(seal.number, number, "it was changed after it was sealed.")
    return Break(seal.number, None, "the seal itself was changed.")


def _stranger(newest: AuditSeal | None) -> Break | None:
    """An entry behind the last seal that names a transaction which never ran: it would never be sealed."""
    waiting = unsealed(newest)
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT min(id) FROM fleet_auditentry WHERE id > %s AND transaction >= %s
            AND transaction >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
            AND transaction IS DISTINCT FROM pg_current_xact_id_if_assigned()::text::bigint""",
            [waiting.after_id, waiting.from_transaction],
        )
        found = cursor.fetchone()[0]
    return Break((newest.number if newest else 0) + 1, found, "it names a transaction that never ran.") if found is not None else None


def verify_whole(*, now: datetime) -> Verification:
    """Everything, from the first seal on; the result is kept for the page."""
    found = verify()
    with transaction.atomic():
        state = _state(now)
        broken = found.broken or _lost_head(state)
        if broken is None:
            state.head_number, state.head_digest, state.round_number, state.round_ended_at = found.number, found.digest, 0, now
        state.asked_at = None
        _keep(state, broken, now)
    return Verification(found.seals, found.entries, found.number, found.digest, broken, found.whole)


def check_next(*, now: datetime, share: int = SHARE) -> Break | None:
    """What is new since the last time, and a share of what is older; a break that was found is looked at again until it is mended."""
    with transaction.atomic():
        state = _state(now)
    if state.asked_at is not None:
        return verify_whole(now=now).broken
    broken = _lost_head(state)
    if broken is None and state.broken_seal is not None:
        broken = verify(first=state.broken_seal, last=state.broken_seal).broken if state.broken_seal <= state.head_number else None
    round_ended = False
    head, digest, rounds = state.head_number, bytes(state.head_digest), state.round_number
    if broken is None:
        fresh = verify(first=head + 1)
        head, digest, broken = (fresh.number, fresh.digest, fresh.broken) if fresh.number else (head, digest, fresh.broken)
    if broken is None and head:
        older = verify(first=rounds + 1, last=head, share=share)
        broken, round_ended = older.broken, older.number >= head
        rounds = 0 if round_ended else older.number
    with transaction.atomic():
        state = _state(now)
        if head >= state.head_number:
            state.head_number, state.head_digest = head, digest
        state.round_number = rounds
        state.round_ended_at = now if round_ended else state.round_ended_at
        _keep(state, broken, now)
    return broken


def ask_for_verification(*, now: datetime) -> None:
    """Have the whole chain verified the next time that a bit of it is."""
    with transaction.atomic():
        state = _state(now)
        state.asked_at = now
        state.save(update_fields=["asked_at"])


def last_check() -> AuditCheck | None:
    return AuditCheck.objects.first()


def _lost_head(state: AuditCheck) -> Break | None:
    """The newest seal that was ever verified stands where it stood: the end of the chain was not cut off and made anew."""
    if not state.head_number:
        return None
    held = AuditSeal.objects.filter(number=state.head_number).values_list("digest", flat=True).first()
    if held is None:
        return Break(state.head_number, None, "it is gone, though it was verified before.")
    return None if bytes(held) == bytes(state.head_digest) else Break(state.head_number, None, "it is another one than was verified before.")


def _state(now: datetime) -> AuditCheck:
    AuditCheck.objects.bulk_create([AuditCheck(pk=1, checked_at=now)], ignore_conflicts=True)
    return AuditCheck.objects.select_for_update().get(pk=1)


def _keep(state: AuditCheck, broken: Break | None, now: datetime) -> None:
    state.checked_at = now
    if broken is None:
        state.broken_at = state.broken_seal = state.broken_entry = None
        state.broken_why = ""
    else:
        state.broken_at = state.broken_at or now
        state.broken_seal, state.broken_entry, state.broken_why = broken.seal, broken.entry, broken.why
    state.save()
