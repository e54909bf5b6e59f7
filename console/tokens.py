"""API and device tokens: made once, shown once, kept as a digest, found again by it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from console.audit import note_act
from console.models import ApiToken, User
from console.sessions import note_access_change
from fleet.models import Region

LONGEST = timedelta(days=366)
LAST_USED_STEP = timedelta(minutes=1)


def hash_token(secret: str) -> str:
    """SHA-256 in hex. The secret has 256 random bits, so a plain digest cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


@transaction.atomic
def issue_token(
    *,
    user: User,
    name: str,
    scopes: Iterable[str],
    expires_at: datetime,
    now: datetime,
    regions: Iterable[Region] = (),
    limited: bool | None = None,
    actor: User | None = None,
) -> tuple[ApiToken, str]:
    """A new token of `user` and its secret, which nobody can read again. `actor` is who makes it, when that is somebody else.

    With `regions` it is limited to them, and reaches nothing when they are gone; `limited` says so of a token that takes another's place.

    Raises ValueError for an end in the past or more than a year ahead.
    """
    if not now < expires_at <= now + LONGEST:
        raise ValueError("expires_at: must lie ahead, at most a year.")
    prefix = f"mh_{secrets.token_hex(4)}"
    secret = f"{prefix}_{secrets.token_urlsafe(32)}"
    regions = list(regions)
    token = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=prefix,
        token_hash=hash_token(secret),
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
        is_limited=bool(regions) if limited is None else limited,
    )
    token.regions.set(regions)
    detail = {"name": name, "scopes": token.scopes, "regions": sorted(region.slug for region in regions), "expires_at": expires_at.isoformat()}
    _note(actor or user, "token.create", token, now, detail)
    return token, secret


@transaction.atomic
def rotate_token(*, token: ApiToken, now: datetime, actor: User | None = None) -> tuple[ApiToken, str]:
    """A new token in the place of a live one: same name, rights and length of life. The old one ends now. Raises ValueError for one that is over."""
    old = ApiToken.objects.select_for_update(of=("self",)).select_related("user").get(pk=token.pk)
    if old.revoked_at is not None or old.expires_at <= now:
        raise ValueError("token: it is over; make a new one.")
    life = min(old.expires_at - old.created_at, LONGEST)
    new, secret = issue_token(
        user=old.user, name=old.name, scopes=old.scopes, expires_at=now + life, now=now, regions=old.regions.all(), limited=old.is_limited, actor=actor
    )
    revoke_token(token=old, now=now, actor=actor)
    return new, secret


@transaction.atomic
def revoke_token(*, token: ApiToken, now: datetime, actor: User | None = None) -> bool:
    """Refused from now on, and sockets that were opened with it end. False when it was revoked before."""
    if not ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=now):
        return False
    note_access_change(token.user, now=now)
    _note(actor or token.user, "token.revoke", token, now, {"name": token.name})
    return True


def _note(actor: User, action: str, token: ApiToken, now: datetime, detail: Mapping[str, object]) -> None:
    note_act(actor=actor.get_username(), action=action, subject=token.prefix, now=now, detail={"user": token.user.get_username(), **detail})


def find_token(secret: str, *, now: datetime) -> ApiToken | None:
    """The live token with this secret, its user loaded; None when unknown, expired, revoked, or its user inactive. Notes the use, at most once a minute."""
    token = (
        ApiToken.objects.select_related("user").filter(token_hash=hash_token(secret), revoked_at__isnull=True, expires_at__gt=now, user__is_active=True).first()
    )
    if token is not None:
        ApiToken.objects.filter(Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - LAST_USED_STEP), pk=token.pk).update(last_used_at=now)
    return token
