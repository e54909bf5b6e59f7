"""The sealer: batches of what is certain, each entry in one of them, whatever commits late, whoever seals as well."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction

from fleet.control.audit_chain import LOWEST, ZERO, Bounds, canonical, hash_batch, rows_of
from fleet.control.audit_seal import LOCK_KEY, seal_entries
from fleet.control.audit_verify import verify
from fleet.models import AuditEntry, AuditSeal
from tests.builders import T0
from tests.fleet.audit_support import act, acts, as_owner, tamper

# What may be sealed depends on every transaction of the database server: other workers must be still.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def sealed() -> list[int]:
    return [number for ids in AuditSeal.objects.order_by("number").values_list("entry_ids", flat=True) for number in ids]


def test_nothing_to_seal_makes_no_seal() -> None:
    assert seal_entries(now=T0) == 0
    assert verify().broken is None


def test_batches_follow_each_other_and_hold_each_entry_once() -> None:
    entries = acts(7)
    assert seal_entries(now=T0, batch=3) == 3
    assert seal_entries(now=T0) == 0
    assert sealed() == [entry.pk for entry in entries]
    seals = list(AuditSeal.objects.order_by("number"))
    assert [(seal.number, len(seal.entry_ids)) for seal in seals] == [(1, 3), (2, 3), (3, 1)]
    assert [bytes(seal.previous) for seal in seals] == [ZERO, bytes(seals[0].digest), bytes(seals[1].digest)]
    found = verify()
    assert (found.seals, found.entries, found.number, found.broken, found.whole) == (3, 7, 3, None, True)


def test_what_one_transaction_wrote_is_not_parted() -> None:
    with transaction.atomic():
        acts(5)
    acts(2)
    assert seal_entries(now=T0, batch=2) == 2
    assert [len(ids) for ids in AuditSeal.objects.order_by("number").values_list("entry_ids", flat=True)] == [5, 2]


def test_the_digest_can_be_computed_without_us() -> None:
    entry = act(3, reason="Größe", detail={"b": 1.5, "a": [None, True]}, source_address="192.0.2.7")
    seal_entries(now=T0)
    seal = AuditSeal.objects.get()
    head = (
        f'{{"after_id":{LOWEST},"format":1,"from_transaction":{LOWEST},"number":1,"sealed_at":"2026-11-20T10:00:00.000000+00:00",'
        f'"until_id":null,"until_transaction":{seal.until_transaction}}}\n'
    )
    line = (
        f'{{"action":"site.note","actor":"ann","at":"2026-11-20T10:00:03.000000+00:00","detail":{{"a":[null,true],"b":1.5}},"id":{entry.pk},"kind":"site",'
        f'"object_key":"S-3","outcome":"done","reason":"Gr\\u00f6\\u00dfe","request_id":"","source_address":"192.0.2.7","through":"",'
        f'"transaction":{entry.transaction}}}'
    )
    assert [canonical(row).decode() for row in rows_of(AuditEntry.objects.all())] == [line]
    assert hashlib.sha256(bytes(32) + head.encode() + line.encode() + b"\n").digest() == bytes(seal.digest)
    assert bytes(seal.fingerprints) == hashlib.sha256(line.encode()).digest()[:16]


def test_a_late_commit_is_never_behind_a_seal() -> None:
    first = act(1)
    with as_owner() as late:
        late.execute("INSERT INTO fleet_auditentry (at, actor, through, action, kind, object_key, reason, outcome, detail, request_id) "
                     "VALUES (now(), 'bob', '', 'slow', '', '', '', 'done', '{}', '')")  # fmt: skip
        after = act(2)
        assert after.pk > first.pk + 1
        assert seal_entries(now=T0) == 1
        assert sealed() == [first.pk]  # what came after waits for the one that is not yet decided
        assert seal_entries(now=T0) == 0
    assert seal_entries(now=T0) == 1
    assert sealed() == [first.pk, first.pk + 1, after.pk]
    assert verify().broken is None


def test_a_number_drawn_early_and_used_late_lies_in_a_later_seal() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('fleet_auditentry', 'id'))")
        early = cursor.fetchone()[0]
    after = act(1)
    assert seal_entries(now=T0) == 1
    AuditEntry.objects.create(pk=early, at=T0, actor="bob", action="slow")
    assert seal_entries(now=T0) == 1
    assert sealed() == [after.pk, early]
    assert verify().broken is None


def test_what_was_rolled_back_leaves_no_hole_that_counts() -> None:
    first = act(1)
    with transaction.atomic():
        act(2)
        transaction.set_rollback(True)
    last = act(3)
    assert last.pk == first.pk + 2
    seal_entries(now=T0, batch=1)
    assert sealed() == [first.pk, last.pk]
    assert verify().broken is None


def test_sealers_at_once_and_writers_beside_them_leave_one_chain() -> None:
    def write(_: int) -> None:
        try:
            acts(40)
        finally:
            connection.close()

    def close(_: int) -> None:
        try:
            for _round in range(20):
                seal_entries(now=T0, batch=7)
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, number) for number in range(3) for work in (write, close)]:
            future.result(timeout=60)
    seal_entries(now=T0, most=1000, batch=7)
    assert sorted(sealed()) == list(AuditEntry.objects.order_by("pk").values_list("pk", flat=True))
    assert AuditEntry.objects.count() == 120
    assert list(AuditSeal.objects.order_by("number").values_list("number", flat=True)) == list(range(1, AuditSeal.objects.count() + 1))
    assert verify().broken is None


def test_a_second_sealer_does_not_wait() -> None:
    act()
    with as_owner() as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
        assert seal_entries(now=T0) == 0
    assert seal_entries(now=T0) == 1


# --- a database that was restored where transactions are counted from lower numbers

FAR = 10**12


@pytest.fixture
def restored() -> list[int]:
    """Three entries of the old database, two of them sealed there; their ids."""
    ids = [entry.pk for entry in acts(3)]
    for number, pk in enumerate(ids):
        tamper("UPDATE fleet_auditentry SET transaction = %s WHERE id = %s", FAR + number, pk)
    bounds = Bounds(LOWEST, LOWEST, FAR + 2)
    content = hash_batch(number=1, previous=ZERO, bounds=bounds, sealed_at=T0, rows=rows_of(bounds.entries()))
    assert content.ids == ids[:2]
    AuditSeal.objects.create(
        number=1, sealed_at=T0, after_id=LOWEST, from_transaction=LOWEST, until_transaction=FAR + 2, entry_ids=content.ids,
        fingerprints=bytes(content.fingerprints), previous=ZERO, digest=content.digest,
    )  # fmt: skip
    return ids


def test_a_restored_database_goes_on_with_the_same_chain(restored: list[int]) -> None:
    new = act(9)
    assert seal_entries(now=T0 + timedelta(hours=1)) == 2
    brought, fresh = AuditSeal.objects.filter(number__gt=1).order_by("number")
    assert (brought.entry_ids, brought.until_transaction, brought.until_id) == ([restored[2]], None, restored[2])
    assert (fresh.entry_ids, fresh.after_id) == ([new.pk], restored[2])
    newer = act(10)
    assert seal_entries(now=T0 + timedelta(hours=2)) == 1
    assert sealed() == [*restored, new.pk, newer.pk]
    assert verify().broken is None


def test_a_restored_database_with_nothing_unsealed(restored: list[int]) -> None:
    tamper("DELETE FROM fleet_auditentry WHERE id = %s", restored[2])
    new = act(9)
    assert seal_entries(now=T0) == 2
    assert sealed() == [*restored[:2], new.pk]
    assert verify().broken is None


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_what_was_restored_is_still_verified(restored: list[int], which: int) -> None:
    ids = [*restored, act(9).pk]
    seal_entries(now=T0)
    tamper("UPDATE fleet_auditentry SET reason = 'other' WHERE id = %s", ids[which])
    broken = verify().broken
    assert broken
    assert (broken.entry, "changed" in broken.why) == (ids[which], True)
