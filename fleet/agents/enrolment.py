"""Enrolment of node agents: one-time tokens bound to a node, the key that speaks for it, and what an operator decides about keys."""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import IntegrityError, transaction
from django.db.models import Q

from agent.protocol import Bundle, EnrolAnswer, EnrolRequest, EnrolStatus, enrolment_statement, fingerprint_of
from fleet.control import audit, signing
from fleet.control.desired_state import wake
from fleet.models import AgentIdentity, EnrolmentToken, KeyChangeRequest, Node, ObjectKind

VALID_FOR = timedelta(days=7)
LONGEST_VALID = timedelta(days=90)


class EnrolmentRefused(Exception):
    """`status` is the HTTP status that says it, the text is for the person at the node."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class IssuedBundle:
    """`text` holds the token: it is shown once and never again."""

    node: Node
    text: str
    expires_at: datetime


def hash_token(token: str) -> str:
    """SHA-256, hex. A token has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def issue_bundles(*, nodes: Iterable[Node], user: AbstractUser, now: datetime, valid_for: timedelta = VALID_FOR, request_id: str = "") -> list[IssuedBundle]:
    """One enrolment bundle per node, for `masthead-agent enrol --bundle`. Earlier unused tokens of these nodes end now.

    Raises ValueError for a life of more than 90 days and `signing.SigningUnavailable` without a key to pin.
    """
    if not timedelta(0) < valid_for <= LONGEST_VALID:
        raise ValueError(f"valid_for: must lie within 0..{LONGEST_VALID.days} days")
    found = list(nodes)
    console_key = signing.public_key()
    expires_at = now + valid_for
    tokens = [secrets.token_urlsafe(32) for _ in found]
    with transaction.atomic():
        EnrolmentToken.objects.filter(node__in=found, used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
        EnrolmentToken.objects.bulk_create(
            [
                EnrolmentToken(node=node, token_hash=hash_token(token), created_by_id=user.pk, expires_at=expires_at)
                for node, token in zip(found, tokens, strict=True)
            ],
            batch_size=1000,
        )
        audit.record_many(
            audit.Act(
                at=now,
                actor=user.get_username(),
                action="agent.token_issued",
                kind=ObjectKind.NODE,
                key=str(node.pk),
                detail={"expires_at": expires_at.isoformat()},
                request_id=request_id,
            )
            for node in found
        )
    fingerprint = fingerprint_of(console_key)
    return [
        IssuedBundle(node, Bundle(gateway_url=settings.GATEWAY_URL, token=token, console_key=console_key, fingerprint=fingerprint).encode(), expires_at)
        for node, token in zip(found, tokens, strict=True)
    ]


def enrol(request: EnrolRequest, *, now: datetime) -> EnrolAnswer:
    """Register the request's key for its token's node. The same key again succeeds; another key on an enrolled node waits for an operator.

    Raises EnrolmentRefused.
    """
    try:
        Ed25519PublicKey.from_public_bytes(request.public_key).verify(request.signature, enrolment_statement(request.token))
    except (InvalidSignature, ValueError):
        raise EnrolmentRefused(403, "signature: it is not by the key that is to be enrolled.") from None
    try:
        with transaction.atomic():
            return _enrol(request, now)
    except IntegrityError:
        # The only unique value that two nodes can share is the key itself.
        raise EnrolmentRefused(409, "public_key: this key already speaks for another node. Delete the copied agent.key and enrol again.") from None


def _enrol(request: EnrolRequest, now: datetime) -> EnrolAnswer:
    token = EnrolmentToken.objects.select_for_update().filter(token_hash=hash_token(request.token)).first()
    if token is None:
        raise EnrolmentRefused(403, "token: it is not known here.")
    # One enrolment per node at a time.
    node = Node.objects.select_for_update(no_key=True).get(pk=token.node_id)
    if node.retired_at is not None:
        raise EnrolmentRefused(403, "token: its node is retired.")
    live = AgentIdentity.objects.filter(node=node, revoked_at__isnull=True).first()
    if live is not None and bytes(live.public_key) == request.public_key:
        if token.used_at is None:
            EnrolmentToken.objects.filter(pk=token.pk).update(used_at=now)
        return EnrolAnswer(status=EnrolStatus.ENROLLED, node_id=node.pk)
    asked = KeyChangeRequest.objects.filter(node=node).order_by("-requested_at", "-pk").first()
    if asked is not None and token.used_at is not None and bytes(asked.public_key) == request.public_key:
        if asked.decided_at is None:
            return EnrolAnswer(status=EnrolStatus.WAITING, node_id=node.pk)
        raise EnrolmentRefused(403, "public_key: an operator refused this key." if not asked.approved else "public_key: this key was revoked.")
    if token.used_at is not None:
        raise EnrolmentRefused(403, "token: it was used already. Ask for a new one.")
    if token.expires_at <= now:
        raise EnrolmentRefused(403, "token: it has expired. Ask for a new one.")
    if live is None:
        EnrolmentToken.objects.filter(pk=token.pk).update(used_at=now)
        AgentIdentity.objects.create(node=node, public_key=request.public_key, enrolled_at=now)
        _audit(node, actor=f"agent:{node.pk}", action="agent.enrolled", now=now, detail={"fingerprint": fingerprint_of(request.public_key)})
        return EnrolAnswer(status=EnrolStatus.ENROLLED, node_id=node.pk)
    if asked is not None and asked.decided_at is None:
        raise EnrolmentRefused(409, "public_key: another key of this node already waits for an operator.")
    EnrolmentToken.objects.filter(pk=token.pk).update(used_at=now)
    KeyChangeRequest.objects.create(node=node, public_key=request.public_key, requested_at=now)
    _audit(node, actor=f"agent:{node.pk}", action="agent.key_change_asked", now=now, detail={"fingerprint": fingerprint_of(request.public_key)})
    return EnrolAnswer(status=EnrolStatus.WAITING, node_id=node.pk)


def decide_key_change(*, request: KeyChangeRequest, approve: bool, user: AbstractUser, reason: str, now: datetime, request_id: str = "") -> KeyChangeRequest:
    """An operator allows or refuses another key for a node. Decided once; a second decision changes nothing.

    Raises EnrolmentRefused when the key meanwhile speaks for another node.
    """
    try:
        with transaction.atomic():
            changed = KeyChangeRequest.objects.filter(pk=request.pk, decided_at__isnull=True).update(decided_at=now, approved=approve, decided_by_id=user.pk)
            if changed:
                if approve:
                    _revoke(request.node_id, user, now)
                    AgentIdentity.objects.create(node_id=request.node_id, public_key=bytes(request.public_key), enrolled_at=now)
                _audit(
                    request.node,
                    actor=user.get_username(),
                    action="agent.key_change_approved" if approve else "agent.key_change_refused",
                    now=now,
                    reason=reason,
                    detail={"fingerprint": fingerprint_of(bytes(request.public_key))},
                    request_id=request_id,
                )
                transaction.on_commit(lambda: wake([request.node_id]))
    except IntegrityError:
        raise EnrolmentRefused(409, "public_key: this key meanwhile speaks for another node.") from None
    request.refresh_from_db()
    return request


def revoke_agent(*, node: Node, user: AbstractUser, reason: str, now: datetime, request_id: str = "") -> bool:
    """Take a node's key and open tokens away; its socket ends within seconds. False when it had no key."""
    with transaction.atomic():
        revoked = _revoke(node.pk, user, now)
        EnrolmentToken.objects.filter(Q(used_at__isnull=True) & Q(expires_at__gt=now), node=node).update(expires_at=now)
        if revoked:
            _audit(node, actor=user.get_username(), action="agent.revoked", now=now, reason=reason, detail={}, request_id=request_id)
            transaction.on_commit(lambda: wake([node.pk]))
    return revoked


def _revoke(node_id: int, user: AbstractUser, now: datetime) -> bool:
    return bool(AgentIdentity.objects.filter(node_id=node_id, revoked_at__isnull=True).update(revoked_at=now, revoked_by_id=user.pk))


def _audit(node: Node, *, actor: str, action: str, now: datetime, detail: dict[str, object], reason: str = "", request_id: str = "") -> None:
    audit.record(now=now, actor=actor, action=action, kind=ObjectKind.NODE, key=str(node.pk), reason=reason, detail=detail, request_id=request_id)
