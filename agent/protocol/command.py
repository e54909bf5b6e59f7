"""One-shot commands: the signed order to one target, its cancel, and what the agent says of it.

The bytes that are signed are canonical JSON behind a context of their own, so that an order is never taken for a document or for a cancel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agent.protocol.document import key_id_of
from agent.protocol.inventory import GpuFacts, SliceFacts
from agent.protocol.wire import ProtocolError, Reader, dump_canonical, encode_bytes, load_object

FORMAT = 1
MAX_BODY_BYTES = 16 * 1024
MAX_OUTPUT_BYTES = 16 * 1024
MAX_BLOCKED = 20
MAX_BLOCKED_LENGTH = 200
MAX_DETAIL = 300
_COMMAND_CONTEXT = b"masthead-command-v1\0"
_CANCEL_CONTEXT = b"masthead-cancel-v1\0"
_LAYOUT_OFF = "off"


class CommandError(Exception):
    """An order or a cancel is refused. `code`: unknown_key, bad_signature, malformed, wrong_target."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class CommandState(StrEnum):
    """How an agent stands with a command. The last five are final."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (CommandState.ACCEPTED, CommandState.RUNNING)


class CommandCode(StrEnum):
    """Why a command ended as it did; "" where the state says it all. On the wire it is text: a later agent may know more of them."""

    NONE = ""
    NOT_PRESENT = "not_present"
    PRECONDITION = "precondition"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    UNKNOWN_KIND = "unknown_kind"
    BAD_PARAMETERS = "bad_parameters"
    PHY = "phy"
    PARTIAL = "partial"
    TIMEOUT = "timeout"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"
    HARDWARE = "hardware"
    CLUSTER = "cluster"
    NEEDS_CONFIRMATION = "needs_confirmation"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"
    WRONG_TARGET = "wrong_target"


def layout_hash(gpu: GpuFacts) -> str:
    """What a command's precondition `mig_layout` is compared with. "" when the GPU could not be asked for its slices."""
    if gpu.mig_enabled is False:
        return _LAYOUT_OFF
    return "" if gpu.slices is None else layout_hash_of((found.profile, found.start) for found in gpu.slices)


def layout_hash_of(slices: Iterable[tuple[str, int]]) -> str:
    """16 hex digits for the (profile, start) of a GPU's live instances; MIG that is off is "off"."""
    text = ",".join(f"{profile}@{start}" for profile, start in sorted(slices, key=lambda found: (found[1], found[0])))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def slice_at(gpus: Iterable[GpuFacts], mig_uuid: str) -> tuple[GpuFacts, SliceFacts] | None:
    """The live slice with this UUID and its GPU."""
    return next(((gpu, found) for gpu in gpus for found in gpu.slices or () if found.mig_uuid == mig_uuid), None)


@dataclass(frozen=True)
class Preconditions:
    """What must still be so when the command begins. "" does not matter."""

    boot_id: str = ""
    mig_layout: str = ""

    @classmethod
    def parse(cls, reader: Reader) -> Preconditions:
        found = cls(boot_id=reader.text("boot_id", longest=64, empty=True), mig_layout=reader.text("mig_layout", longest=16, empty=True))
        reader.done()
        return found


@dataclass(frozen=True)
class CommandBody:
    """The order to one target. `id` is the command's UUID, `target` the id of this target in the console, `node` the node's id there.

    `gpu_uuid` "" is the whole node. Times are Unix seconds of the console's clock; nothing begins after `not_after`.
    `sequence` rises with every command to the node. `reaches_phy`: two others said so for this very act (break-glass); nothing else reaches PHY.
    """

    id: str
    target: int
    kind: str
    node: int
    gpu_uuid: str
    parameters: dict[str, int | float | str | bool | None]
    issued_at: float
    not_after: float
    sequence: int
    preconditions: Preconditions = field(default_factory=Preconditions)
    reaches_phy: bool = False

    @classmethod
    def from_bytes(cls, body: bytes) -> CommandBody:
        """Raises ProtocolError naming the bad field."""
        reader = Reader(load_object(body, limit=MAX_BODY_BYTES))
        reader.integer("format", low=FORMAT, high=FORMAT)
        found = cls(
            id=_uuid(reader, "id"),
            target=reader.integer("target", low=1),
            kind=reader.text("kind", longest=40),
            node=reader.integer("node", low=1),
            gpu_uuid=reader.text("gpu_uuid", longest=64, empty=True),
            parameters=reader.scalars("parameters"),
            issued_at=reader.number("issued_at", low=0, high=1e11),
            not_after=reader.number("not_after", low=0, high=1e11),
            sequence=reader.integer("sequence", low=1),
            preconditions=Preconditions.parse(reader.child("preconditions")),
            reaches_phy=reader.boolean("reaches_phy"),
        )
        reader.done()
        return found

    def to_bytes(self) -> bytes:
        """The canonical bytes that are signed."""
        return dump_canonical({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True)
class CancelBody:
    """Ends the command for one target at the next step; what was done stays done."""

    id: str
    target: int
    node: int
    issued_at: float

    @classmethod
    def from_bytes(cls, body: bytes) -> CancelBody:
        """Raises ProtocolError naming the bad field."""
        reader = Reader(load_object(body, limit=MAX_BODY_BYTES))
        reader.integer("format", low=FORMAT, high=FORMAT)
        found = cls(
            id=_uuid(reader, "id"),
            target=reader.integer("target", low=1),
            node=reader.integer("node", low=1),
            issued_at=reader.number("issued_at", low=0, high=1e11),
        )
        reader.done()
        return found

    def to_bytes(self) -> bytes:
        """The canonical bytes that are signed."""
        return dump_canonical({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True)
class SignedCommand:
    """The exact signed bytes, as the gateway relays them. `target` is a hint; the body's own counts."""

    type: ClassVar[str] = "command"
    target: int
    body: bytes
    signature: bytes
    key_id: str

    @classmethod
    def parse(cls, reader: Reader) -> SignedCommand:
        return cls(*_envelope(reader))

    def to_json(self) -> dict[str, Any]:
        return _envelope_json(self)


@dataclass(frozen=True)
class SignedCancel:
    """As SignedCommand, for a cancel."""

    type: ClassVar[str] = "cancel"
    target: int
    body: bytes
    signature: bytes
    key_id: str

    @classmethod
    def parse(cls, reader: Reader) -> SignedCancel:
        return cls(*_envelope(reader))

    def to_json(self) -> dict[str, Any]:
        return _envelope_json(self)


@dataclass(frozen=True)
class CommandUpdate:
    """How the agent stands with a target. A higher `sequence` replaces a lower one; it rises over restarts too. Repeated until acknowledged.

    `blocked`: what keeps the command from going on, one text each. `output`: text of several lines, at most 16 KiB.
    """

    type: ClassVar[str] = "command_update"
    target: int
    state: CommandState
    code: str
    detail: str
    at: float
    sequence: int
    progress: dict[str, int | float | str | bool | None] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    output: str = ""

    @classmethod
    def parse(cls, reader: Reader) -> CommandUpdate:
        found = cls(
            target=reader.integer("target", low=1),
            state=reader.choice("state", CommandState),
            code=reader.text("code", longest=40, empty=True),
            detail=reader.text("detail", longest=MAX_DETAIL, empty=True),
            at=reader.number("at", low=0, high=1e11),
            sequence=reader.integer("sequence", low=1),
            progress=reader.scalars("progress"),
            blocked=reader.texts("blocked", most=MAX_BLOCKED, longest=MAX_BLOCKED_LENGTH),
            output=reader.lines("output", most_bytes=MAX_OUTPUT_BYTES),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class CommandAck:
    """The console has stored the update with this `sequence`, or a later one of the target."""

    type: ClassVar[str] = "command_ack"
    target: int
    sequence: int

    @classmethod
    def parse(cls, reader: Reader) -> CommandAck:
        found = cls(target=reader.integer("target", low=1), sequence=reader.integer("sequence", low=1))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


def sign_command(body: CommandBody, private_key: Ed25519PrivateKey) -> SignedCommand:
    """Raises ValueError when the body is too long or has a number that is not finite."""
    data, signature, key_id = _sign(_COMMAND_CONTEXT, body.to_bytes(), private_key)
    return SignedCommand(target=body.target, body=data, signature=signature, key_id=key_id)


def sign_cancel(body: CancelBody, private_key: Ed25519PrivateKey) -> SignedCancel:
    data, signature, key_id = _sign(_CANCEL_CONTEXT, body.to_bytes(), private_key)
    return SignedCancel(target=body.target, body=data, signature=signature, key_id=key_id)


def verify_command(message: SignedCommand, *, trusted_keys: tuple[bytes, ...], node_id: int) -> CommandBody:
    """The order inside `message`, signed by a trusted raw Ed25519 key for this node. Raises CommandError. Expiry is the executor's matter."""
    _verify(_COMMAND_CONTEXT, message, trusted_keys)
    try:
        body = CommandBody.from_bytes(message.body)
    except ProtocolError as error:
        raise CommandError("malformed", f"The command cannot be read: {error}") from error
    _check_target(message.target, body.target, body.node, node_id)
    return body


def verify_cancel(message: SignedCancel, *, trusted_keys: tuple[bytes, ...], node_id: int) -> CancelBody:
    """As verify_command."""
    _verify(_CANCEL_CONTEXT, message, trusted_keys)
    try:
        body = CancelBody.from_bytes(message.body)
    except ProtocolError as error:
        raise CommandError("malformed", f"The cancel cannot be read: {error}") from error
    _check_target(message.target, body.target, body.node, node_id)
    return body


def _uuid(reader: Reader, name: str) -> str:
    text = reader.text(name, longest=36)
    try:
        if str(UUID(text)) != text:
            raise ValueError
    except ValueError:
        raise ProtocolError(reader.at(name), "is not a UUID in lower case") from None
    return text


def _envelope(reader: Reader) -> tuple[int, bytes, bytes, str]:
    found = (
        reader.integer("target", low=1),
        reader.binary("body", shortest=1, longest=MAX_BODY_BYTES),
        reader.binary("signature", shortest=64, longest=64),
        reader.text("key_id", longest=16),
    )
    reader.done()
    return found


def _envelope_json(message: SignedCommand | SignedCancel) -> dict[str, Any]:
    return {
        "type": message.type,
        "target": message.target,
        "body": encode_bytes(message.body),
        "signature": encode_bytes(message.signature),
        "key_id": message.key_id,
    }


def _sign(context: bytes, body: bytes, private_key: Ed25519PrivateKey) -> tuple[bytes, bytes, str]:
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"the body has {len(body)} bytes, more than {MAX_BODY_BYTES}")
    return body, private_key.sign(context + body), key_id_of(private_key.public_key().public_bytes_raw())


def _verify(context: bytes, message: SignedCommand | SignedCancel, trusted_keys: tuple[bytes, ...]) -> None:
    key = next((key for key in trusted_keys if key_id_of(key) == message.key_id), None)
    if key is None:
        raise CommandError("unknown_key", f"The {message.type} is signed by key {message.key_id}, which is not pinned here.")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(message.signature, context + message.body)
    except InvalidSignature:
        raise CommandError("bad_signature", f"The signature of the {message.type} is wrong.") from None


def _check_target(hint: int, target: int, node: int, node_id: int) -> None:
    if node != node_id:
        raise CommandError("wrong_target", f"It is for node {node}, not for node {node_id}.")
    if hint != target:
        raise CommandError("wrong_target", f"It was sent as target {hint}, and is for target {target}.")
