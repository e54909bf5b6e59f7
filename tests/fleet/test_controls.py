"""Setting a clock range: what is refused and why, what one submit stores, and that a double click is one control."""

import json
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection, connections, transaction
from pytest_django import Settings

from agent.protocol import DesiredState, Observation, ObservedState
from console.models import User
from fleet.control import controls, desired_state, observed, signing
from fleet.control.controls import ControlRefused, KeyReused, Submitted
from fleet.models import AgentConnection, AuditEntry, DesiredDocument, Gpu, ObservedControl, Policy
from fleet.stream import NOTICE_KEY
from tests.builders import T0, make_gpu, make_phy_gpu, make_user

END = T0 + timedelta(hours=1)


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "signing.pem"
    signing.create_key_file(path)
    settings.SIGNING_KEY_FILE = str(path)


def submit(gpu: Gpu, user: User | None = None, **changes: Any) -> Submitted:
    values: dict[str, Any] = {"min_mhz": 1200, "max_mhz": 1400, "ends_at": END, "reason": "heat", "idempotency_key": None, "now": T0}
    return controls.submit_clock_range(gpu=gpu, user=user or make_user(), **{**values, **changes})


@pytest.mark.django_db
def test_one_submit_stores_policy_audit_and_signed_document() -> None:
    gpu, user = make_gpu(), make_user("anna")
    submitted = submit(gpu, user, idempotency_key="k1")
    assert submitted.created
    policy = Policy.objects.get()
    assert (policy.scope_kind, policy.scope_key, policy.parameters, policy.ends_at) == ("gpu", gpu.uuid, {"min_mhz": 1200, "max_mhz": 1400}, END)
    audit = AuditEntry.objects.get()
    assert (audit.actor, audit.action, audit.object_key, audit.reason) == ("anna", "control.set", gpu.uuid, "heat")
    document = DesiredDocument.objects.get()
    (control,) = DesiredState.from_bytes(bytes(document.body)).controls
    assert (control.gpu_uuid, control.layers[0].parameters, control.layers[0].ends_at) == (gpu.uuid, policy.parameters, END.timestamp())


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("min_mhz", "nan", "Must be a whole number of MHz."),
        ("min_mhz", float("nan"), "Must be a whole number of MHz."),
        ("max_mhz", float("inf"), "Must be a whole number of MHz."),
        ("max_mhz", "1e400", "Must be a whole number of MHz."),
        ("max_mhz", 1400.0, "Must be a whole number of MHz."),
        ("min_mhz", True, "Must be a whole number of MHz."),
        ("min_mhz", None, "Must be a whole number of MHz."),
        ("min_mhz", 0, "Must lie within 210..1980 MHz."),
        ("min_mhz", 209, "Must lie within 210..1980 MHz."),
        ("max_mhz", 1981, "Must lie within 210..1980 MHz."),
        ("max_mhz", 10**400, "Must lie within 210..1980 MHz."),
        ("min_mhz", 1500, "1500 MHz is above the maximum of 1400 MHz."),
        ("ends_at", None, "Must be a date and time with its zone."),
        ("ends_at", END.replace(tzinfo=None), "Must be a date and time with its zone."),
        ("ends_at", T0, "Must lie ahead, at most 30 days."),
        ("ends_at", T0 + timedelta(days=30, seconds=1), "Must lie ahead, at most 30 days."),
        ("reason", "  ", "Say why: it stands in the audit."),
        ("reason", "x" * 301, "Must be at most 300 printable characters."),
        ("reason", "a\x00b", "Must be at most 300 printable characters."),
        ("idempotency_key", "", "Must be 1 to 80 printable characters."),
    ],
)
def test_bad_values_are_refused_with_the_field_named_and_nothing_is_stored(field: str, value: Any, reason: str) -> None:
    """C38: nan, inf and 1e400 among them."""
    with pytest.raises(ControlRefused) as refused:
        submit(make_gpu(), **{field: value})
    assert refused.value.errors == {field: reason}
    assert not Policy.objects.exists()
    assert not AuditEntry.objects.exists()
    assert not DesiredDocument.objects.exists()


@pytest.mark.django_db
def test_all_errors_at_once_and_bounds_are_inclusive() -> None:
    with pytest.raises(ControlRefused) as refused:
        submit(make_gpu(), min_mhz="x", max_mhz=1, ends_at="soon", reason="")
    assert set(refused.value.errors) == {"min_mhz", "max_mhz", "ends_at", "reason"}
    assert submit(make_gpu(), min_mhz=210, max_mhz=1980).created
    assert submit(make_gpu(sku="unknown"), min_mhz=100, max_mhz=5000).created


@pytest.mark.django_db
def test_refused_on_a_gpu_that_carries_phy() -> None:
    gpu = make_phy_gpu()
    with pytest.raises(ControlRefused) as refused:
        submit(gpu)
    assert refused.value.errors == {"": "GPU carries PHY at positions 0-2: clock, power and reset need approvals, which do not exist yet."}
    assert controls.refusal_for(gpu) == refused.value.errors[""]
    assert not Policy.objects.exists()
    gpu.protected_placements.create(start=5, size=2)
    assert "positions 0-2, 5-6:" in controls.refusal_for(Gpu.objects.get(pk=gpu.pk))


@pytest.mark.django_db
@pytest.mark.parametrize("fields", [{"presence": Gpu.Presence.MISSING}, {"presence": Gpu.Presence.RETIRED, "retired_at": T0}], ids=["missing", "retired"])
def test_a_target_that_is_not_there_is_refused(fields: dict[str, Any]) -> None:
    """C17: the control is bound to the UUID, and the GPU with that UUID is gone."""
    with pytest.raises(ControlRefused, match="target not present"):
        submit(make_gpu(**fields))


@pytest.mark.django_db
def test_the_same_key_gives_the_same_control_and_another_body_is_refused() -> None:
    gpu, user = make_gpu(), make_user()
    first, again = submit(gpu, user, idempotency_key="k"), submit(gpu, user, idempotency_key="k", now=T0 + timedelta(seconds=1))
    assert (first.created, again.created, again.policy.pk) == (True, False, first.policy.pk)
    with pytest.raises(KeyReused):
        submit(gpu, user, idempotency_key="k", max_mhz=1500)
    assert submit(gpu, idempotency_key="k").created
    assert Policy.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_two_submits_with_one_key_at_once_make_one_control() -> None:
    """C39: both look, neither sees the other, and the unique key decides."""
    gpu, user = make_gpu(), make_user()
    barrier = threading.Barrier(2)
    results: list[Submitted] = []

    def run() -> None:
        try:
            with transaction.atomic():
                # A snapshot of the table from before either insert, as two web workers a few milliseconds apart have.
                barrier.wait(10)
            results.append(submit(gpu, user, idempotency_key="once"))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(result.created for result in results) == [False, True]
    assert len({result.policy.pk for result in results}) == 1
    assert (Policy.objects.count(), DesiredDocument.objects.count(), AuditEntry.objects.count()) == (1, 1, 1)


@pytest.mark.django_db
def test_withdrawing_ends_it_with_a_new_document_and_again_changes_nothing() -> None:
    gpu, user = make_gpu(), make_user()
    policy = submit(gpu, user).policy
    withdrawn = controls.withdraw(policy=policy, user=user, reason="done", now=T0 + timedelta(minutes=5))
    assert withdrawn.withdrawn_by == user
    assert DesiredState.from_bytes(bytes(desired_state.newest_documents([gpu.node_id])[gpu.node_id].body)).controls == ()
    controls.withdraw(policy=policy, user=make_user(), reason="again", now=T0 + timedelta(minutes=6))
    assert Policy.objects.get().withdrawn_by == user
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == ["control.set", "control.withdrawn"]
    with pytest.raises(ControlRefused):
        controls.withdraw(policy=policy, user=user, reason="", now=T0)


def seen(gpu: Gpu, state: ObservedState, *, version: int = 1, sequence: int = 1, **observed_values: Any) -> tuple[int, Observation]:
    return gpu.node_id, Observation(
        gpu_uuid=gpu.uuid,
        control="clock_range",
        version=version,
        state=state,
        observed=observed_values,
        detail="",
        at=T0.timestamp(),
        sequence=sequence,
    )


@pytest.fixture
def locked() -> Gpu:
    gpu = make_gpu()
    AgentConnection.objects.create(node=gpu.node, connected=True)
    submit(gpu)
    return gpu


def view(gpu: Gpu, minutes: int = 1) -> observed.ControlView:
    (found,) = observed.controls_of([gpu], now=T0 + timedelta(minutes=minutes))[gpu.uuid]
    return found


@pytest.mark.django_db
def test_desired_against_observed(locked: Gpu) -> None:
    assert (view(locked).state, view(locked).agent_connected, view(locked).parameters) == ("pending", True, {"min_mhz": 1200, "max_mhz": 1400})
    observed.record_observations([seen(locked, ObservedState.APPLIED, sm_mhz=1400)], now=T0)
    assert view(locked).state == "applied"
    observed.record_observations([seen(locked, ObservedState.DRIFTED, sequence=2, sm_mhz=1980)], now=T0)
    assert view(locked).drifted
    submit(locked, min_mhz=1000)
    assert view(locked).state == "pending"
    observed.record_observations([seen(locked, ObservedState.APPLIED, version=2, sequence=3)], now=T0)
    assert view(locked).parameters["min_mhz"] == 1000
    # After the end nothing is desired; the agent's word that it undid it is waited for.
    assert (view(locked, 90).policy, view(locked, 90).state) == (None, "pending")
    observed.record_observations([seen(locked, ObservedState.ENDED, version=2, sequence=4)], now=T0)
    assert view(locked, 90).state == "ended"


@pytest.mark.django_db
def test_late_doubled_and_foreign_observations_change_nothing(locked: Gpu) -> None:
    record = observed.record_observations
    assert record([seen(locked, ObservedState.APPLIED, sequence=5)], now=T0) == 1
    assert record([seen(locked, ObservedState.FAILED, sequence=5)], now=T0) == 0
    assert record([seen(locked, ObservedState.FAILED, sequence=4)], now=T0) == 0
    assert record([seen(locked, ObservedState.FAILED, version=0, sequence=9)], now=T0) == 0
    # A version that was never issued, a sequence out of this world, another node's GPU, and one that nobody knows.
    stranger = make_gpu()
    elsewhere = (stranger.node_id, seen(locked, ObservedState.FAILED, sequence=9)[1])
    unknown = (locked.node_id, seen(Gpu(uuid="GPU-none", node=locked.node), ObservedState.FAILED, sequence=9)[1])
    far = seen(locked, ObservedState.FAILED, sequence=2**62)
    assert record([seen(locked, ObservedState.FAILED, version=99, sequence=9), elsewhere, unknown, far], now=T0) == 0
    assert ObservedControl.objects.get().state == "applied"


@pytest.mark.django_db
def test_what_a_node_says_of_itself_is_its_own() -> None:
    """A control of the node has no GPU; each node has one of its own, in one batch too."""
    first, second = make_gpu(), make_gpu()
    for gpu in (first, second):
        submit(gpu)
    client = redis.Redis.from_url(django_settings.REDIS_URL)
    client.delete(NOTICE_KEY)
    pairs = []
    for gpu, state in ((first, ObservedState.APPLIED), (second, ObservedState.DRIFTED)):
        node_id, observation = seen(gpu, state, sequence=2)
        pairs.append((node_id, replace(observation, gpu_uuid="", control="cordon")))
    assert observed.record_observations(pairs, now=T0) == 2
    held = {row.node_id: (row.control, row.state) for row in ObservedControl.objects.filter(gpu_uuid="")}
    assert held == {first.node_id: ("cordon", "applied"), second.node_id: ("cordon", "drifted")}
    entries: Any = client.xrange(NOTICE_KEY)
    client.close()
    notices = [json.loads(fields[b"d"]) for _, fields in entries]
    assert {(notice["kind"], notice["key"], notice["state"]) for notice in notices} == {
        ("node", str(first.node_id), "applied"),
        ("node", str(second.node_id), "drifted"),
    }


@pytest.mark.django_db
def test_of_many_observations_in_one_batch_the_newest_is_kept(locked: Gpu) -> None:
    batch = [seen(locked, ObservedState.APPLIED, sequence=2), seen(locked, ObservedState.DRIFTED, sequence=3), seen(locked, ObservedState.FAILED, sequence=1)]
    assert observed.record_observations(batch, now=T0) == 1
    assert ObservedControl.objects.get().state == "drifted"


@pytest.mark.django_db
def test_a_feed_of_many_gpus_takes_as_many_queries_as_one(django_assert_num_queries: Any) -> None:
    gpus = [make_gpu() for _ in range(3)]
    for gpu in gpus:
        submit(gpu)
    assert connection.in_atomic_block
    with django_assert_num_queries(4):
        assert len(observed.controls_of(gpus, now=T0 + timedelta(minutes=1))) == 3


@pytest.mark.django_db
def test_live_pages_hear_of_what_is_new_and_of_nothing_twice(locked: Gpu) -> None:
    client = redis.Redis.from_url(django_settings.REDIS_URL)
    client.delete(NOTICE_KEY)
    observed.record_observations([seen(locked, ObservedState.APPLIED, sequence=2)], now=T0)
    observed.record_observations([seen(locked, ObservedState.APPLIED, sequence=3)], now=T0)
    observed.record_observations([seen(locked, ObservedState.ENDED, sequence=4)], now=T0)
    entries: Any = client.xrange(NOTICE_KEY)
    client.close()
    notices = [json.loads(fields[b"d"]) for _, fields in entries]
    site = locked.node.site
    expected = {"type": "control", "site": site.code, "region_id": site.region_id, "kind": "gpu", "key": locked.uuid, "control": "clock_range", "detail": ""}
    assert notices == [{**expected, "state": "applied"}, {**expected, "state": "ended"}]
