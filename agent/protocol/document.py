"""The signed desired state: canonical JSON bytes, an Ed25519 signature over them, and the strict way back.

A document names its target, so that one signed for a node (or later for a wider scope) speaks for nothing else.
Each control on each GPU is a stack of layers, the narrowest scope first: at any time the first active one holds. An agent out of
contact therefore falls back by itself when a temporary layer ends.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agent.protocol.rules import LocalRules
from agent.protocol.wire import MAX_INTEGER, ProtocolError, Reader, dump_canonical, encode_bytes, load_object

MAX_DOCUMENT_BYTES = 256 * 1024
FORMAT = 2
_CONTEXT = b"masthead-desired-state-v1\0"


class DocumentError(Exception):
    """A document is refused. `code`: unknown_key, bad_signature, malformed, wrong_target, old_version, expired."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Layer:
    """One policy's value for one control on one GPU. Times are Unix seconds; `ends_at` None has no end."""

    parameters: dict[str, int | float | str | bool | None]
    starts_at: float
    ends_at: float | None
    policy: int
    scope: str

    @classmethod
    def parse(cls, reader: Reader) -> Layer:
        found = cls(
            parameters=reader.scalars("parameters"),
            starts_at=reader.number("starts_at", low=0, high=1e11),
            ends_at=reader.optional("ends_at", lambda name: reader.number(name, low=0, high=1e11)),
            policy=reader.integer("policy"),
            scope=reader.text("scope", longest=120),
        )
        reader.done()
        return found

    def active(self, now: float) -> bool:
        return self.starts_at <= now and (self.ends_at is None or now < self.ends_at)


@dataclass(frozen=True)
class Control:
    control: str
    gpu_uuid: str
    layers: tuple[Layer, ...]

    @classmethod
    def parse(cls, reader: Reader) -> Control:
        found = cls(
            control=reader.text("control", longest=40),
            gpu_uuid=reader.text("gpu_uuid", longest=64, empty=True),
            layers=reader.items("layers", Layer.parse, most=20),
        )
        reader.done()
        return found

    def layer_at(self, now: float) -> Layer | None:
        return next((layer for layer in self.layers if layer.active(now)), None)


@dataclass(frozen=True)
class ProtectedSpan:
    """Memory positions start..start+size-1 of a GPU that are the radio's."""

    gpu_uuid: str
    start: int
    size: int

    @classmethod
    def parse(cls, reader: Reader) -> ProtectedSpan:
        found = cls(gpu_uuid=reader.text("gpu_uuid", longest=64), start=reader.integer("start", high=7), size=reader.integer("size", low=1, high=8))
        reader.done()
        return found


@dataclass(frozen=True)
class Place:
    """Where a node stands: slugs, site code, node id as text, and the site's IANA time zone. Wide switches are for a place."""

    area: str
    region: str
    site: str
    node: str
    time_zone: str

    @classmethod
    def parse(cls, reader: Reader) -> Place:
        found = cls(
            area=reader.text("area", longest=80),
            region=reader.text("region", longest=80),
            site=reader.text("site", longest=80),
            node=reader.text("node", longest=80),
            time_zone=reader.text("time_zone", longest=64),
        )
        reader.done()
        return found

    def within(self, scope_kind: str, scope_key: str) -> bool:
        """Whether the scope (fleet, area, region, site, node) covers this node."""
        keys = {"fleet": "", "area": self.area, "region": self.region, "site": self.site, "node": self.node}
        return keys.get(scope_kind) == scope_key


@dataclass(frozen=True)
class DesiredState:
    """`target_kind` is "node", `target_key` its id in the console. `not_after` (Unix seconds) is the last moment to accept it."""

    target_kind: str
    target_key: str
    version: int
    issued_at: float
    not_after: float | None
    controls: tuple[Control, ...]
    protected: tuple[ProtectedSpan, ...]
    place: Place
    rules: LocalRules = field(default_factory=LocalRules)

    @classmethod
    def from_bytes(cls, body: bytes) -> DesiredState:
        """Raises ProtocolError naming the bad field."""
        reader = Reader(load_object(body, limit=MAX_DOCUMENT_BYTES))
        reader.integer("format", low=FORMAT, high=FORMAT)
        found = cls(
            target_kind=reader.text("target_kind", longest=20),
            target_key=reader.text("target_key", longest=80),
            version=reader.integer("version", low=1),
            issued_at=reader.number("issued_at", low=0, high=1e11),
            not_after=reader.optional("not_after", lambda name: reader.number(name, low=0, high=1e11)),
            controls=reader.items("controls", Control.parse, most=1000),
            protected=reader.items("protected", ProtectedSpan.parse, most=1000),
            place=Place.parse(reader.child("place")),
            rules=LocalRules.parse(reader.child("rules")),
        )
        reader.done()
        if found.target_kind == "node" and found.place.node != found.target_key:
            raise ProtocolError("place.node", "is not the node that the document is for")
        return found

    def to_bytes(self) -> bytes:
        """The canonical bytes that are signed."""
        return dump_canonical({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True)
class SignedDocument:
    """The exact signed bytes with their signature, as the gateway relays them. `version` is a hint; the body's own counts."""

    type: ClassVar[str] = "document"
    version: int
    body: bytes
    signature: bytes
    key_id: str

    @classmethod
    def parse(cls, reader: Reader) -> SignedDocument:
        found = cls(
            version=reader.integer("version", low=1),
            body=reader.binary("body", shortest=1, longest=MAX_DOCUMENT_BYTES),
            signature=reader.binary("signature", shortest=64, longest=64),
            key_id=reader.text("key_id", longest=16),
        )
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "version": self.version,
            "body": encode_bytes(self.body),
            "signature": encode_bytes(self.signature),
            "key_id": self.key_id,
        }


def key_id_of(public_key: bytes) -> str:
    """First 8 bytes of SHA-256 of a raw Ed25519 public key, hex."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def sign_document(state: DesiredState, private_key: Ed25519PrivateKey) -> SignedDocument:
    body = state.to_bytes()
    if len(body) > MAX_DOCUMENT_BYTES or state.version > MAX_INTEGER:
        raise ValueError(f"the document has {len(body)} bytes, more than {MAX_DOCUMENT_BYTES}")
    return SignedDocument(
        version=state.version,
        body=body,
        signature=private_key.sign(_CONTEXT + body),
        key_id=key_id_of(private_key.public_key().public_bytes_raw()),
    )


def verify_document(
    document: SignedDocument,
    *,
    trusted_keys: tuple[bytes, ...],
    target_kind: str,
    target_key: str,
    newest_version: int,
    now: float,
) -> DesiredState:
    """The desired state inside `document`, or DocumentError saying why not.

    It must be signed by a trusted raw Ed25519 key, be for this target, be newer than `newest_version`, and not be past its `not_after`.
    """
    key = next((key for key in trusted_keys if key_id_of(key) == document.key_id), None)
    if key is None:
        raise DocumentError("unknown_key", f"The document is signed by key {document.key_id}, which is not pinned here.")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(document.signature, _CONTEXT + document.body)
    except InvalidSignature:
        raise DocumentError("bad_signature", "The document's signature is wrong.") from None
    try:
        state = DesiredState.from_bytes(document.body)
    except ProtocolError as error:
        raise DocumentError("malformed", f"The document cannot be read: {error}") from error
    if (state.target_kind, state.target_key) != (target_kind, target_key):
        raise DocumentError("wrong_target", f"The document is for {state.target_kind} {state.target_key}, not for {target_kind} {target_key}.")
    if state.version <= newest_version:
        raise DocumentError("old_version", f"Version {state.version} is not newer than {newest_version}.")
    if state.not_after is not None and now > state.not_after:
        raise DocumentError("expired", f"Version {state.version} could be accepted until {state.not_after:.0f}; it is {now:.0f}.")
    return state
