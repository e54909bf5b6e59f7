"""What somebody does to the audit behind the console's back is found, and the first entry that it touched is named."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from fleet.control.audit_seal import seal_entries
from fleet.control.audit_verify import ask_for_verification, check_next, last_check, verify, verify_whole
from fleet.models import AuditEntry, AuditSeal
from tests.builders import T0
from tests.fleet.audit_support import act, acts, tamper

# What may be sealed depends on every transaction of the database server: other workers must be still.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]
INSERT = (
    "INSERT INTO fleet_auditentry (id, at, actor, through, action, kind, object_key, reason, outcome, detail, request_id, transaction) "
    "VALUES (%s, now(), 'eve', '', 'site.note', '', '', '', 'done', '{}', '', %s)"
)


@pytest.fixture
def ids() -> list[int]:
    """Nine entries in three seals."""
    entries = acts(9)
    assert seal_entries(now=T0, batch=3) == 3
    return [entry.pk for entry in entries]


@pytest.mark.parametrize(
    "change",
    [
        "actor = 'eve'",
        "at = at + interval '1 microsecond'",
        "detail = '{\"x\": 1}'",
        "outcome = 'failed'",
        "source_address = '192.0.2.1'",
        "object_key = 'S-0'",
    ],
)
def test_a_changed_entry_is_named(ids: list[int], change: str) -> None:
    tamper(f"UPDATE fleet_auditentry SET {change} WHERE id = %s", ids[4])
    found = verify()
    assert found.broken
    assert (found.broken.seal, found.broken.entry, found.broken.why) == (2, ids[4], "it was changed after it was sealed.")
    assert (found.number, found.whole) == (1, False)


def test_the_first_of_several_is_named(ids: list[int]) -> None:
    for which in (8, 5, 4):
        tamper("UPDATE fleet_auditentry SET actor = 'eve' WHERE id = %s", ids[which])
    broken = verify().broken
    assert broken
    assert broken.entry == ids[4]


@pytest.mark.parametrize("which", [0, 4, 8])
def test_a_deleted_entry_is_named(ids: list[int], which: int) -> None:
    tamper("DELETE FROM fleet_auditentry WHERE id = %s", ids[which])
    broken = verify().broken
    assert broken
    assert (broken.seal, broken.entry, broken.why) == (which // 3 + 1, ids[which], "it was deleted after it was sealed.")


def test_an_inserted_entry_is_named_wherever_it_is_put(ids: list[int]) -> None:
    inside = AuditEntry.objects.get(pk=ids[4]).transaction
    for pk, number in ((ids[8] + 100, inside), (ids[0] - 1, 1), (ids[8] + 101, -5)):
        tamper(INSERT, pk, number)
        broken = verify().broken
        assert broken
        assert (broken.entry, broken.why) == (pk, "it was put in after the seal was made.")
        tamper("DELETE FROM fleet_auditentry WHERE id = %s", pk)
    assert verify().broken is None


def test_an_entry_of_a_transaction_that_never_ran_is_named(ids: list[int]) -> None:
    tamper(INSERT, ids[8] + 100, 2**62)
    broken = verify().broken
    assert broken
    assert (broken.entry, broken.why) == (ids[8] + 100, "it names a transaction that never ran.")


def test_an_entry_moved_to_another_transaction_is_named(ids: list[int]) -> None:
    tamper("UPDATE fleet_auditentry SET transaction = transaction + 1 WHERE id = %s", ids[0])
    broken = verify().broken
    assert broken
    assert broken.entry == ids[0]


SEALS: list[tuple[str, int, str]] = [
    ("UPDATE fleet_auditseal SET digest = '\\x00' WHERE number = 2", 2, "the seal itself was changed."),
    ("UPDATE fleet_auditseal SET sealed_at = now() WHERE number = 2", 2, "the seal itself was changed."),
    ("UPDATE fleet_auditseal SET fingerprints = '\\x00' WHERE number = 2", 2, "it was changed after it was sealed."),
    ("UPDATE fleet_auditseal SET previous = '\\x00' WHERE number = 2", 2, "it does not follow the seal before it."),
    ("UPDATE fleet_auditseal SET from_transaction = from_transaction - 1 WHERE number = 2", 2, "it does not begin where the seal before it ends."),
    ("DELETE FROM fleet_auditseal WHERE number = 1", 1, "it is gone."),
    ("DELETE FROM fleet_auditseal WHERE number = 2", 2, "it is gone."),
]


@pytest.mark.parametrize(("statement", "seal", "why"), SEALS)
def test_a_seal_that_was_tampered_with_is_named(ids: list[int], statement: str, seal: int, why: str) -> None:
    tamper(statement)
    broken = verify().broken
    assert broken
    assert (broken.seal, broken.why) == (seal, why)


def test_an_end_that_was_cut_off_is_found_by_what_was_verified_before(ids: list[int]) -> None:
    assert verify_whole(now=T0).broken is None
    tamper("DELETE FROM fleet_auditseal WHERE number = 3")
    tamper("DELETE FROM fleet_auditentry WHERE id >= %s", ids[6])
    assert verify().broken is None  # the chain by itself holds
    broken = check_next(now=T0)
    assert broken
    assert str(broken) == "seal 3: it is gone, though it was verified before."
    act(20)
    seal_entries(now=T0)
    broken = verify_whole(now=T0).broken
    assert broken
    assert str(broken) == "seal 3: it is another one than was verified before."


# --- bit by bit


def test_bits_verify_what_is_new_and_go_round_what_is_older(ids: list[int]) -> None:
    assert check_next(now=T0, share=3) is None
    state = last_check()
    assert state
    assert (state.head_number, state.round_number, state.round_ended_at, state.broken_at) == (3, 1, None, None)
    act(20)
    seal_entries(now=T0)
    for hour, rounds in ((1, 2), (2, 3), (3, 0)):
        assert check_next(now=T0 + timedelta(hours=hour), share=3) is None
        state = last_check()
        assert state
        assert (state.head_number, state.round_number) == (4, rounds)
    assert state.round_ended_at == T0 + timedelta(hours=3)


@pytest.mark.parametrize("which", [0, 5, 8])
def test_a_break_is_found_within_a_round_stays_and_ends_when_it_is_mended(ids: list[int], which: int) -> None:
    check_next(now=T0, share=3)
    tamper("UPDATE fleet_auditentry SET actor = 'eve' WHERE id = %s", ids[which])
    found = [check_next(now=T0 + timedelta(hours=hour), share=3) for hour in range(1, 6)]
    assert [broken.entry for broken in found if broken][-1] == ids[which]
    state = last_check()
    assert state
    assert (state.broken_entry, state.broken_seal, state.broken_why) == (ids[which], which // 3 + 1, "it was changed after it was sealed.")
    since = state.broken_at
    check_next(now=T0 + timedelta(hours=9), share=3)
    state = last_check()
    assert state
    assert (state.broken_at, state.checked_at) == (since, T0 + timedelta(hours=9))
    tamper("UPDATE fleet_auditentry SET actor = 'ann' WHERE id = %s", ids[which])
    assert check_next(now=T0 + timedelta(hours=10), share=3) is None
    state = last_check()
    assert state
    assert (state.broken_at, state.broken_entry, state.broken_why) == (None, None, "")


BREAKS: list[Callable[[list[int]], None]] = [
    lambda ids: tamper("DELETE FROM fleet_auditseal WHERE number = 2"),
    lambda ids: tamper("DELETE FROM fleet_auditentry WHERE id = %s", ids[0]),
    lambda ids: tamper(INSERT, ids[8] + 100, 2**62),
]


@pytest.mark.parametrize("breaking", BREAKS)
def test_the_whole_can_be_asked_for(ids: list[int], breaking: Callable[[list[int]], None]) -> None:
    assert check_next(now=T0) is None
    breaking(ids)
    ask_for_verification(now=T0)
    broken = check_next(now=T0)
    assert broken
    state = last_check()
    assert state
    assert (state.asked_at, state.broken_seal) == (None, broken.seal)
    assert check_next(now=T0) == broken


def test_seals_of_the_future_do_not_hide_a_gap(ids: list[int]) -> None:
    check_next(now=T0)
    act(30)
    seal_entries(now=T0)
    act(31)
    seal_entries(now=T0)
    tamper("DELETE FROM fleet_auditseal WHERE number = 4")
    broken = check_next(now=T0)
    assert broken
    assert str(broken) == "seal 4: it is gone."
    assert AuditSeal.objects.filter(number=5).exists()
