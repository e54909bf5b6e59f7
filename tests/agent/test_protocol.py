"""Messages and documents: what is written is read again, what is bad is refused with the field named, and nothing else ever happens."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.protocol import (
    Ack,
    Auth,
    Bundle,
    Challenge,
    Condition,
    DesiredState,
    DocumentError,
    DriverMismatch,
    EnrolAnswer,
    EnrolRequest,
    EnrolStatus,
    EventAck,
    Fetch,
    GpuCondition,
    GpuFacts,
    HealthReport,
    Heartbeat,
    InventoryReport,
    LocalEvent,
    NodeFacts,
    NoDocument,
    Observation,
    ObservedReport,
    ObservedState,
    ProtocolError,
    Refusal,
    Resend,
    Sharing,
    SignedDocument,
    SliceFacts,
    SwitchState,
    SwitchUpdate,
    Welcome,
    WorkloadFacts,
    fingerprint_of,
    parse_agent_message,
    parse_gateway_message,
    verify_document,
)
from agent.protocol.wire import dump_canonical, load_object
from tests.agent.documents import CONSOLE_KEY, SWITCH_ID, T0, A, control, document, layer, signed_switch

INVENTORY = InventoryReport(
    at=T0,
    node=NodeFacts("570.133.20", "12.8", "v1.31.2", 2, {"devices": ["GPU0"], "links": {"GPU0": {"GPU0": "X"}}, "numa": {"GPU0": 0}, "cpus": {"GPU0": "0-31"}}),
    gpus=(
        GpuFacts(
            A, 0, "00000000:3B:00.0", "165", "NVIDIA H100", 85_520_809_984, 350.5, 0, True, True, Sharing.MIG, (SliceFacts(7, 0, "1g.10gb", 0, 1, "MIG-1"),)
        ),
        GpuFacts("GPU-b", 1, "00000000:86:00.0"),
    ),
    complete=True,
    gpu_count=2,
    workloads=(WorkloadFacts(A, 7, "tenant-a", "llm-0", "triton", Sharing.MIG),),
)
AGENT_MESSAGES: list[Any] = [
    Auth(bytes(32), bytes(64), "0.1.0", 3),
    Heartbeat(T0, "boot", -0.25, 3),
    INVENTORY,
    HealthReport(T0, (GpuCondition(A, 0, Condition.LOST, "gone"), GpuCondition("", None, Condition.UNKNOWN)), DriverMismatch("1", "2"), "no"),
    Fetch(4),
    Ack(3, "expired", "too late"),
    ObservedReport((Observation(A, "clock_range", 3, ObservedState.DRIFTED, {"sm_mhz": 1980, "idle": False, "why": None}, "", T0, 9),)),
    SwitchUpdate(SWITCH_ID, 2, SwitchState.PENDING, 3, None, "no API server", T0, 4),
    LocalEvent(SWITCH_ID, "evicted", T0, "tenant-a/llm-0", {"reason": "reservation", "used_bytes": 12}),
]
GATEWAY_MESSAGES: list[Any] = [
    Challenge(bytes(32)),
    Welcome(7, 10.0, T0, 3),
    document(3, control(layer())),
    NoDocument(3),
    Resend(),
    Refusal(4400, "bad", "type"),
    signed_switch(),
    EventAck((SWITCH_ID,)),
]


@pytest.mark.parametrize("message", AGENT_MESSAGES, ids=lambda message: message.type)
def test_what_an_agent_writes_the_gateway_reads(message: Any) -> None:
    assert parse_agent_message(json.dumps(message.to_json())) == message


@pytest.mark.parametrize("message", GATEWAY_MESSAGES, ids=lambda message: message.type)
def test_what_the_gateway_writes_an_agent_reads(message: Any) -> None:
    assert parse_gateway_message(json.dumps(message.to_json())) == message


def test_documents_bundles_and_enrolments_are_read_as_written() -> None:
    signed = document(3, control(layer()))
    state = DesiredState.from_bytes(signed.body)
    assert state.to_bytes() == signed.body
    bundle = Bundle("wss://gateway.example/agent", "token", CONSOLE_KEY, fingerprint_of(CONSOLE_KEY))
    assert Bundle.decode(bundle.encode()) == bundle
    assert Bundle.decode(f"  {bundle.encode()[:40]}\n{bundle.encode()[40:]}\n") == bundle
    request = EnrolRequest("token", bytes(32), bytes(64), "0.1.0")
    assert EnrolRequest.from_bytes(request.to_bytes()) == request
    answer = EnrolAnswer(EnrolStatus.WAITING, 7)
    assert EnrolAnswer.from_bytes(json.dumps(answer.to_json()).encode()) == answer


def test_a_bundle_whose_key_was_exchanged_is_refused() -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(ProtocolError, match=r"bundle\.fingerprint"):
        Bundle.decode(Bundle("wss://g/agent", "token", other, fingerprint_of(CONSOLE_KEY)).encode())
    with pytest.raises(ProtocolError, match="bundle"):
        Bundle.decode("é")


def changed(message: Any, path: str, value: Any) -> str:
    values = json.loads(json.dumps(message.to_json()))
    *way, last = path.split("/")
    spot = values
    for step in way:
        spot = spot[int(step) if step.isdigit() else step]
    if value is KeyError:
        del spot[last]
    else:
        spot[last] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("message", "path", "value", "field"),
    [
        (AGENT_MESSAGES[0], "public_key", "!!!", "public_key"),
        (AGENT_MESSAGES[0], "signature", "AAAA", "signature"),
        (AGENT_MESSAGES[0], "protocol", 2, "protocol"),
        (AGENT_MESSAGES[0], "agent_version", KeyError, "agent_version"),
        (AGENT_MESSAGES[1], "at", "now", "at"),
        (AGENT_MESSAGES[1], "at", True, "at"),
        (AGENT_MESSAGES[1], "at", 10**400, "at"),
        (AGENT_MESSAGES[1], "boot_id", "", "boot_id"),
        (AGENT_MESSAGES[1], "node_id", 3, "node_id"),
        (AGENT_MESSAGES[2], "gpus/0/uuid", "a\u0000b", "gpus[0].uuid"),
        (AGENT_MESSAGES[2], "gpus/0/uuid", "\ud800", "gpus[0].uuid"),
        (AGENT_MESSAGES[2], "gpus/0/slices/0/start", 8, "gpus[0].slices[0].start"),
        (AGENT_MESSAGES[2], "gpus/0/slices/0/size", 1.5, "gpus[0].slices[0].size"),
        (AGENT_MESSAGES[2], "gpus/1/index", 2**70, "gpus[1].index"),
        (AGENT_MESSAGES[2], "gpus", {}, "gpus"),
        (AGENT_MESSAGES[2], "workloads/0/sharing", "best_effort", "workloads[0].sharing"),
        (AGENT_MESSAGES[2], "node/topology", [], "node.topology"),
        (AGENT_MESSAGES[2], "node/topology", {"a": "x" * 200_000}, "node.topology"),
        (AGENT_MESSAGES[2], "node/hostname", "n", "node.hostname"),
        (AGENT_MESSAGES[3], "gpus/0/condition", "fine", "gpus[0].condition"),
        (AGENT_MESSAGES[6], "controls/0/observed", {"a": {"b": 1}}, "controls[0].observed.a"),
        (AGENT_MESSAGES[6], "controls/0/observed", {"a\nb": 1}, "controls[0].observed.name"),
        (AGENT_MESSAGES[6], "controls/0/observed", {str(n): n for n in range(41)}, "controls[0].observed"),
    ],
)
def test_a_bad_field_is_named(message: Any, path: str, value: Any, field: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_agent_message(changed(message, path, value))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", '"text"', "{", "NaN", '{"type": NaN}', '{"type": Infinity}', "[" * 100_000, '{"a":1,"a":2}', "\ud800", "1e999"]
)
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_agent_message(text)


def test_size_is_looked_at_before_anything_is_parsed() -> None:
    with pytest.raises(ProtocolError, match="more than 10"):
        load_object(b"[" * 11, limit=10)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["GPU-1", "applied", "AAAA", "heartbeat"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def paths_of(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [at] if at else []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += paths_of(item, (*at, key))
    return found


@given(data=st.data(), message=st.sampled_from(AGENT_MESSAGES + GATEWAY_MESSAGES), value=json_values)
@settings(max_examples=400, deadline=None)
def test_a_message_with_anything_in_any_place_is_read_or_refused(data: st.DataObject, message: Any, value: Any) -> None:
    """Whatever stands in whichever field: a message, or a ProtocolError. What is accepted can be stored: it is finite and printable."""
    values = json.loads(json.dumps(message.to_json()))
    path = data.draw(st.sampled_from(paths_of(values)))
    spot = values
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    parse: Any = parse_agent_message if message in AGENT_MESSAGES else parse_gateway_message
    try:
        accepted = parse(json.dumps(values))
    except ProtocolError:
        return
    text = dump_canonical(accepted.to_json())
    assert b"\\u0000" not in text
    assert b"\\ud8" not in text


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=300, deadline=None)
def test_raw_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (parse_agent_message, parse_gateway_message, EnrolRequest.from_bytes, EnrolAnswer.from_bytes, DesiredState.from_bytes):
        with pytest.raises(ProtocolError):
            parse(data)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_one_changed_byte_of_a_document_is_never_believed(data: st.DataObject) -> None:
    signed = document(3, control(layer()))
    place = data.draw(st.integers(0, len(signed.body) - 1))
    body = bytearray(signed.body)
    body[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DocumentError) as refused:
        verify_document(
            SignedDocument(3, bytes(body), signed.signature, signed.key_id),
            trusted_keys=(CONSOLE_KEY,),
            target_kind="node",
            target_key="7",
            newest_version=0,
            now=T0,
        )
    assert refused.value.code == "bad_signature"
