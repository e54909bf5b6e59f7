"""Wide switches: one signed document for a whole scope, verified by every agent in it; and what an agent tells of what it did on its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agent.protocol.document import DocumentError, key_id_of
from agent.protocol.wire import ProtocolError, Reader, dump_canonical, encode_bytes, load_object

FORMAT = 1
MAX_SWITCH_BYTES = 4096
MAX_ACK_IDS = 1000
_CONTEXT = b"masthead-switch-v1\0"


class SwitchKind(StrEnum):
    KILL = "kill"
    AUTOMATION_OFF = "automation_off"


class ScopeKind(StrEnum):
    FLEET = "fleet"
    AREA = "area"
    REGION = "region"
    SITE = "site"
    NODE = "node"


def _uuid(reader: Reader, name: str) -> str:
    text = reader.text(name, longest=36)
    try:
        if str(UUID(text)) != text:
            raise ValueError
    except ValueError:
        raise ProtocolError(reader.at(name), "is not a UUID") from None
    return text


@dataclass(frozen=True)
class Switch:
    """One version of a switch. `armed` False releases it. `tenant` and `model` "" mean all; they are for kills only.

    `scope_key` is "" for the fleet, a slug, a site code, or a node's id as text. `ends_at` (Unix seconds) only if who armed it set an end.
    """

    switch: str
    version: int
    kind: SwitchKind
    scope_kind: ScopeKind
    scope_key: str
    armed: bool
    issued_at: float
    ends_at: float | None = None
    tenant: str = ""
    model: str = ""

    @classmethod
    def from_bytes(cls, body: bytes) -> Switch:
        """Raises ProtocolError naming the bad field."""
        reader = Reader(load_object(body, limit=MAX_SWITCH_BYTES))
        reader.integer("format", low=FORMAT, high=FORMAT)
        found = cls(
            switch=_uuid(reader, "switch"),
            version=reader.integer("version", low=1),
            kind=reader.choice("kind", SwitchKind),
            scope_kind=reader.choice("scope_kind", ScopeKind),
            scope_key=reader.text("scope_key", longest=80, empty=True),
            armed=reader.boolean("armed"),
            issued_at=reader.number("issued_at", low=0, high=1e11),
            ends_at=reader.optional("ends_at", lambda name: reader.number(name, low=0, high=1e11)),
            tenant=reader.text("tenant", longest=80, empty=True),
            model=reader.text("model", longest=200, empty=True),
        )
        reader.done()
        if (found.scope_kind is ScopeKind.FLEET) != (found.scope_key == ""):
            raise ProtocolError("scope_key", "is empty for the fleet, and only for it")
        if found.kind is not SwitchKind.KILL and (found.tenant or found.model):
            raise ProtocolError("tenant", "only a kill can be for one tenant or one model")
        return found

    def to_bytes(self) -> bytes:
        """The canonical bytes that are signed."""
        return dump_canonical({"format": FORMAT, **asdict(self)})

    def active(self, now: float) -> bool:
        return self.armed and (self.ends_at is None or now < self.ends_at)


@dataclass(frozen=True)
class SignedSwitch:
    """The exact signed bytes, as the gateway relays them. `switch` and `version` are hints; the body's own count."""

    type: ClassVar[str] = "switch"
    switch: str
    version: int
    body: bytes
    signature: bytes
    key_id: str

    @classmethod
    def parse(cls, reader: Reader) -> SignedSwitch:
        found = cls(
            switch=_uuid(reader, "switch"),
            version=reader.integer("version", low=1),
            body=reader.binary("body", shortest=1, longest=MAX_SWITCH_BYTES),
            signature=reader.binary("signature", shortest=64, longest=64),
            key_id=reader.text("key_id", longest=16),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "switch": self.switch,
            "version": self.version,
            "body": encode_bytes(self.body),
            "signature": encode_bytes(self.signature),
            "key_id": self.key_id,
        }


def sign_switch(switch: Switch, private_key: Ed25519PrivateKey) -> SignedSwitch:
    body = switch.to_bytes()
    return SignedSwitch(
        switch=switch.switch,
        version=switch.version,
        body=body,
        signature=private_key.sign(_CONTEXT + body),
        key_id=key_id_of(private_key.public_key().public_bytes_raw()),
    )


def verify_switch(signed: SignedSwitch, *, trusted_keys: tuple[bytes, ...]) -> Switch:
    """The switch inside, or DocumentError (unknown_key, bad_signature, malformed) saying why not."""
    key = next((key for key in trusted_keys if key_id_of(key) == signed.key_id), None)
    if key is None:
        raise DocumentError("unknown_key", f"The switch is signed by key {signed.key_id}, which is not pinned here.")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signed.signature, _CONTEXT + signed.body)
    except InvalidSignature:
        raise DocumentError("bad_signature", "The switch's signature is wrong.") from None
    try:
        switch = Switch.from_bytes(signed.body)
    except ProtocolError as error:
        raise DocumentError("malformed", f"The switch cannot be read: {error}") from error
    if (switch.switch, switch.version) != (signed.switch, signed.version):
        raise DocumentError("malformed", "The message names another switch or version than the signed body.")
    return switch


class SwitchState(StrEnum):
    APPLIED = "applied"  # in force, read back: nothing that it stops runs
    PENDING = "pending"  # in force as far as the agent can; something still runs, or it cannot be seen
    RELEASED = "released"
    REFUSED = "refused"


@dataclass(frozen=True)
class SwitchUpdate:
    """Where a switch stands on this node. `stopped`: pods that are gone; `remaining`: pods that should be; None where nobody can see them.

    Told on every change and on every new connection; a higher `sequence` replaces a lower one.
    """

    type: ClassVar[str] = "switch_update"
    switch: str
    version: int
    state: SwitchState
    stopped: int
    remaining: int | None
    detail: str
    at: float
    sequence: int

    @classmethod
    def parse(cls, reader: Reader) -> SwitchUpdate:
        found = cls(
            switch=_uuid(reader, "switch"),
            version=reader.integer("version", low=1),
            state=reader.choice("state", SwitchState),
            stopped=reader.integer("stopped"),
            remaining=reader.optional("remaining", reader.integer),
            detail=reader.text("detail", longest=300, empty=True),
            at=reader.number("at", low=0, high=1e11),
            sequence=reader.integer("sequence"),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class LocalEvent:
    """Something that the agent did or saw on its own, at its own time; told again until its id is acknowledged."""

    type: ClassVar[str] = "local_event"
    id: str
    kind: str
    at: float
    subject: str
    detail: dict[str, int | float | str | bool | None]

    @classmethod
    def parse(cls, reader: Reader) -> LocalEvent:
        found = cls(
            id=_uuid(reader, "id"),
            kind=reader.text("kind", longest=40),
            at=reader.number("at", low=0, high=1e11),
            subject=reader.text("subject", longest=400, empty=True),
            detail=reader.scalars("detail"),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, **asdict(self)}


@dataclass(frozen=True)
class EventAck:
    """The console has stored the events with these ids."""

    type: ClassVar[str] = "event_ack"
    ids: tuple[str, ...]

    @classmethod
    def parse(cls, reader: Reader) -> EventAck:
        found = cls(ids=reader.texts("ids", most=MAX_ACK_IDS, longest=36))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "ids": list(self.ids)}
