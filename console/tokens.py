"""API and device tokens: made once, shown once, kept as a digest, found again by it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Q

from console.models import ApiToken, User
from fleet.models import Region

LONGEST = timedelta(days=366)
LAST_USED_STEP = timedelta(minutes=1)


def hash_token(secret: str) -> str:
    """SHA-256 in hex. The secret has 256 random bits, so a plain digest cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def issue_token(*, user: User, name: str, scopes: Iterable[str], expires_at: datetime, now: datetime, regions: Iterable[Region] = ()) -> tuple[ApiToken, str]:
    """A new token and its secret, which nobody can read again. Raises ValueError for an end in the past or more than a year ahead."""
    if not now < expires_at <= now + LONGEST:
        raise ValueError("expires_at: must lie ahead, at most a year.")
    prefix = f"mh_{secrets.token_hex(4)}"
    secret = f"{prefix}_{secrets.token_urlsafe(32)}"
    token = ApiToken.objects.create(user=user, name=name, prefix=prefix, token_hash=hash_token(secret), scopes=sorted(set(scopes)), expires_at=expires_at)
    token.regions.set(regions)
    return token, secret


def find_token(secret: str, *, now: datetime) -> ApiToken | None:
    """The live token with this secret, its user loaded; None when unknown, expired, revoked, or its user inactive. Notes the use, at most once a minute."""
    token = (
        ApiToken.objects.select_related("user").filter(token_hash=hash_token(secret), revoked_at__isnull=True, expires_at__gt=now, user__is_active=True).first()
    )
    if token is not None:
        ApiToken.objects.filter(Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - LAST_USED_STEP), pk=token.pk).update(last_used_at=now)
    return token
