"""Messages of the socket between agent and gateway: one JSON object a WebSocket text message, told apart by `type`.

No message of an agent names a node: the socket is the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any, ClassVar

from agent.protocol.command import CommandAck, CommandUpdate, SignedCancel, SignedCommand
from agent.protocol.document import SignedDocument
from agent.protocol.health import HealthReport
from agent.protocol.inventory import InventoryReport
from agent.protocol.switch import EventAck, LocalEvent, SignedSwitch, SwitchUpdate
from agent.protocol.wire import ProtocolError, Reader, encode_bytes, load_object

PROTOCOL_VERSION = 1
MAX_OBSERVATIONS = 1000


class CloseCode(IntEnum):
    """Why the gateway closed a socket. An agent dials again after all of them, later after the first three."""

    BAD_MESSAGE = 4400
    NOT_AUTHENTICATED = 4401
    REVOKED = 4403
    TOO_SLOW = 4408
    REPLACED = 4409
    TRY_LATER = 1013


def authentication_statement(nonce: bytes) -> bytes:
    """What an agent signs to show that it is the holder of its key, on this connection and no other."""
    return b"masthead-agent-auth-v1\0" + nonce


class ObservedState(StrEnum):
    APPLIED = "applied"
    FAILED = "failed"
    REFUSED = "refused"
    ENDED = "ended"
    DRIFTED = "drifted"


@dataclass(frozen=True)
class Challenge:
    """Gateway's first word: 32 fresh random bytes."""

    type: ClassVar[str] = "challenge"
    nonce: bytes
    protocol: int = PROTOCOL_VERSION

    @classmethod
    def parse(cls, reader: Reader) -> Challenge:
        found = cls(nonce=reader.binary("nonce", shortest=32, longest=32), protocol=reader.integer("protocol", low=1, high=1000))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "nonce": encode_bytes(self.nonce), "protocol": self.protocol}


@dataclass(frozen=True)
class Auth:
    """Agent's answer: its public key and the signature over `authentication_statement(nonce)`. `have_version`: newest document that it holds."""

    type: ClassVar[str] = "auth"
    public_key: bytes
    signature: bytes
    agent_version: str
    have_version: int
    protocol: int = PROTOCOL_VERSION

    @classmethod
    def parse(cls, reader: Reader) -> Auth:
        found = cls(
            public_key=reader.binary("public_key", shortest=32, longest=32),
            signature=reader.binary("signature", shortest=64, longest=64),
            agent_version=reader.text("agent_version", longest=40),
            have_version=reader.integer("have_version"),
            protocol=reader.integer("protocol", low=PROTOCOL_VERSION, high=PROTOCOL_VERSION),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "public_key": encode_bytes(self.public_key),
            "signature": encode_bytes(self.signature),
            "agent_version": self.agent_version,
            "have_version": self.have_version,
            "protocol": self.protocol,
        }


@dataclass(frozen=True)
class Welcome:
    """The socket is node `node_id` from now on. `server_time` (Unix seconds) lets the agent tell its clock's offset."""

    type: ClassVar[str] = "welcome"
    node_id: int
    heartbeat_seconds: float
    server_time: float
    newest_version: int

    @classmethod
    def parse(cls, reader: Reader) -> Welcome:
        found = cls(
            node_id=reader.integer("node_id", low=1),
            heartbeat_seconds=reader.number("heartbeat_seconds", low=0.1, high=3600),
            server_time=reader.number("server_time", low=0, high=1e11),
            newest_version=reader.integer("newest_version"),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class Heartbeat:
    """Sent each `heartbeat_seconds`. `clock_offset_seconds`: agent's clock minus the gateway's, as the agent sees it."""

    type: ClassVar[str] = "heartbeat"
    at: float
    boot_id: str
    clock_offset_seconds: float
    applied_version: int

    @classmethod
    def parse(cls, reader: Reader) -> Heartbeat:
        found = cls(
            at=reader.number("at", low=0, high=1e11),
            boot_id=reader.text("boot_id", longest=64),
            clock_offset_seconds=reader.number("clock_offset_seconds", low=-1e11, high=1e11),
            applied_version=reader.integer("applied_version"),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class Fetch:
    """Agent asks for a document newer than `have_version`."""

    type: ClassVar[str] = "fetch"
    have_version: int

    @classmethod
    def parse(cls, reader: Reader) -> Fetch:
        found = cls(have_version=reader.integer("have_version"))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "have_version": self.have_version}


@dataclass(frozen=True)
class NoDocument:
    """There is none newer than `have_version`."""

    type: ClassVar[str] = "no_document"
    have_version: int

    @classmethod
    def parse(cls, reader: Reader) -> NoDocument:
        found = cls(have_version=reader.integer("have_version"))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "have_version": self.have_version}


@dataclass(frozen=True)
class Ack:
    """The agent journalled document `version` (code ""), or refused it (code and detail of DocumentError)."""

    type: ClassVar[str] = "ack"
    version: int
    code: str
    detail: str

    @classmethod
    def parse(cls, reader: Reader) -> Ack:
        found = cls(
            version=reader.integer("version", low=1),
            code=reader.text("code", longest=40, empty=True),
            detail=reader.text("detail", longest=300, empty=True),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class Observation:
    """What was read back for one control on one GPU, or on the node (`gpu_uuid` ""). `sequence` rises with every observation of an agent, also over restarts."""

    gpu_uuid: str
    control: str
    version: int
    state: ObservedState
    observed: dict[str, int | float | str | bool | None]
    detail: str
    at: float
    sequence: int

    @classmethod
    def parse(cls, reader: Reader) -> Observation:
        found = cls(
            gpu_uuid=reader.text("gpu_uuid", longest=64, empty=True),
            control=reader.text("control", longest=40),
            version=reader.integer("version"),
            state=reader.choice("state", ObservedState),
            observed=reader.scalars("observed"),
            detail=reader.text("detail", longest=300, empty=True),
            at=reader.number("at", low=0, high=1e11),
            sequence=reader.integer("sequence"),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class ObservedReport:
    type: ClassVar[str] = "observed"
    controls: tuple[Observation, ...]

    @classmethod
    def parse(cls, reader: Reader) -> ObservedReport:
        found = cls(controls=reader.items("controls", Observation.parse, most=MAX_OBSERVATIONS))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class Resend:
    """Gateway lost reports while the database was away: send inventory, health and observations again."""

    type: ClassVar[str] = "resend"

    @classmethod
    def parse(cls, reader: Reader) -> Resend:
        reader.done()
        return cls()

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type}


@dataclass(frozen=True)
class Refusal:
    """Why the gateway is about to close; `field` is the bad field's path where there is one."""

    type: ClassVar[str] = "refusal"
    code: int
    message: str
    field: str = ""

    @classmethod
    def parse(cls, reader: Reader) -> Refusal:
        found = cls(
            code=reader.integer("code", low=1000, high=4999),
            message=reader.text("message", longest=500),
            field=reader.text("field", longest=200, empty=True),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


AgentMessage = Auth | Heartbeat | InventoryReport | HealthReport | Fetch | Ack | ObservedReport | SwitchUpdate | LocalEvent | CommandUpdate
GatewayMessage = Challenge | Welcome | SignedDocument | NoDocument | Resend | Refusal | SignedSwitch | EventAck | SignedCommand | SignedCancel | CommandAck

_AGENT: dict[str, Callable[[Reader], AgentMessage]] = {
    kind.type: kind.parse for kind in (Auth, Heartbeat, InventoryReport, HealthReport, Fetch, Ack, ObservedReport, SwitchUpdate, LocalEvent, CommandUpdate)
}
_GATEWAY: dict[str, Callable[[Reader], GatewayMessage]] = {
    kind.type: kind.parse
    for kind in (Challenge, Welcome, SignedDocument, NoDocument, Resend, Refusal, SignedSwitch, EventAck, SignedCommand, SignedCancel, CommandAck)
}


def parse_agent_message(data: str | bytes) -> AgentMessage:
    """Raises ProtocolError naming the bad field."""
    reader = Reader(load_object(data))
    kind = reader.text("type", longest=40)
    parse = _AGENT.get(kind)
    if parse is None:
        raise ProtocolError("type", f"{kind!r} is not a message of an agent")
    return parse(reader)


def parse_gateway_message(data: str | bytes) -> GatewayMessage:
    """Raises ProtocolError naming the bad field."""
    reader = Reader(load_object(data))
    kind = reader.text("type", longest=40)
    parse = _GATEWAY.get(kind)
    if parse is None:
        raise ProtocolError("type", f"{kind!r} is not a message of a gateway")
    return parse(reader)
