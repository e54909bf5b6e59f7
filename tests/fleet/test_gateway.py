"""The gateway with real uvicorn, real sockets, PostgreSQL and Redis: who gets in, what it stores, what it delivers, what it survives."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent.enrol import EnrolError, WaitsForOperator, enrol
from agent.keys import public_bytes
from agent.protocol import CloseCode, EnrolRequest, Refusal, SignedDocument, Welcome, enrolment_statement, verify_document
from fleet.agents import enrolment
from fleet.control import controls, signing
from fleet.models import AgentConnection, AgentIdentity, AuditEntry, EnrolmentToken, Gpu, KeyChangeRequest, Node, ObservedControl
from tests.agent.hardware import Hardware
from tests.builders import make_gpu, make_node, make_user
from tests.fleet.gateway_process import GatewayProcess, RunningAgent, Wire, bundle_for, enrolled, gateway, gateway_process, until

__all__ = ["gateway", "gateway_process"]


def refusal_of(wire: Wire) -> Refusal:
    """The refusal and the close that follow a bad message."""
    message = wire.receive()
    assert isinstance(message, Refusal), message
    with pytest.raises(ConnectionClosed) as closed:
        wire.socket.recv(15)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == message.code
    return message


# Enrolment.


def test_enrols_once_and_the_same_key_again_succeeds(gateway: GatewayProcess) -> None:
    node = make_node()
    bundle, key = bundle_for(node), Ed25519PrivateKey.generate()
    assert bundle.token not in str(list(EnrolmentToken.objects.values()))
    first = enrol(bundle, key)
    assert (first.node_id, first.gateway_url, first.console_keys) == (node.pk, gateway.url, (signing.public_key(),))
    assert enrol(bundle, key) == first
    assert bytes(AgentIdentity.objects.get().public_key) == public_bytes(key)
    assert AuditEntry.objects.filter(action="agent.enrolled", object_key=str(node.pk)).count() == 1


def test_a_used_token_is_worth_nothing_to_another_key(gateway: GatewayProcess) -> None:
    bundle = bundle_for(make_node())
    enrol(bundle, Ed25519PrivateKey.generate())
    with pytest.raises(EnrolError, match="used already"):
        enrol(bundle, Ed25519PrivateKey.generate())
    assert AgentIdentity.objects.count() == 1
    assert not KeyChangeRequest.objects.exists()


def test_expired_unknown_and_superseded_tokens_are_refused(gateway: GatewayProcess) -> None:
    node, key = make_node(), Ed25519PrivateKey.generate()
    old = bundle_for(node)
    new = bundle_for(node)
    with pytest.raises(EnrolError, match="expired"):
        enrol(old, key)
    EnrolmentToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(EnrolError, match="expired"):
        enrol(new, key)
    EnrolmentToken.objects.all().delete()
    with pytest.raises(EnrolError, match="not known"):
        enrol(new, key)
    assert not AgentIdentity.objects.exists()


@pytest.mark.parametrize("approve", [True, False])
def test_another_key_on_an_enrolled_node_waits_for_an_operator(gateway: GatewayProcess, approve: bool) -> None:
    node, operator = make_node(), make_user("operator")
    old, _ = enrolled(node)
    bundle, other = bundle_for(node), Ed25519PrivateKey.generate()
    for _ in range(2):
        with pytest.raises(WaitsForOperator):
            enrol(bundle, other)
    with Wire(gateway, old) as wire:
        assert isinstance(wire.receive(), Welcome)
        request = KeyChangeRequest.objects.get()
        enrolment.decide_key_change(request=request, approve=approve, user=operator, reason="new board", now=timezone.now())
        if approve:
            assert refusal_of(wire).code == CloseCode.REVOKED
            assert enrol(bundle, other).node_id == node.pk
            with Wire(gateway, other) as replaced:
                assert isinstance(replaced.receive(), Welcome)
        else:
            with pytest.raises(EnrolError, match="refused this key"):
                enrol(bundle, other)
    assert bytes(AgentIdentity.objects.get(revoked_at__isnull=True).public_key) == public_bytes(other if approve else old)


def test_a_key_copied_to_a_second_node_is_refused(gateway: GatewayProcess) -> None:
    key, _ = enrolled(make_node())
    with pytest.raises(EnrolError, match="already speaks for another node"):
        enrol(bundle_for(make_node()), key)
    assert AgentIdentity.objects.count() == 1


def test_a_token_without_the_key_enrols_nothing(gateway: GatewayProcess) -> None:
    bundle = bundle_for(make_node())
    mine, theirs = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    request = EnrolRequest(bundle.token, public_bytes(theirs), mine.sign(enrolment_statement(bundle.token)), "test")
    answer = httpx.post(f"{gateway.http}/enrol", content=request.to_bytes())
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    assert "signature" in answer.json()["detail"]
    assert EnrolmentToken.objects.get().used_at is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/enrol", b"", 400),
        ("POST", "/enrol", b"\xff\x00", 400),
        ("POST", "/enrol", b"[]", 400),
        ("POST", "/enrol", b'{"token": NaN}', 400),
        ("POST", "/enrol", b'{"token": "a", "node_id": 3}', 400),
        ("POST", "/enrol", b"x" * 9000, 413),
        ("GET", "/enrol", b"", 405),
        ("GET", "/admin", b"", 404),
        ("GET", "/healthz", b"", 200),
    ],
)
def test_http_answers_are_clear(gateway: GatewayProcess, method: str, path: str, body: bytes, status: int) -> None:
    answer = httpx.request(method, gateway.http + path, content=body)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["status"] == status


# Authentication.


def test_the_right_key_becomes_its_node(gateway: GatewayProcess) -> None:
    node = make_node()
    key, _ = enrolled(node)
    with Wire(gateway, key) as wire:
        welcome = wire.receive()
        assert isinstance(welcome, Welcome)
        assert welcome.node_id == node.pk
        wire.send({"type": "heartbeat", "at": 1.0, "boot_id": "b1", "clock_offset_seconds": -5.0, "applied_version": 0})
        contact = until(lambda: AgentConnection.objects.filter(node=node, connected=True, heartbeat_at__isnull=False).first())
        assert contact.clock_offset_seconds == -5.0
        until(lambda: Node.objects.get(pk=node.pk).boot_id == "b1")
        assert Node.objects.get(pk=node.pk).agent_version == "test"
    until(lambda: AgentConnection.objects.filter(node=node, connected=False, disconnected_at__isnull=False).exists())


def test_wrong_unknown_and_replayed_signatures_are_refused(gateway: GatewayProcess) -> None:
    key, _ = enrolled(make_node())
    with Wire(gateway) as first, Wire(gateway) as second:
        assert first.nonce != second.nonce
        second.authenticate(key, nonce=first.nonce)
        refused = refusal_of(second)
        assert (refused.code, refused.field) == (CloseCode.NOT_AUTHENTICATED, "signature")
    with Wire(gateway, Ed25519PrivateKey.generate()) as stranger:
        refused = refusal_of(stranger)
        assert (refused.code, refused.field) == (CloseCode.NOT_AUTHENTICATED, "public_key")
    with Wire(gateway) as wire:
        wire.send({"type": "heartbeat", "at": 1.0, "boot_id": "b", "clock_offset_seconds": 0.0, "applied_version": 0})
        assert refusal_of(wire).code == CloseCode.NOT_AUTHENTICATED


def test_browsers_and_other_paths_are_turned_away(gateway: GatewayProcess) -> None:
    with pytest.raises(InvalidStatus) as refused:
        Wire(gateway, origin="https://masthead.example").__enter__()
    assert refused.value.response.status_code == 403


def test_a_revoked_key_loses_its_socket_within_seconds_and_stays_out(gateway: GatewayProcess) -> None:
    node = make_node()
    key, _ = enrolled(node)
    with Wire(gateway, key) as wire:
        wire.receive()
        assert enrolment.revoke_agent(node=node, user=make_user(), reason="stolen", now=timezone.now())
        assert refusal_of(wire).code == CloseCode.REVOKED
    with Wire(gateway, key) as again:
        assert refusal_of(again).code == CloseCode.NOT_AUTHENTICATED


def test_a_revocation_is_found_without_redis(gateway: GatewayProcess) -> None:
    node = make_node()
    key, _ = enrolled(node)
    with Wire(gateway, key) as wire:
        wire.receive()
        gateway.redis.shut()
        enrolment.revoke_agent(node=node, user=make_user(), reason="stolen", now=timezone.now())
        assert refusal_of(wire).code == CloseCode.REVOKED


def test_the_later_connection_of_a_node_wins(gateway: GatewayProcess) -> None:
    node = make_node()
    key, _ = enrolled(node)
    with Wire(gateway, key) as first:
        first.receive()
        with Wire(gateway, key) as second:
            assert isinstance(second.receive(), Welcome)
            assert refusal_of(first).code == CloseCode.REPLACED
            second.send({"type": "heartbeat", "at": 1.0, "boot_id": "b", "clock_offset_seconds": 0.0, "applied_version": 0})
            until(lambda: AgentConnection.objects.filter(node=node, connected=True, heartbeat_at__isnull=False).exists())


def test_a_silent_socket_is_closed(gateway: GatewayProcess) -> None:
    key, _ = enrolled(make_node())
    with Wire(gateway, key) as wire:
        wire.receive()
        assert refusal_of(wire).code == CloseCode.TOO_SLOW


def test_refuses_to_run_where_it_must_not_and_names_every_reason(gateway: GatewayProcess) -> None:
    unsafe = {"MASTHEAD_SIGNING_KEY_FILE": "/run/secrets/signing_key", "MASTHEAD_ALLOWED_HOSTS": "*", "MASTHEAD_GATEWAY_URL": "http://x"}
    said = gateway.run_to_end(**unsafe)
    assert "Refusing to start" in said
    assert all(variable in said for variable in unsafe)


@given(st.binary(max_size=200), st.text(max_size=200))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_at_the_doors_gets_a_clear_answer(gateway: GatewayProcess, raw: bytes, text: str) -> None:
    """Before authentication too: a refusal and a close code at the socket, a 4xx problem at /enrol, and the gateway goes on."""
    for body in (raw, text.encode("utf-8", "surrogatepass")):
        answer = httpx.post(f"{gateway.http}/enrol", content=body)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    for message in (raw, text if text.isprintable() else ""):
        with Wire(gateway) as wire:
            wire.send(message)
            assert refusal_of(wire).code in (CloseCode.BAD_MESSAGE, CloseCode.NOT_AUTHENTICATED)
    with socket.create_connection(("127.0.0.1", gateway.port)) as plain:
        plain.sendall(raw + b"\r\n\r\n")
        plain.shutdown(socket.SHUT_WR)
        plain.settimeout(10)
        while plain.recv(65536):
            pass
    assert httpx.get(f"{gateway.http}/healthz").status_code == 200


# Messages.


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("not json", ""),
        (b"\x00\x01", ""),
        ("[]", ""),
        ('{"type": "heartbeat", "type": "heartbeat"}', "type"),
        ('{"type": "shutdown"}', "type"),
        ('{"type": "fetch", "have_version": -1}', "have_version"),
        ('{"type": "fetch", "have_version": 1e400}', "have_version"),
        ('{"type": "fetch", "have_version": 0, "node_id": 1}', "node_id"),
        ('{"type": "heartbeat", "at": NaN}', ""),
        ('{"type": "observed", "controls": [{"gpu_uuid": 3}]}', "controls[0].gpu_uuid"),
        ("x" * 1_100_000, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_message_closes_its_own_socket_with_the_field_named(gateway: GatewayProcess, message: str | bytes, field: str | None) -> None:
    key, _ = enrolled(make_node())
    with Wire(gateway, key) as wire:
        wire.receive()
        if field is None:
            wire.send(message)
            with pytest.raises(ConnectionClosed):
                wire.socket.recv(15)
        else:
            wire.send(message)
            refused = refusal_of(wire)
            assert (refused.code, refused.field) == (CloseCode.BAD_MESSAGE, field)
    assert httpx.get(f"{gateway.http}/healthz").status_code == 200


def test_what_a_node_says_of_another_nodes_gpu_is_not_taken(gateway: GatewayProcess) -> None:
    mine, theirs = make_gpu(), make_gpu()
    for gpu in (mine, theirs):
        controls.submit_clock_range(
            gpu=gpu,
            min_mhz=1200,
            max_mhz=1400,
            ends_at=timezone.now() + timedelta(hours=1),
            reason="t",
            user=make_user(),
            idempotency_key=None,
            now=timezone.now(),
        )
    key, _ = enrolled(mine.node)
    with Wire(gateway, key) as wire:
        wire.receive()
        observation = {"control": "clock_range", "version": 1, "state": "applied", "observed": {}, "detail": "", "at": 1.0, "sequence": 1}
        wire.send({"type": "observed", "controls": [{**observation, "gpu_uuid": theirs.uuid}, {**observation, "gpu_uuid": mine.uuid}]})
        until(lambda: ObservedControl.objects.exists())
    assert [row.gpu_uuid for row in ObservedControl.objects.all()] == [mine.uuid]


def test_more_messages_than_an_agent_has_to_say_close_the_socket(gateway: GatewayProcess) -> None:
    key, _ = enrolled(make_node())
    with Wire(gateway, key) as wire:
        wire.receive()
        with contextlib.suppress(ConnectionClosed):
            for _ in range(1000):
                wire.send({"type": "ack", "version": 1, "code": "", "detail": ""})
        assert refusal_of(wire).code == CloseCode.BAD_MESSAGE


# Documents.


def lock_clocks(gpu: Gpu, *, seconds: float = 3600, low: int = 1200) -> None:
    now = timezone.now()
    controls.submit_clock_range(
        gpu=gpu, min_mhz=low, max_mhz=1400, ends_at=now + timedelta(seconds=seconds), reason="test", user=make_user(), idempotency_key=None, now=now
    )


def test_a_control_travels_to_the_hardware_is_read_back_and_ends_by_itself(gateway: GatewayProcess) -> None:
    gpu = make_gpu()
    key, enrolment_of_node = enrolled(gpu.node)
    with RunningAgent(key, enrolment_of_node, Hardware([gpu.uuid])) as running:
        until(lambda: AgentConnection.objects.filter(node=gpu.node, connected=True).exists())
        lock_clocks(gpu, seconds=6)
        observed = until(lambda: ObservedControl.objects.filter(gpu_uuid=gpu.uuid, state="applied").first())
        assert (observed.observed["sm_mhz"], observed.version) == (1400, 1)
        assert running.hardware.locks == {gpu.uuid: (1200, 1400)}
        until(lambda: ObservedControl.objects.filter(gpu_uuid=gpu.uuid, state="ended").exists())
        assert running.hardware.locks == {}
        assert running.hardware.acts == [("set", gpu.uuid), ("reset", gpu.uuid)]
        until(lambda: AgentConnection.objects.filter(node=gpu.node, applied_version=1, refusal="").exists())


def test_reports_reach_the_inventory_and_are_kept(gateway: GatewayProcess) -> None:
    node = make_node()
    key, enrolment_of_node = enrolled(node)
    gpu_uuid = "GPU-11111111-2222-3333-4444-555555555555"
    with RunningAgent(key, enrolment_of_node, Hardware([gpu_uuid])):
        until(lambda: AgentConnection.objects.filter(node=node, report__has_keys=["inventory", "health"]).exists())
        until(lambda: Gpu.objects.filter(uuid=gpu_uuid, node=node).exists())
        assert Node.objects.get(pk=node.pk).driver_version == "570.133.20"


def test_a_document_waits_for_its_node_and_only_the_newest_is_sent(gateway: GatewayProcess) -> None:
    gpu = make_gpu()
    key, _ = enrolled(gpu.node)
    lock_clocks(gpu)
    lock_clocks(gpu, low=1000)
    with Wire(gateway, key) as wire:
        welcome, document = wire.receive(), wire.receive()
        assert isinstance(welcome, Welcome)
        assert isinstance(document, SignedDocument)
        assert (welcome.newest_version, document.version) == (2, 2)
        state = verify_document(
            document,
            trusted_keys=(signing.public_key(),),
            target_kind="node",
            target_key=str(gpu.node_id),
            newest_version=1,
            now=timezone.now().timestamp(),
        )
        assert state.controls[0].layers[0].parameters["min_mhz"] == 1000
        wire.send({"type": "ack", "version": 2, "code": "", "detail": ""})
        wire.send({"type": "fetch", "have_version": 2})
        assert wire.receive().type == "no_document"
    with Wire(gateway, key, have_version=2) as wire:
        wire.receive()
        wire.send({"type": "fetch", "have_version": 2})
        assert wire.receive().type == "no_document"


def test_a_refused_document_is_kept_with_its_reason(gateway: GatewayProcess) -> None:
    gpu = make_gpu()
    key, _ = enrolled(gpu.node)
    lock_clocks(gpu)
    with Wire(gateway, key) as wire:
        wire.receive()
        wire.receive()
        wire.send({"type": "ack", "version": 1, "code": "bad_signature", "detail": "The document's signature is wrong."})
        until(lambda: AgentConnection.objects.filter(node=gpu.node, refusal="bad_signature: The document's signature is wrong.").exists())


def test_a_wake_that_redis_lost_is_made_up_for(gateway: GatewayProcess) -> None:
    gpu = make_gpu()
    key, _ = enrolled(gpu.node)
    with Wire(gateway, key) as wire:
        wire.receive()
        gateway.redis.shut()
        with beating(wire):
            lock_clocks(gpu)
            assert isinstance(wire.receive(30), SignedDocument)


def test_postgresql_away_keeps_sockets_and_what_they_said(gateway: GatewayProcess) -> None:
    gpu = make_gpu()
    lock_clocks(gpu)
    key, _ = enrolled(gpu.node)
    with Wire(gateway, key) as wire:
        wire.receive()
        assert isinstance(wire.receive(), SignedDocument)
        until(lambda: AgentConnection.objects.filter(node=gpu.node, connected=True).exists())
        gateway.postgres.shut()
        wire.send({"type": "heartbeat", "at": 1.0, "boot_id": "b", "clock_offset_seconds": 7.5, "applied_version": 1})
        observation = {"control": "clock_range", "version": 1, "state": "applied", "observed": {}, "detail": "", "at": 1.0, "sequence": 1}
        wire.send({"type": "observed", "controls": [{**observation, "gpu_uuid": gpu.uuid}]})
        until(lambda: gateway.metrics()["masthead_gateway_database_away"] == 1)
        with Wire(gateway, Ed25519PrivateKey.generate()) as late:
            assert refusal_of(late).code == CloseCode.TRY_LATER
        assert httpx.post(f"{gateway.http}/enrol", content=request_body()).status_code == 503
        gateway.postgres.reopen()
        until(lambda: ObservedControl.objects.filter(gpu_uuid=gpu.uuid, state="applied").exists())
        until(lambda: AgentConnection.objects.filter(node=gpu.node, clock_offset_seconds=7.5).exists())
        wire.send({"type": "fetch", "have_version": 1})
        assert wire.receive().type == "no_document"


def test_an_agent_comes_back_by_itself_after_the_gateway_died(gateway: GatewayProcess) -> None:
    gpu = make_gpu()
    key, enrolment_of_node = enrolled(gpu.node)
    with RunningAgent(key, enrolment_of_node, Hardware([gpu.uuid])) as running:
        until(lambda: AgentConnection.objects.filter(node=gpu.node, connected=True).exists())
        gateway.kill()
        lock_clocks(gpu)
        gateway.start()
        until(lambda: running.hardware.locks)
        until(lambda: ObservedControl.objects.filter(gpu_uuid=gpu.uuid, state="applied").exists())


@contextlib.contextmanager
def beating(wire: Wire) -> Iterator[None]:
    """Heartbeats as long as the block lasts, so that the gateway does not take the socket for dead."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(1):
            wire.send({"type": "heartbeat", "at": 1.0, "boot_id": "b", "clock_offset_seconds": 0.0, "applied_version": 0})

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def request_body() -> bytes:
    key = Ed25519PrivateKey.generate()
    return EnrolRequest("token", public_bytes(key), key.sign(enrolment_statement("token")), "test").to_bytes()
