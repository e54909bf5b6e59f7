"""How a node gets its identity: a bundle made by the console, one request, one answer."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agent.protocol.wire import ProtocolError, Reader, dump_canonical, encode_bytes, load_object

MAX_ENROL_BYTES = 8 * 1024


def fingerprint_of(public_key: bytes) -> str:
    """SHA-256 of a raw Ed25519 public key, hex."""
    return hashlib.sha256(public_key).hexdigest()


def enrolment_statement(token: str) -> bytes:
    """What an agent signs to show that it holds the key that it enrols."""
    return b"masthead-enrol-v1\0" + hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class Bundle:
    """Everything that an agent needs to enrol: where to dial, its one-time token, and the console's signing key to pin."""

    gateway_url: str
    token: str
    console_key: bytes
    fingerprint: str

    @classmethod
    def decode(cls, text: str) -> Bundle:
        """From the text that the console shows. Raises ProtocolError naming the bad field."""
        try:
            data = base64.b64decode("".join(text.split()), altchars=b"-_", validate=True)
            reader = Reader(load_object(data, limit=MAX_ENROL_BYTES), "bundle")
        except (binascii.Error, ValueError):
            raise ProtocolError("bundle", "is not base64") from None
        except ProtocolError as error:
            raise ProtocolError("bundle", error.problem) from error
        found = cls(
            gateway_url=reader.text("gateway_url", longest=500),
            token=reader.text("token", longest=100),
            console_key=reader.binary("console_key", shortest=32, longest=32),
            fingerprint=reader.text("fingerprint", longest=64),
        )
        reader.done()
        if fingerprint_of(found.console_key) != found.fingerprint:
            raise ProtocolError("bundle.fingerprint", "does not belong to the console's key")
        return found

    def encode(self) -> str:
        values = {
            "gateway_url": self.gateway_url,
            "token": self.token,
            "console_key": encode_bytes(self.console_key),
            "fingerprint": self.fingerprint,
        }
        return base64.urlsafe_b64encode(dump_canonical(values)).decode()


@dataclass(frozen=True)
class EnrolRequest:
    """POST /enrol on the gateway. `signature` is over `enrolment_statement(token)` by the key that enrols."""

    token: str
    public_key: bytes
    signature: bytes
    agent_version: str

    @classmethod
    def from_bytes(cls, body: bytes) -> EnrolRequest:
        reader = Reader(load_object(body, limit=MAX_ENROL_BYTES))
        found = cls(
            token=reader.text("token", longest=100),
            public_key=reader.binary("public_key", shortest=32, longest=32),
            signature=reader.binary("signature", shortest=64, longest=64),
            agent_version=reader.text("agent_version", longest=40),
        )
        reader.done()
        return found

    def to_bytes(self) -> bytes:
        return dump_canonical(
            {
                "token": self.token,
                "public_key": encode_bytes(self.public_key),
                "signature": encode_bytes(self.signature),
                "agent_version": self.agent_version,
            }
        )


class EnrolStatus(StrEnum):
    ENROLLED = "enrolled"
    WAITING = "waiting_for_operator"


@dataclass(frozen=True)
class EnrolAnswer:
    """`node_id` names the node in documents. WAITING: another key speaks for the node until an operator decides; ask again."""

    status: EnrolStatus
    node_id: int

    @classmethod
    def from_bytes(cls, body: bytes) -> EnrolAnswer:
        reader = Reader(load_object(body, limit=MAX_ENROL_BYTES))
        found = cls(status=reader.choice("status", EnrolStatus), node_id=reader.integer("node_id", low=1))
        reader.done()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status.value, "node_id": self.node_id}
