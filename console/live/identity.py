"""Who stands behind a socket: admitted at the handshake, checked again while it is open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.http.cookie import parse_cookie
from django.utils.crypto import constant_time_compare

from console.access import NOBODY, Access, access_of, accesses_of, narrowed_to
from console.models import ApiToken, User
from console.tokens import find_token

# The session of a wall names the device token that it was exchanged for.
DEVICE_TOKEN_KEY = "device_token_id"  # noqa: S105
# A token opens the socket when it may read sites, or is a wall's.
LIVE_SCOPES = frozenset({"read:sites", "read:wall", "read:*"})

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Identity:
    """What must go on existing for the socket to stay open: the user, and the session or the token (a wall has both)."""

    user_id: int
    session_key: str | None
    session_hash: str | None
    token_id: int | None


def header(headers: Headers, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)


def bearer_secret(headers: Headers) -> str | None:
    kind, _, secret = (header(headers, b"authorization") or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def may_knock(headers: Headers) -> bool:
    """Whether a handshake may go on: from exactly one of our origins (scheme, host, port); without an Origin only with a token, never with a cookie."""
    origin = header(headers, b"origin")
    if origin is None:
        return bearer_secret(headers) is not None
    return origin in settings.ORIGINS


def admit_token(secret: str, *, now: datetime) -> tuple[Identity, Access] | None:
    token = find_token(secret, now=now)
    if token is None or LIVE_SCOPES.isdisjoint(token.scopes):
        return None
    identity = Identity(user_id=token.user_id, session_key=None, session_hash=None, token_id=token.pk)
    return identity, access_of(token.user, token)


def session_of(headers: Headers) -> SessionBase:
    """The session that the handshake's cookie names; an empty one without."""
    cookies = parse_cookie(header(headers, b"cookie") or "")
    store: type[SessionBase] = import_module(settings.SESSION_ENGINE).SessionStore
    return store(session_key=cookies.get(settings.SESSION_COOKIE_NAME))


def admit_session(session: SessionBase, *, now: datetime) -> tuple[Identity, Access] | None:
    """Who is signed in with this session, or None."""
    if SESSION_KEY not in session or not session.session_key:
        return None
    identity = Identity(
        user_id=int(session[SESSION_KEY]),
        session_key=session.session_key,
        session_hash=session.get(HASH_SESSION_KEY),
        token_id=session.get(DEVICE_TOKEN_KEY),
    )
    access = check([identity], now=now)[identity]
    return None if access is None else (identity, access)


def check(identities: Collection[Identity], *, now: datetime) -> Mapping[Identity, Access | None]:
    """What each may see now; None for whom the session ended, the token was revoked, or the user is gone. Five queries at most, however many."""
    users = {user.pk: user for user in User.objects.filter(pk__in={one.user_id for one in identities}, is_active=True)}
    keys = {one.session_key for one in identities if one.session_key}
    sessions = set(Session.objects.filter(session_key__in=keys, expire_date__gt=now).values_list("session_key", flat=True)) if keys else set()
    token_ids = {one.token_id for one in identities if one.token_id}
    live = ApiToken.objects.filter(pk__in=token_ids, revoked_at__isnull=True, expires_at__gt=now).prefetch_related("regions") if token_ids else []
    tokens = {token.pk: token for token in live}
    accesses = accesses_of(users.keys())
    found: dict[Identity, Access | None] = {}
    for one in identities:
        user = users.get(one.user_id)
        alive = user is not None and (one.session_key is None or (one.session_key in sessions and _same_password(user, one.session_hash)))
        token = tokens.get(one.token_id) if one.token_id else None
        if not alive or (one.token_id and token is None):
            found[one] = None
            continue
        access = accesses.get(one.user_id, NOBODY)
        found[one] = narrowed_to(access, token) if token else access
    return found


def _same_password(user: User, session_hash: str | None) -> bool:
    """A session made before the password changed is over."""
    return bool(session_hash) and constant_time_compare(session_hash or "", user.get_session_auth_hash())
