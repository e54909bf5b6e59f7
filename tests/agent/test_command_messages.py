"""Messages and bodies of commands: what is written is read again, what is bad is refused with the field named, and nothing else ever happens."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.protocol import (
    CommandAck,
    CommandBody,
    CommandCode,
    CommandError,
    CommandState,
    CommandUpdate,
    GpuFacts,
    ProtocolError,
    SignedCancel,
    SignedCommand,
    SliceFacts,
    layout_hash,
    layout_hash_of,
    parse_agent_message,
    parse_gateway_message,
    verify_cancel,
    verify_command,
)
from agent.protocol.command import CancelBody
from tests.agent.documents import CONSOLE, CONSOLE_KEY, NODE, T0
from tests.agent.orders import cancel_of, order

UPDATE = CommandUpdate(7, CommandState.RUNNING, "", "3 gone", T0, 9, {"gone": 3, "cordoned": True}, ("tenant-a/llm-0: disruption budget llm",), "a\n\tb\n")
COMMAND = order(7, parameters={"deadline_seconds": 60}, boot_id="boot-1", mig_layout="off")
GATEWAY: list[Any] = [COMMAND, cancel_of(7), CommandAck(7, 9)]


def test_what_is_written_is_read_again() -> None:
    assert parse_agent_message(json.dumps(UPDATE.to_json())) == UPDATE
    for message in GATEWAY:
        assert parse_gateway_message(json.dumps(message.to_json())) == message
    body = verify_command(COMMAND, trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert CommandBody.from_bytes(body.to_bytes()) == body
    assert body.parameters == {"deadline_seconds": 60}
    cancel = verify_cancel(cancel_of(7), trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert CancelBody.from_bytes(cancel.to_bytes()) == cancel


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", 0),
        ("state", "melted"),
        ("code", "x" * 41),
        ("detail", "two\nlines"),
        ("progress", {"gone": [1]}),
        ("progress", {"gone": float("nan")}),
        ("blocked", ["x"] * 21),
        ("blocked", ["x" * 201]),
        ("output", "x" * 16_385),
        ("output", "é" * 8193),
        ("output", "nul \x00"),
        ("at", "now"),
        ("sequence", -1),
    ],
)
def test_a_bad_field_of_an_update_is_named(field: str, value: object) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_agent_message(json.dumps(UPDATE.to_json() | {field: value}))
    assert caught.value.field.startswith(field) or "NaN" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("id", "not-a-uuid"),
        ("id", "AAAAAAAA-0000-0000-0000-000000000001"),
        ("target", 1.5),
        ("kind", ""),
        ("node", "7"),
        ("gpu_uuid", None),
        ("parameters", {"deep": {"er": 1}}),
        ("preconditions", {"boot_id": "b"}),
        ("preconditions", {"boot_id": "b", "mig_layout": "x" * 17}),
        ("issued_at", True),
        ("not_after", 1e12),
        ("sequence", 0),
        ("extra", 1),
    ],
)
def test_a_bad_field_of_a_body_is_named_and_the_order_refused(field: str, value: object) -> None:
    values = json.loads(COMMAND.body) | {field: value}
    body = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(ProtocolError) as caught:
        CommandBody.from_bytes(body)
    assert caught.value.field.startswith(field)
    signed = SignedCommand(7, body, CONSOLE.sign(b"masthead-command-v1\0" + body), COMMAND.key_id)
    with pytest.raises(CommandError, match=field) as refused:
        verify_command(signed, trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert refused.value.code == CommandCode.MALFORMED


def test_orders_cancels_and_documents_are_never_taken_for_each_other() -> None:
    cancel = cancel_of(7)
    with pytest.raises(CommandError) as caught:
        verify_command(SignedCommand(7, cancel.body, cancel.signature, cancel.key_id), trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert caught.value.code == CommandCode.BAD_SIGNATURE
    with pytest.raises(CommandError) as caught:
        verify_cancel(SignedCancel(7, COMMAND.body, COMMAND.signature, COMMAND.key_id), trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert caught.value.code == CommandCode.BAD_SIGNATURE
    plain = SignedCommand(7, COMMAND.body, CONSOLE.sign(COMMAND.body), COMMAND.key_id)
    with pytest.raises(CommandError) as caught:
        verify_command(plain, trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert caught.value.code == CommandCode.BAD_SIGNATURE


def test_two_pinned_keys_serve_while_one_follows_the_other() -> None:
    new = Ed25519PrivateKey.generate()
    keys = (CONSOLE_KEY, new.public_key().public_bytes_raw())
    assert verify_command(order(1, key=new), trusted_keys=keys, node_id=NODE).target == 1
    with pytest.raises(CommandError) as caught:
        verify_command(order(1, key=new), trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    assert caught.value.code == CommandCode.UNKNOWN_KEY


def test_a_body_that_is_too_long_is_not_signed() -> None:
    with pytest.raises(ValueError, match="more than"):
        order(1, parameters={f"p{number}": "x" * 300 for number in range(60)})


def test_the_layout_hash_is_of_profiles_and_starts_alone() -> None:
    def gpu(*slices: SliceFacts, enabled: bool | None = True) -> GpuFacts:
        return GpuFacts("GPU-1", 0, "00000000:19:00.0", mig_enabled=enabled, slices=slices)

    one, two = SliceFacts(1, 0, "4g.40gb", 0, 4, "MIG-1"), SliceFacts(2, 0, "3g.40gb", 4, 4, "MIG-2")
    assert layout_hash(gpu(one, two)) == layout_hash(gpu(two, one)) == layout_hash_of([("4g.40gb", 0), ("3g.40gb", 4)])
    assert len(layout_hash(gpu(one, two))) == 16
    assert layout_hash(gpu(one, two)) == layout_hash(gpu(SliceFacts(5, 0, "4g.40gb", 0, 4, "MIG-9"), two))
    assert layout_hash(gpu(one)) != layout_hash(gpu(one, two)) != layout_hash(gpu())
    assert layout_hash(gpu(enabled=False)) == "off"
    assert layout_hash(GpuFacts("GPU-1", 0, "x", mig_enabled=True, slices=None)) == ""


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


def refused_field(parse: Callable[[], object]) -> str | None:
    """The first part of the path of the field that was refused, None when nothing was."""
    try:
        parse()
    except ProtocolError as error:
        return error.field.split(".")[0].split("[")[0]
    return None


@settings(max_examples=150, deadline=None)
@given(message=st.sampled_from([UPDATE, *GATEWAY]), field=st.integers(0, 20), value=_JSON, gone=st.booleans())
def test_whatever_a_field_holds_the_message_is_read_or_refused_by_name(message: Any, field: int, value: object, gone: bool) -> None:
    values = message.to_json()
    name = sorted(values)[field % len(values)]
    if gone:
        del values[name]
    else:
        values[name] = value
    parse = parse_agent_message if message is UPDATE else parse_gateway_message
    assert refused_field(lambda: parse(json.dumps(values))) in (None, name, "", "type")


@settings(max_examples=150, deadline=None)
@given(field=st.integers(0, 20), value=_JSON, gone=st.booleans())
def test_whatever_a_body_holds_it_is_read_or_refused_by_name(field: int, value: object, gone: bool) -> None:
    values = json.loads(COMMAND.body)
    name = sorted(values)[field % len(values)]
    if gone:
        del values[name]
    else:
        values[name] = value
    assert refused_field(lambda: CommandBody.from_bytes(json.dumps(values).encode())) in (None, name, "")


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_body(data: bytes) -> None:
    message = SignedCommand(7, data or b"x", CONSOLE.sign(b"masthead-command-v1\0" + (data or b"x")), COMMAND.key_id)
    with pytest.raises(CommandError):
        verify_command(message, trusted_keys=(CONSOLE_KEY,), node_id=NODE)
    values = COMMAND.to_json() | {"body": base64.b64encode(data).decode()}
    assert refused_field(lambda: parse_gateway_message(json.dumps(values))) in (None, "body")
