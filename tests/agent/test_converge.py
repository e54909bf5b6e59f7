"""The agent alone with its hardware: it applies, reads back, reports, undoes at the end, and settles what a crash left in doubt."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.backends.base import BackendError, ErrorCode
from agent.converge import Converger, retry_after
from agent.journal import Journal, Phase
from agent.protocol import ObservedState, ProtectedSpan
from tests.agent.documents import CONSOLE_KEY, NODE, T0, A, B, control, document, layer
from tests.agent.hardware import IDLE_MHZ, Hardware


@pytest.fixture
def hardware() -> Hardware:
    return Hardware([A, B])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite3")
    yield journal
    journal.close()


def converger(hardware: Hardware, journal: Journal) -> Converger:
    return Converger(backend=hardware, journal=journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,))


def states(agent: Converger) -> dict[str, ObservedState]:
    return {observation.gpu_uuid: observation.state for observation in agent.observations()}


def test_applies_reads_back_and_reports_once(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    assert agent.accept(document(3, control(layer())), T0).code == ""
    (observation,) = agent.converge(T0).observations
    assert (observation.gpu_uuid, observation.state, observation.version, observation.observed["sm_mhz"]) == (A, ObservedState.APPLIED, 3, 1400)
    assert hardware.locks == {A: (1200, 1400)}
    assert agent.applied_version == 3
    assert agent.converge(T0 + 10).observations == ()
    assert len(agent.converge(T0 + 70).observations) == 1
    assert hardware.acts == [("set", A)]


def test_undoes_at_its_end_by_itself_and_says_when_it_is_due(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer(ends_at=T0 + 5))), T0)
    assert agent.converge(T0).due_at == T0 + 5
    agent.converge(T0 + 4.9)
    assert hardware.locks == {A: (1200, 1400)}
    (observation,) = agent.converge(T0 + 5).observations
    assert observation.state is ObservedState.ENDED
    assert observation.observed["sm_mhz"] == IDLE_MHZ
    assert hardware.locks == {}
    assert agent.converge(T0 + 100).observations == ()
    assert hardware.acts == [("set", A), ("reset", A)]


def test_an_agent_that_was_off_at_the_end_undoes_when_it_is_back(hardware: Hardware, journal: Journal) -> None:
    first = converger(hardware, journal)
    first.accept(document(1, control(layer(ends_at=T0 + 60)), not_after=T0 + 60), T0)
    first.converge(T0)
    assert states(converger(hardware, journal)) == {A: ObservedState.APPLIED}
    again = converger(hardware, journal)
    again.converge(T0 + 86_400)
    assert hardware.locks == {}
    assert states(again) == {A: ObservedState.ENDED}


def test_falls_back_to_the_wider_layer_when_the_narrow_one_ends(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    narrow, wide = layer(1200, 1400, ends_at=T0 + 60, policy=2), layer(900, 1000, ends_at=T0 + 600, policy=1, scope="site X")
    agent.accept(document(1, control(narrow, wide)), T0)
    agent.converge(T0)
    assert hardware.locks == {A: (1200, 1400)}
    agent.converge(T0 + 60)
    assert hardware.locks == {A: (900, 1000)}
    agent.converge(T0 + 600)
    assert hardware.locks == {}


def test_waits_for_a_start_that_lies_ahead(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer(starts_at=T0 + 3))), T0)
    assert agent.converge(T0).due_at == T0 + 3
    assert hardware.acts == []
    agent.converge(T0 + 3)
    assert hardware.locks == {A: (1200, 1400)}


def test_a_newer_document_without_the_control_takes_it_off(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer()), control(layer(), gpu_uuid=B)), T0)
    agent.converge(T0)
    agent.accept(document(2, control(layer(), gpu_uuid=B)), T0 + 10)
    agent.converge(T0 + 10)
    assert hardware.locks == {B: (1200, 1400)}
    assert states(agent) == {A: ObservedState.ENDED, B: ObservedState.APPLIED}
    assert {observation.gpu_uuid: observation.version for observation in agent.observations()} == {A: 2, B: 2}


def test_a_lost_lock_is_shown_as_drift_first_and_then_applied_again(hardware: Hardware, journal: Journal) -> None:
    """C25: after a driver unload the state is `drifted` within one report, never shown as applied, and re-applied as a step of its own."""
    agent = converger(hardware, journal)
    hardware.persistence_mode = False
    agent.accept(document(1, control(layer())), T0)
    (applied,) = agent.converge(T0).observations
    assert applied.state is ObservedState.APPLIED
    assert applied.detail == "Persistence mode is off, will not last."
    hardware.locks.clear()
    (drifted,) = agent.converge(T0 + 960).observations
    assert (drifted.state, drifted.observed["sm_mhz"]) == (ObservedState.DRIFTED, IDLE_MHZ)
    assert hardware.locks == {}
    (again,) = agent.converge(T0 + 970).observations
    assert (again.state, again.observed["applied_again"]) == (ObservedState.APPLIED, 1)
    assert hardware.acts == [("set", A), ("set", A)]


def test_accepted_but_without_effect_is_failed_not_applied(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    hardware.deaf.add(A)
    agent.accept(document(1, control(layer())), T0)
    first = agent.converge(T0)
    assert first.observations == ()
    assert first.due_at == T0 + 0.5
    (observation,) = agent.converge(T0 + 5).observations
    assert observation.state is ObservedState.FAILED
    assert "1980 MHz, above 1400 MHz" in observation.detail
    hardware.deaf.clear()
    agent.converge(T0 + 5 + retry_after(1))
    assert states(agent) == {A: ObservedState.APPLIED}


def test_a_clock_below_the_range_with_a_reason_is_no_drift(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer())), T0)
    agent.converge(T0)
    hardware.locks[A] = (0, 345)
    hardware.limited_by = ("idle",)
    (observation,) = agent.converge(T0 + 10).observations
    assert observation.state is ObservedState.APPLIED
    assert observation.detail == "Measured 345 MHz, below 1200 MHz: held down by idle."


def test_a_target_that_is_not_there_is_refused_and_nothing_else_is_touched(hardware: Hardware, journal: Journal) -> None:
    """C17: bound to the UUID; the GPU that has its index now is not touched."""
    agent = converger(hardware, journal)
    hardware.uuids = [B]
    agent.accept(document(1, control(layer())), T0)
    (observation,) = agent.converge(T0).observations
    assert (observation.state, observation.detail) == (ObservedState.REFUSED, "target not present")
    assert hardware.acts == []
    hardware.uuids = [A, B]
    agent.converge(T0 + retry_after(1))
    assert hardware.locks == {A: (1200, 1400)}


def test_refuses_phy_bad_numbers_and_unknown_controls(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    bad = replace(layer(), parameters={"min_mhz": 1500, "max_mhz": 1400})
    nameless = control(layer(), gpu_uuid=B, name="overclock")
    agent.accept(document(1, control(bad), nameless), T0)
    assert {observation.detail for observation in agent.converge(T0).observations} == {
        "min_mhz: greater than max_mhz",
        "This agent knows no control named overclock.",
    }
    agent.accept(document(2, control(layer()), protected=(ProtectedSpan(gpu_uuid=A, start=0, size=1),)), T0)
    agent.converge(T0 + 1)
    phy = next(observation for observation in agent.observations() if observation.gpu_uuid == A)
    assert phy.state is ObservedState.REFUSED
    assert "carries PHY" in phy.detail
    assert hardware.acts == []


def test_a_gpu_that_comes_to_carry_phy_loses_its_lock(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer())), T0)
    agent.converge(T0)
    agent.accept(document(2, control(layer()), protected=(ProtectedSpan(gpu_uuid=A, start=0, size=1),)), T0)
    agent.converge(T0 + 10)
    assert hardware.locks == {}
    assert states(agent) == {A: ObservedState.REFUSED}


def test_hardware_errors_are_reported_and_tried_again_with_pauses(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    hardware.errors["set"] = BackendError(ErrorCode.NOT_PERMITTED, "NVML: Insufficient Permissions")
    agent.accept(document(1, control(layer())), T0)
    (observation,) = agent.converge(T0).observations
    assert (observation.state, observation.observed["error"]) == (ObservedState.FAILED, "not_permitted")
    del hardware.errors["set"]
    agent.converge(T0 + retry_after(1) - 1)
    assert hardware.locks == {}
    agent.converge(T0 + retry_after(1))
    assert states(agent) == {A: ObservedState.APPLIED}


def test_an_undo_that_fails_is_tried_until_it_is_done(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer(ends_at=T0 + 5))), T0)
    agent.converge(T0)
    hardware.errors["reset"] = BackendError(ErrorCode.UNAVAILABLE, "NVML: Driver Not Loaded")
    agent.converge(T0 + 5)
    assert states(agent) == {A: ObservedState.FAILED}
    del hardware.errors["reset"]
    converger(hardware, journal).converge(T0 + 20)
    assert hardware.locks == {}


@pytest.mark.parametrize("phase", [Phase.APPLYING, Phase.SETTLING, Phase.UNDOING])
@pytest.mark.parametrize("acted", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_a_crash_at_any_point_is_settled_at_the_next_start(hardware: Hardware, journal: Journal, phase: Phase, acted: bool, ended: bool) -> None:
    """Whatever the journal says was about to happen and whether it did: afterwards hardware and journal agree with the document and the time."""
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer(ends_at=T0 + 600))), T0)
    agent.converge(T0)
    (entry,) = journal.entries().values()
    journal.write(replace(entry, phase=phase, state=None))
    hardware.locks = {A: (1200, 1400)} if acted else {}
    now = T0 + (700 if ended else 30)
    again = converger(hardware, journal)
    for step in (0.0, 0.5, 6.0, 20.0, 60.0):
        again.converge(now + step)
    assert hardware.locks == ({} if ended else {A: (1200, 1400)})
    assert states(again) == {A: ObservedState.ENDED if ended else ObservedState.APPLIED}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (lambda: replace(document(2, control(layer())), signature=bytes(64)), "bad_signature"),
        (lambda: replace(document(2, control(layer())), body=document(2, control(layer(100, 200))).body), "bad_signature"),
        (lambda: document(2, control(layer()), key=Ed25519PrivateKey.generate()), "unknown_key"),
        (lambda: document(2, control(layer()), node_id=NODE + 1), "wrong_target"),
        (lambda: document(1, control(layer())), "old_version"),
        (lambda: document(2, control(layer()), not_after=T0 - 1), "expired"),
    ],
    ids=["signature", "body", "other key", "other node", "older", "expired"],
)
def test_documents_that_are_not_to_be_believed_change_nothing(hardware: Hardware, journal: Journal, bad, code: str) -> None:  # type: ignore[no-untyped-def]
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer())), T0)
    agent.converge(T0)
    assert agent.accept(bad(), T0).code == code
    assert agent.have_version == 1
    assert agent.converge(T0 + 1).observations == ()
    assert hardware.acts == [("set", A)]


def test_a_document_that_was_changed_on_disk_is_not_believed(hardware: Hardware, journal: Journal) -> None:
    signed = document(5, control(layer()))
    journal.store_document(replace(signed, body=signed.body.replace(b"1400", b"1900")))
    agent = converger(hardware, journal)
    agent.converge(T0)
    assert agent.have_version == 0
    assert hardware.acts == []


def test_observations_are_numbered_upwards_over_restarts_and_lost_journals(hardware: Hardware, journal: Journal, tmp_path: Path) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(layer(ends_at=T0 + 5))), T0)
    (first,) = agent.converge(T0).observations
    (second,) = converger(hardware, journal).converge(T0 + 5).observations
    assert second.sequence > first.sequence
    fresh = Journal(tmp_path / "new.sqlite3")
    replacement = converger(hardware, fresh)
    replacement.accept(document(2, control(layer(ends_at=T0 + 900))), T0 + 10)
    (third,) = replacement.converge(T0 + 10).observations
    fresh.close()
    assert third.sequence > second.sequence
