"""Enrolment: hand in a one-time token with the public key that will speak for this node."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent import VERSION
from agent.config import Enrolment, check_gateway_url, tls_context
from agent.keys import public_bytes
from agent.protocol import Bundle, EnrolAnswer, EnrolRequest, EnrolStatus, ProtocolError, enrolment_statement

MAX_ANSWER_BYTES = 64 * 1024


class EnrolError(Exception):
    """The gateway refused, or could not be asked. The text is the gateway's own where it gave one."""


class WaitsForOperator(EnrolError):
    """Another key speaks for this node: an operator decides. Enrol again later with the same bundle."""


def enrol_url(gateway_url: str) -> str:
    """http(s)://host:port/enrol of a gateway that is dialled at ws(s)://host:port/…"""
    parts = urlsplit(gateway_url)
    return urlunsplit(("https" if parts.scheme == "wss" else "http", parts.netloc, "/enrol", "", ""))


def enrol(bundle: Bundle, key: Ed25519PrivateKey, *, ca_file: Path | None = None, allow_plain_http: bool = False, timeout_seconds: float = 30) -> Enrolment:
    """Register `key` for the bundle's node. A proxy from the environment (HTTPS_PROXY, NO_PROXY) is honoured, TLS verified.

    Raises EnrolError, and WaitsForOperator while an operator has to decide. Asking again with the same key is harmless.
    """
    check_gateway_url(bundle.gateway_url, allow_plain_http=allow_plain_http)
    body = EnrolRequest(
        token=bundle.token, public_key=public_bytes(key), signature=key.sign(enrolment_statement(bundle.token)), agent_version=VERSION
    ).to_bytes()
    url = enrol_url(bundle.gateway_url)
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")  # noqa: S310 - http(s) by enrol_url
    context = tls_context(bundle.gateway_url, ca_file)
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds, context=context) as response:  # noqa: S310
            answer = EnrolAnswer.from_bytes(response.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise EnrolError(_detail(error.read(MAX_ANSWER_BYTES)) or f"{url} answered {error.code}") from error
    except (OSError, ProtocolError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise EnrolError(f"{url}: {reason}") from error
    if answer.status is EnrolStatus.WAITING:
        raise WaitsForOperator("Another key speaks for this node. An operator must allow the change; then enrol again with the same bundle.")
    return Enrolment(node_id=answer.node_id, gateway_url=bundle.gateway_url, console_keys=(bundle.console_key,))


def _detail(body: bytes) -> str:
    """The `detail` of a problem+json body, "" where there is none."""
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    return str(found.get("detail", ""))[:500] if isinstance(found, dict) else ""
