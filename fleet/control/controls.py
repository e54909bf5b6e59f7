"""Controls that people set: checked, stored with their audit entry and the signed document in one transaction, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import AbstractUser
from django.db import IntegrityError, transaction

from fleet.control import audit, desired_state
from fleet.control.limits import CLOCK_RANGE, limits_of
from fleet.inventory import protection
from fleet.models import Gpu, Node, ObjectKind, Policy
from fleet.stream import publish_notices

LONGEST = timedelta(days=30)
SUGGESTED = timedelta(hours=24)


class ControlRefused(Exception):
    """Nothing was stored. `errors` maps each bad field to its reason; "" stands for the control as a whole."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {reason}" if field else reason for field, reason in errors.items()))
        self.errors = dict(errors)


class KeyReused(Exception):
    """The idempotency key already stands for another request of this user."""


@dataclass(frozen=True)
class Submitted:
    """`created` is false when the same request had been stored before (same user, key and content)."""

    policy: Policy
    created: bool


@dataclass(frozen=True)
class ClockLimits:
    min_mhz: int
    max_mhz: int


def clock_limits(gpu: Gpu) -> ClockLimits:
    """Bounds of the SM clock by the SKU catalogue, both inclusive; wide ones for a model that it does not know."""
    clock = limits_of(gpu.sku).clock_mhz
    return ClockLimits(int(clock.low), int(clock.high))


def refusal_for(gpu: Gpu) -> str:
    """Why no control of the whole GPU may be set on it now; "" when one may. Uses the prefetched `protected_placements`."""
    if protection.lacks_phy(gpu):
        return "GPU stands on a DU node and what of it is PHY's is not known: clock, power and reset need approvals, which do not exist yet."
    positions = sorted({position for placement in gpu.protected_placements.all() for position in range(placement.start, placement.start + placement.size)})
    if positions:
        return f"GPU carries PHY at positions {_ranges(positions)}: clock, power and reset need approvals, which do not exist yet."
    if gpu.presence in (Gpu.Presence.MISSING, Gpu.Presence.RETIRED):
        return f"target not present: {gpu.uuid} is {gpu.get_presence_display().lower()}."
    return ""


def _ranges(positions: list[int]) -> str:
    """[0, 1, 2, 5] → "0-2, 5"."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in runs)


def submit_clock_range(
    *,
    gpu: Gpu,
    min_mhz: object,
    max_mhz: object,
    ends_at: object,
    reason: object,
    user: AbstractUser,
    idempotency_key: str | None,
    now: datetime,
    request_id: str = "",
) -> Submitted:
    """Lock the SM clock of `gpu` between two whole numbers of MHz until `ends_at` (aware datetime, at most 30 days ahead).

    Values come as the caller got them and are all checked here, all errors at once. The control is bound to the GPU's UUID.
    Raises ControlRefused, KeyReused, and `signing.SigningUnavailable`.
    """
    errors: dict[str, str] = {}
    limits = clock_limits(gpu)
    low = _megahertz(min_mhz, "min_mhz", limits, errors)
    high = _megahertz(max_mhz, "max_mhz", limits, errors)
    if low is not None and high is not None and low > high:
        errors["min_mhz"] = f"{low} MHz is above the maximum of {high} MHz."
    end = _end(ends_at, now, errors)
    why = _reason(reason, errors)
    if idempotency_key is not None and not (0 < len(idempotency_key) <= 80 and idempotency_key.isprintable()):
        errors["idempotency_key"] = "Must be 1 to 80 printable characters."
    if errors:
        raise ControlRefused(errors)
    policy = Policy(
        control=CLOCK_RANGE,
        scope_kind=ObjectKind.GPU,
        scope_key=gpu.uuid,
        parameters={"min_mhz": low, "max_mhz": high},
        reason=why,
        starts_at=now,
        ends_at=end,
        created_by_id=user.pk,
        created_at=now,
        idempotency_key=idempotency_key,
    )
    if idempotency_key is not None and (before := _stored(policy)) is not None:
        return before
    try:
        with transaction.atomic():
            # Locked, node first as everybody does: the GPU cannot come to carry PHY, or move, between this check and the document.
            Node.objects.select_for_update(no_key=True).get(pk=gpu.node_id)
            held = Gpu.objects.select_for_update(of=("self",)).select_related("node__site").prefetch_related("protected_placements").get(pk=gpu.pk)
            if refusal := refusal_for(held):
                raise ControlRefused({"": refusal})
            policy.save(force_insert=True)
            _audit(policy, actor=user.get_username(), action="control.set", reason=why, now=now, request_id=request_id)
            desired_state.issue_documents([held.node_id], now=now)
            transaction.on_commit(lambda: publish_notices([_notice(held, "pending")]))
    except IntegrityError as error:
        # Another request with this key was stored between our look and our insert.
        if idempotency_key is not None and (before := _stored(policy)) is not None:
            return before
        raise ControlRefused({"": "The control could not be stored."}) from error
    return Submitted(policy=policy, created=True)


def withdraw(*, policy: Policy, user: AbstractUser, reason: object, now: datetime, request_id: str = "") -> Policy:
    """End a control before its time. One that has ended or was withdrawn is left as it is. Raises ControlRefused without a reason."""
    errors: dict[str, str] = {}
    why = _reason(reason, errors)
    if errors:
        raise ControlRefused(errors)
    with transaction.atomic():
        changed = Policy.objects.in_force(now).filter(pk=policy.pk).update(withdrawn_at=now, withdrawn_by=user)
        if changed:
            _audit(policy, actor=user.get_username(), action="control.withdrawn", reason=why, now=now, request_id=request_id)
            gpu = Gpu.objects.select_related("node__site").filter(uuid=policy.scope_key).first() if policy.scope_kind == ObjectKind.GPU else None
            if gpu is not None:
                desired_state.issue_documents([gpu.node_id], now=now)
                transaction.on_commit(lambda: publish_notices([_notice(gpu, "pending")]))
    policy.refresh_from_db()
    return policy


def _stored(policy: Policy) -> Submitted | None:
    """The policy that this user's key already made. Raises KeyReused when it was another request."""
    before = Policy.objects.filter(created_by_id=policy.created_by_id, idempotency_key=policy.idempotency_key).first()
    if before is None:
        return None
    names = ("control", "scope_kind", "scope_key", "parameters", "reason", "ends_at")
    if any(getattr(before, name) != getattr(policy, name) for name in names):
        raise KeyReused(f"The idempotency key {policy.idempotency_key} was used for another request.")
    return Submitted(policy=before, created=False)


def _megahertz(value: object, field: str, limits: ClockLimits, errors: dict[str, str]) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        errors[field] = "Must be a whole number of MHz."
        return None
    if not limits.min_mhz <= value <= limits.max_mhz:
        errors[field] = f"Must lie within {limits.min_mhz}..{limits.max_mhz} MHz."
        return None
    return value


def _end(value: object, now: datetime, errors: dict[str, str]) -> datetime | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        errors["ends_at"] = "Must be a date and time with its zone."
    elif not now < value <= now + LONGEST:
        errors["ends_at"] = f"Must lie ahead, at most {LONGEST.days} days."
    else:
        return value
    return None


def _reason(value: object, errors: dict[str, str]) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        errors["reason"] = "Say why: it stands in the audit."
    elif len(text) > 300 or not text.isprintable():
        errors["reason"] = "Must be at most 300 printable characters."
    return text


def _audit(policy: Policy, *, actor: str, action: str, reason: str, now: datetime, request_id: str) -> None:
    audit.record(
        now=now,
        actor=actor,
        action=action,
        kind=policy.scope_kind,
        key=policy.scope_key,
        reason=reason,
        detail={
            "policy": policy.pk,
            "control": policy.control,
            "parameters": policy.parameters,
            "ends_at": policy.ends_at.isoformat() if policy.ends_at else None,
        },
        request_id=request_id,
    )


def _notice(gpu: Gpu, state: str, detail: str = "") -> dict[str, object]:
    site = gpu.node.site
    return {
        "type": "control",
        "site": site.code,
        "region_id": site.region_id,
        "kind": "gpu",
        "key": gpu.uuid,
        "control": CLOCK_RANGE,
        "state": state,
        "detail": detail,
    }
