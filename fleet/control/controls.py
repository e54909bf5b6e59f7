"""Controls that people set: checked, stored with their audit entry and the signed document in one transaction, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import AbstractUser
from django.db import IntegrityError, transaction

from fleet.control import audit, desired_state
from fleet.control.limits import BESIDE_PHY, CLOCK_RANGE, CONTROLS, MIG_LAYOUT, NODE_WIDE, POWER_CAP, GpuLimits, check_parameters, limits_of
from fleet.inventory import protection
from fleet.inventory.mig import Placement, Purpose, Span
from fleet.models import Gpu, Node, ObjectKind, ObservedControl, Policy, Site
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
    policy = _policy(CLOCK_RANGE, ObjectKind.GPU, gpu.uuid, {"min_mhz": low, "max_mhz": high}, why, end, user=user, idempotency_key=idempotency_key, now=now)
    return _store(policy, node_id=gpu.node_id, gpu=gpu, refusal=refusal_for, user=user, now=now, request_id=request_id)


def submit_control(
    *,
    control: str,
    target: Gpu | Node,
    parameters: object,
    ends_at: object,
    reason: object,
    user: AbstractUser,
    idempotency_key: str | None,
    now: datetime,
    request_id: str = "",
) -> Submitted:
    """Hold any control of `fleet.control.limits` on one GPU, or on one node where it is the node's. `ends_at` None: until it is withdrawn.

    All errors at once, by field. Raises ControlRefused, KeyReused, and `signing.SigningUnavailable`.
    """
    errors: dict[str, str] = {}
    of_node = isinstance(target, Node)
    if control not in CONTROLS or (control in NODE_WIDE) != of_node:
        fit = sorted(NODE_WIDE) if of_node else [name for name in CONTROLS if name not in NODE_WIDE]
        raise ControlRefused({"control": f"None of {', '.join(fit)}."})
    if isinstance(target, Node):
        errors |= check_parameters(control, parameters, limits_of(""))
    else:
        spans = [Span(one.start, one.size) for one in target.protected_placements.all()]
        errors |= check_parameters(
            control,
            parameters,
            limits_of_gpu(target),
            layout=layout_of(target) if control == MIG_LAYOUT else (),
            protected=spans if control == MIG_LAYOUT else (),
        )
    end = None if ends_at is None else _end(ends_at, now, errors)
    why = _reason(reason, errors)
    if idempotency_key is not None and not (0 < len(idempotency_key) <= 80 and idempotency_key.isprintable()):
        errors["idempotency_key"] = "Must be 1 to 80 printable characters."
    if errors:
        raise ControlRefused(errors)
    assert isinstance(parameters, dict)
    kind, key = (ObjectKind.NODE, str(target.pk)) if isinstance(target, Node) else (ObjectKind.GPU, target.uuid)
    policy = _policy(control, kind, key, parameters, why, end, user=user, idempotency_key=idempotency_key, now=now)
    if isinstance(target, Node):
        return _store(policy, node_id=target.pk, gpu=None, refusal=None, user=user, now=now, request_id=request_id)
    return _store(
        policy,
        node_id=target.node_id,
        gpu=target,
        refusal=refusal_beside_phy if control in BESIDE_PHY else refusal_for,
        user=user,
        now=now,
        request_id=request_id,
    )


def limits_of_gpu(gpu: Gpu) -> GpuLimits:
    """The bounds of this very board: what its agent read goes before the catalogue."""
    row = ObservedControl.objects.filter(gpu_uuid=gpu.uuid, node_id=gpu.node_id, control=POWER_CAP).only("observed").first()
    return limits_of(gpu.sku, row.observed if row else None)


def refusal_beside_phy(gpu: Gpu) -> str:
    """Why a control that leaves the radio's placements as they are may not be set; "" when it may."""
    if gpu.presence in (Gpu.Presence.MISSING, Gpu.Presence.RETIRED):
        return f"target not present: {gpu.uuid} is {gpu.get_presence_display().lower()}."
    return ""


def layout_of(gpu: Gpu) -> list[Placement]:
    """What stands on the GPU now, as the inventory has it."""
    slices = gpu.slices.filter(ended_at__isnull=True, start__isnull=False)
    return [Placement(one.start or 0, one.profile, Purpose(one.purpose)) for one in slices]


def _policy(
    control: str,
    kind: ObjectKind,
    key: str,
    parameters: Mapping[str, object],
    reason: str,
    end: datetime | None,
    *,
    user: AbstractUser,
    idempotency_key: str | None,
    now: datetime,
) -> Policy:
    return Policy(
        control=control,
        scope_kind=kind,
        scope_key=key,
        parameters=dict(parameters),
        reason=reason,
        starts_at=now,
        ends_at=end,
        created_by_id=user.pk,
        created_at=now,
        idempotency_key=idempotency_key,
    )


def _store(
    policy: Policy, *, node_id: int, gpu: Gpu | None, refusal: Callable[[Gpu], str] | None, user: AbstractUser, now: datetime, request_id: str
) -> Submitted:
    """The policy, its audit entry and the node's new document in one transaction; what the same key stored before is answered as it is."""
    if policy.idempotency_key is not None and (before := _stored(policy)) is not None:
        return before
    try:
        with transaction.atomic():
            # Locked, node first as everybody does: the GPU cannot come to carry PHY, or move, between this check and the document.
            node = Node.objects.select_for_update(no_key=True, of=("self",)).select_related("site").get(pk=node_id)
            if gpu is not None and refusal is not None:
                held = Gpu.objects.select_for_update(of=("self",)).select_related("node__site").prefetch_related("protected_placements").get(pk=gpu.pk)
                if why := refusal(held):
                    raise ControlRefused({"": why})
                node_id = held.node_id
            policy.save(force_insert=True)
            _audit(policy, actor=user.get_username(), action="control.set", reason=policy.reason, now=now, request_id=request_id)
            desired_state.issue_documents([node_id], now=now)
            transaction.on_commit(lambda: publish_notices([_notice(policy, node.site, "pending")]))
    except IntegrityError as error:
        # Another request with this key was stored between our look and our insert.
        if policy.idempotency_key is not None and (before := _stored(policy)) is not None:
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
            node = _node_of(policy)
            if node is not None:
                desired_state.issue_documents([node.pk], now=now)
                transaction.on_commit(lambda: publish_notices([_notice(policy, node.site, "pending")]))
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


def _node_of(policy: Policy) -> Node | None:
    """The node that a policy on a node or a GPU is for; None for wider ones."""
    nodes = Node.objects.select_related("site")
    if policy.scope_kind == ObjectKind.GPU:
        return nodes.filter(gpus__uuid=policy.scope_key).first()
    return nodes.filter(pk=int(policy.scope_key)).first() if policy.scope_kind == ObjectKind.NODE else None


def _notice(policy: Policy, site: Site, state: str) -> dict[str, object]:
    return {
        "type": "control",
        "site": site.code,
        "region_id": site.region_id,
        "kind": policy.scope_kind,
        "key": policy.scope_key,
        "control": policy.control,
        "state": state,
        "detail": "",
    }
