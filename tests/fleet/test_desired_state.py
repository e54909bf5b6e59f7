"""Policies to signed documents: layers, versions, PHY, ends, and the key that signs."""

from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from agent.protocol import DesiredState, SignedDocument, verify_document
from fleet.control import desired_state, signing
from fleet.models import AgentIdentity, DesiredDocument, Gpu, Node, ObjectKind, Policy
from tests.builders import T0, make_gpu, make_node, make_phy_gpu, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> Path:
    path = tmp_path / "signing.pem"
    signing.create_key_file(path)
    settings.SIGNING_KEY_FILE = str(path)
    return path


def policy(
    kind: ObjectKind,
    key: str,
    *,
    low: int = 1200,
    minutes: int | None = 60,
    at: int = 0,
    control: str = "clock_range",
    parameters: dict[str, object] | None = None,
) -> Policy:
    return Policy.objects.create(
        control=control,
        scope_kind=kind,
        scope_key=key,
        parameters={"min_mhz": low, "max_mhz": 1400} if parameters is None else parameters,
        reason="test",
        starts_at=T0,
        ends_at=None if minutes is None else T0 + timedelta(minutes=minutes),
        created_by=make_user(),
        created_at=T0 + timedelta(seconds=at),
    )


def state_of(node: Node) -> DesiredState:
    document = desired_state.newest_documents([node.pk])[node.pk]
    return verify_document(
        SignedDocument(document.version, bytes(document.body), bytes(document.signature), document.key_id),
        trusted_keys=(signing.public_key(),),
        target_kind="node",
        target_key=str(node.pk),
        newest_version=0,
        now=T0.timestamp(),
    )


def test_narrower_wins_and_each_value_says_where_it_comes_from() -> None:
    gpu = make_gpu()
    site = gpu.node.site
    scopes = [
        (ObjectKind.GPU, gpu.uuid),
        (ObjectKind.NODE, str(gpu.node_id)),
        (ObjectKind.SITE, site.code),
        (ObjectKind.REGION, site.region.slug),
        (ObjectKind.AREA, site.region.area.slug),
        (ObjectKind.FLEET, ""),
    ]
    made = {kind: policy(kind, key, low=1000 + number) for number, (kind, key) in enumerate(scopes)}
    policy(ObjectKind.SITE, "ELSEWHERE")
    desired_state.issue_documents([gpu.node_id], now=T0)
    (control,) = state_of(gpu.node).controls
    assert [layer.policy for layer in control.layers] == [made[kind].pk for kind, _ in scopes]
    assert [layer.parameters["min_mhz"] for layer in control.layers] == [1000, 1001, 1002, 1003, 1004, 1005]
    assert control.layers[0].scope == f"gpu {gpu.uuid}"
    assert control.layers[-1].scope == "fleet"


def test_a_control_of_the_node_is_there_once_and_a_gpu_with_phy_has_only_what_leaves_the_radio() -> None:
    phy = make_phy_gpu()
    other = make_gpu(node=phy.node)
    site = phy.node.site
    policy(ObjectKind.SITE, site.code, control="cordon", parameters={"cordoned": True})
    policy(ObjectKind.NODE, str(phy.node_id), control="cordon", parameters={"cordoned": False})
    policy(ObjectKind.SITE, site.code, control="power_cap", parameters={"watts": 300})
    policy(ObjectKind.GPU, phy.uuid, control="mig_layout", parameters={"layout": "1g.10gb@0"})
    policy(ObjectKind.GPU, phy.uuid, control="a_control_of_tomorrow", parameters={})
    desired_state.issue_documents([phy.node_id], now=T0)
    found = [(control.control, control.gpu_uuid, [layer.parameters for layer in control.layers]) for control in state_of(phy.node).controls]
    assert found[0] == ("cordon", "", [{"cordoned": False}, {"cordoned": True}])
    assert sorted(found[1:]) == sorted([("power_cap", other.uuid, [{"watts": 300}]), ("mig_layout", phy.uuid, [{"layout": "1g.10gb@0"}])])


def test_among_equals_the_later_one_comes_first() -> None:
    gpu = make_gpu()
    first, second = policy(ObjectKind.GPU, gpu.uuid, at=0), policy(ObjectKind.GPU, gpu.uuid, at=1)
    desired_state.issue_documents([gpu.node_id], now=T0)
    assert [layer.policy for layer in state_of(gpu.node).controls[0].layers] == [second.pk, first.pk]


def test_versions_rise_only_when_something_changed() -> None:
    gpu = make_gpu()
    assert desired_state.issue_documents([gpu.node_id], now=T0) == []
    held = policy(ObjectKind.GPU, gpu.uuid)
    assert [document.version for document in desired_state.issue_documents([gpu.node_id], now=T0)] == [1]
    assert desired_state.issue_documents([gpu.node_id], now=T0 + timedelta(minutes=1)) == []
    Policy.objects.filter(pk=held.pk).update(withdrawn_at=T0)
    assert [document.version for document in desired_state.issue_documents([gpu.node_id], now=T0)] == [2]
    assert state_of(gpu.node).controls == ()


def test_a_gpu_that_carries_phy_gets_no_control_and_its_placements_are_in_the_document() -> None:
    node = make_node()
    phy, free = make_phy_gpu(node=node), make_gpu(node=node, index=1)
    policy(ObjectKind.NODE, str(node.pk))
    desired_state.issue_documents([node.pk], now=T0)
    state = state_of(node)
    assert [control.gpu_uuid for control in state.controls] == [free.uuid]
    assert [(span.gpu_uuid, span.start, span.size) for span in state.protected] == [(phy.uuid, start, 1) for start in range(3)]


def test_retired_gpus_are_left_out_and_temporary_documents_grow_old() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    make_gpu(node=node, presence=Gpu.Presence.RETIRED, retired_at=T0)
    policy(ObjectKind.GPU, gpu.uuid, minutes=60)
    policy(ObjectKind.GPU, gpu.uuid, minutes=30)
    desired_state.issue_documents([node.pk], now=T0)
    assert [control.gpu_uuid for control in state_of(node).controls] == [gpu.uuid]
    assert state_of(node).not_after == (T0 + timedelta(minutes=60)).timestamp()
    policy(ObjectKind.NODE, str(node.pk), minutes=None)
    desired_state.issue_documents([node.pk], now=T0)
    assert state_of(node).not_after is None


def test_refresh_takes_ended_policies_out_once_and_gpus_that_came_to_carry_phy() -> None:
    ended, phy = make_gpu(), make_gpu()
    policy(ObjectKind.GPU, ended.uuid, minutes=10)
    policy(ObjectKind.GPU, phy.uuid, minutes=600)
    desired_state.issue_documents([ended.node_id, phy.node_id], now=T0)
    assert desired_state.refresh_documents(now=T0 + timedelta(minutes=9)) == 0
    assert desired_state.refresh_documents(now=T0 + timedelta(minutes=10)) == 1
    assert desired_state.refresh_documents(now=T0 + timedelta(minutes=11)) == 0
    assert state_of(ended.node).controls == ()
    phy.protected_placements.create(start=0, size=1)
    assert desired_state.refresh_documents(now=T0 + timedelta(minutes=12)) == 1
    assert state_of(phy.node).controls == ()


def test_the_gateways_are_woken_on_commit_and_not_before(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> None:
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.delete(desired_state.WAKE_KEY)
    gpu = make_gpu()
    policy(ObjectKind.GPU, gpu.uuid)
    with django_capture_on_commit_callbacks(execute=True):
        desired_state.issue_documents([gpu.node_id], now=T0)
        assert client.xlen(desired_state.WAKE_KEY) == 0
    assert [fields for _, fields in client.xrange(desired_state.WAKE_KEY)] == [{b"n": str(gpu.node_id).encode()}]  # type: ignore[union-attr]
    client.close()


def test_as_many_queries_for_sixty_nodes_as_for_three() -> None:
    counts = []
    for number in (3, 60):
        nodes = [make_gpu().node for _ in range(number)]
        for node in nodes:
            policy(ObjectKind.NODE, str(node.pk))
        with CaptureQueriesContext(connection) as queries:
            desired_state.issue_documents([node.pk for node in nodes], now=T0)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_nothing_is_stored_without_a_key(settings: Settings) -> None:
    settings.SIGNING_KEY_FILE = ""
    gpu = make_gpu()
    policy(ObjectKind.GPU, gpu.uuid)
    with pytest.raises(signing.SigningUnavailable, match="MASTHEAD_SIGNING_KEY_FILE is not set"):
        desired_state.issue_documents([gpu.node_id], now=T0)
    assert not DesiredDocument.objects.exists()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o666])
def test_a_key_that_others_can_read_or_change_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(signing.SigningUnavailable, match="chmod 600"):
        signing.signing_key()


def test_a_file_that_is_no_key_is_refused_and_a_key_in_use_is_not_replaced(key: Path, settings: Settings) -> None:
    with pytest.raises(CommandError, match="exists already"):
        call_command("create_signing_key", str(key))
    other = key.with_name("other.pem")
    other.write_text("no key")
    other.chmod(0o600)
    settings.SIGNING_KEY_FILE = str(other)
    with pytest.raises(signing.SigningUnavailable, match="not a private key"):
        signing.signing_key()
    settings.SIGNING_KEY_FILE = str(key.with_name("missing.pem"))
    with pytest.raises(signing.SigningUnavailable, match="No such file"):
        signing.signing_key()


def test_a_document_says_where_its_node_stands() -> None:
    gpu = make_gpu()
    site = gpu.node.site
    policy(ObjectKind.GPU, gpu.uuid)
    desired_state.issue_documents([gpu.node_id], now=T0)
    place = state_of(gpu.node).place
    assert (place.area, place.region, place.site, place.node) == (site.region.area.slug, site.region.slug, site.code, str(gpu.node_id))
    assert place.time_zone == str(site.time_zone)
    site.time_zone = "Asia/Kolkata"
    site.save()
    desired_state.issue_documents([gpu.node_id], now=T0)
    assert (state_of(gpu.node).place.time_zone, state_of(gpu.node).version) == ("Asia/Kolkata", 2)


def test_an_enrolled_node_without_any_setting_has_a_document_too() -> None:
    enrolled, other = make_node(), make_node()
    AgentIdentity.objects.create(node=enrolled, public_key=bytes(32), enrolled_at=T0)
    assert desired_state.refresh_documents(now=T0) == 1
    assert desired_state.refresh_documents(now=T0) == 0
    assert state_of(enrolled).place.node == str(enrolled.pk)
    assert desired_state.newest_documents([other.pk]) == {}
    AgentIdentity.objects.create(node=other, public_key=bytes(31) + b"1", enrolled_at=T0, revoked_at=T0)
    assert desired_state.refresh_documents(now=T0) == 0
