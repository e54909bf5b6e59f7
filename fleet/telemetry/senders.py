"""Senders of telemetry: their tokens, and what each may write. Only digests of tokens are kept; two are valid while rotating."""

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from fleet.control import audit
from fleet.models import ObjectKind, Region, Sender
from fleet.telemetry.resolver import SenderScope

TOKEN_PREFIX = "mhs_"  # noqa: S105 - shows what kind of token it is, is none
ROTATION_OVERLAP = timedelta(days=7)
LAST_USED_STEP = timedelta(minutes=1)
CONSOLE = "console"  # who acts when no person does: set-up, commands


class SenderError(ValueError):
    """A sender cannot be made or changed as asked; the text names the field."""


def digest_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


@transaction.atomic
def create_sender(
    *,
    name: str,
    regions: Iterable[Region],
    may_write: bool = True,
    may_discover: bool = True,
    honor_labels: bool = False,
    expires_at: datetime | None = None,
    now: datetime | None = None,
    actor: str = CONSOLE,
    request_id: str = "",
) -> tuple[Sender, str]:
    """A new sender for these regions and its token, which cannot be read again. Raises SenderError."""
    regions = list(regions)
    if Sender.objects.filter(name=name).exists():
        raise SenderError(f"name: a sender called {name!r} exists already")
    token = _new_token()
    sender = Sender.objects.create(
        name=name,
        token_hash=digest_token(token),
        may_write=may_write,
        may_discover=may_discover,
        honor_labels=honor_labels,
        expires_at=expires_at,
    )
    sender.regions.set(regions)
    detail = {"regions": sorted(region.slug for region in regions), "may_write": may_write, "may_discover": may_discover, "honor_labels": honor_labels}
    _note("sender.create", sender, now or timezone.now(), actor, request_id, detail)
    return sender, token


def rotate_token(sender: Sender, *, now: datetime, overlap: timedelta = ROTATION_OVERLAP, actor: str = CONSOLE, request_id: str = "") -> str:
    """A new token. The one so far stays valid for `overlap`; the one before it ends now. Raises SenderError for a revoked sender."""
    token = _new_token()
    with transaction.atomic():
        row = Sender.objects.select_for_update().get(pk=sender.pk)
        if row.revoked_at is not None:
            raise SenderError("a revoked sender gets no new token")
        row.previous_token_hash, row.previous_valid_until = row.token_hash, now + overlap
        row.token_hash = digest_token(token)
        row.save(update_fields=["previous_token_hash", "previous_valid_until", "token_hash"])
        _note("sender.rotate", row, now, actor, request_id, {"previous_valid_until": row.previous_valid_until.isoformat()})
    sender.refresh_from_db()
    return token


@transaction.atomic
def end_previous_token(sender: Sender, *, now: datetime | None = None, actor: str = CONSOLE, request_id: str = "") -> None:
    """The rotation is done: only the newest token is valid."""
    if Sender.objects.filter(pk=sender.pk, previous_token_hash__isnull=False).update(previous_token_hash=None, previous_valid_until=None):
        _note("sender.end_rotation", sender, now or timezone.now(), actor, request_id, {})


@transaction.atomic
def revoke_sender(sender: Sender, *, now: datetime, actor: str = CONSOLE, request_id: str = "") -> bool:
    """True when it was not revoked before."""
    if not Sender.objects.filter(pk=sender.pk, revoked_at__isnull=True).update(revoked_at=now):
        return False
    _note("sender.revoke", sender, now, actor, request_id, {})
    return True


def _note(action: str, sender: Sender, now: datetime, actor: str, request_id: str, detail: dict[str, object]) -> None:
    audit.record(now=now, actor=actor, action=action, kind=ObjectKind.SENDER, key=sender.name, detail=detail, request_id=request_id)


def verify_token(token: str, *, now: datetime) -> Sender | None:
    """The sender that this token is valid for now. Records its use, at most once a minute."""
    digest = digest_token(token)
    sender = Sender.objects.filter(Q(token_hash=digest) | Q(previous_token_hash=digest, previous_valid_until__gt=now)).first()
    if sender is None or not _is_valid(sender, now):
        return None
    if sender.last_used_at is None or now - sender.last_used_at > LAST_USED_STEP:
        Sender.objects.filter(pk=sender.pk).update(last_used_at=now)
    return sender


def _is_valid(sender: Sender, now: datetime) -> bool:
    return sender.revoked_at is None and (sender.expires_at is None or sender.expires_at > now)


class SenderDirectory:
    """All senders in memory: a write must not wait for the database, nor fail because it is away. `refresh` renews it."""

    def __init__(self) -> None:
        self._scopes: dict[str, tuple[SenderScope, bool, datetime | None]] = {}

    def refresh(self, *, now: datetime) -> set[int]:
        """Read all senders. Returns the ids of those whose rights changed or ended, so that what is known of their series is forgotten."""
        scopes: dict[str, tuple[SenderScope, bool, datetime | None]] = {}
        for sender in Sender.objects.filter(revoked_at__isnull=True).prefetch_related("regions"):
            if not _is_valid(sender, now):
                continue
            scope = SenderScope(sender.pk, sender.name, frozenset(region.pk for region in sender.regions.all()), sender.honor_labels)
            scopes[sender.token_hash] = (scope, sender.may_write, sender.expires_at)
            if sender.previous_token_hash and sender.previous_valid_until is not None:
                until = min(sender.previous_valid_until, sender.expires_at or sender.previous_valid_until)
                scopes[sender.previous_token_hash] = (scope, sender.may_write, until)
        before = {scope.id: scope for scope, _, _ in self._scopes.values()}
        after = {scope.id: scope for scope, _, _ in scopes.values()}
        self._scopes = scopes
        return {sender_id for sender_id, scope in before.items() if after.get(sender_id) != scope}

    def find(self, token: str, *, now: datetime) -> tuple[SenderScope, bool] | None:
        """(scope, may write) of the sender that this token is valid for now."""
        found = self._scopes.get(digest_token(token))
        if found is None or (found[2] is not None and found[2] <= now):
            return None
        return found[0], found[1]

    @staticmethod
    def record_use(sender_ids: Iterable[int], *, now: datetime) -> None:
        Sender.objects.filter(pk__in=list(sender_ids)).update(last_used_at=now)
