"""Wide switches: kill (AI work of a scope stops, PHY never) and automation off. One signed document for the whole scope, armed and released by people.

Nothing here waits for anybody: a switch is in force as soon as its row is committed, holds until it is released or its own end, and each node that hears
of it late applies it then, if it is still armed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import redis
import structlog
from django.contrib.auth.models import AbstractUser
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Q, QuerySet, Sum

from agent.protocol import LocalEvent as AgentEvent
from agent.protocol import ScopeKind, SignedSwitch, SwitchKind, SwitchUpdate, sign_switch
from agent.protocol import Switch as SwitchBody
from fleet.control import audit, signing
from fleet.control.commands import CommandRefused, checked_reason
from fleet.control.desired_state import WAKE_KEY, WAKE_MAXLEN
from fleet.health.maintenance import MaintenanceRefused, Scope, find_scope
from fleet.models import AgentConnection, AgentIdentity, AuditKind, LocalEvent, MigSlice, Node, ObjectKind, Switch, SwitchAnswer, Workload
from fleet.stream import connect, publish_notices

log = structlog.get_logger(__name__)
LONGEST = timedelta(days=365)
# A node that was away learns of a release for so long; later it is told only what is armed, which says the same.
REMEMBER = timedelta(days=30)


@dataclass(frozen=True)
class Reached:
    """What a switch would reach now: counts for the preview. `unreachable` nodes apply it when they come back, if it is still armed."""

    sites: int
    nodes: int
    unreachable: int
    without_agent: int
    workloads: int
    phy_workloads: int
    tenants: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.__dict__.items()}


def nodes_in(scope_kind: str, scope_key: str) -> QuerySet[Node]:
    """The nodes that a scope covers, retired ones left out."""
    nodes = Node.objects.filter(retired_at__isnull=True)
    match scope_kind:
        case ObjectKind.FLEET:
            return nodes
        case ObjectKind.AREA:
            return nodes.filter(site__region__area__slug=scope_key)
        case ObjectKind.REGION:
            return nodes.filter(site__region__slug=scope_key)
        case ObjectKind.SITE:
            return nodes.filter(site__code=scope_key)
        case ObjectKind.NODE:
            return nodes.filter(pk=int(scope_key))
    raise ValueError(f"a switch has no scope {scope_kind!r}")


def find_switch_scope(kind: str, key: str) -> Scope:
    """The object that a switch is for. Raises CommandRefused naming `scope_kind` or `scope_key`."""
    if kind not in list(ScopeKind):
        raise CommandRefused({"scope_kind": f"{kind!r} is none of {', '.join(ScopeKind)}."})
    try:
        return find_scope(kind, key)
    except MaintenanceRefused as error:
        raise CommandRefused(error.errors) from error


def reached(*, scope_kind: str, scope_key: str, tenant: str = "", model: str = "") -> Reached:
    """Counts of what lies in the scope. `model` narrows no count: which pods serve it, the agents know. Six queries."""
    nodes = nodes_in(scope_kind, scope_key)
    totals = nodes.aggregate(nodes=Count("pk"), sites=Count("site", distinct=True))
    enrolled = nodes.filter(pk__in=AgentIdentity.objects.filter(revoked_at__isnull=True).values("node_id")).count()
    connected = AgentConnection.objects.filter(node__in=nodes, connected=True).count()
    running = Workload.objects.running().filter(gpu__node__in=nodes)
    phy = Q(slice__purpose=MigSlice.Purpose.PHY)
    ours = running.exclude(phy)
    if tenant:
        ours = ours.filter(tenant_key=tenant)
    return Reached(
        sites=totals["sites"],
        nodes=totals["nodes"],
        unreachable=max(0, enrolled - connected),
        without_agent=totals["nodes"] - enrolled,
        workloads=ours.count(),
        phy_workloads=running.filter(phy).count(),
        tenants=tuple(sorted(ours.exclude(tenant_key="").order_by().values_list("tenant_key", flat=True).distinct())),
    )


def arm(
    *,
    kind: str,
    scope_kind: str,
    scope_key: str,
    reason: object,
    user: AbstractUser,
    now: datetime,
    tenant: str = "",
    model: str = "",
    ends_at: object = None,
    request_id: str = "",
) -> Switch:
    """Arm a switch, or return the one that is armed on exactly this scope already. Raises CommandRefused, `signing.SigningUnavailable`."""
    errors: dict[str, str] = {}
    if kind not in Switch.Kind.values:
        errors["kind"] = f"None of {', '.join(Switch.Kind.values)}."
    why = checked_reason(reason, errors)
    if ends_at is not None:
        if not isinstance(ends_at, datetime) or ends_at.tzinfo is None:
            errors["ends_at"] = "Must be a date and time with its zone, or nothing."
        elif not now < ends_at <= now + LONGEST:
            errors["ends_at"] = f"Must lie ahead, at most {LONGEST.days} days."
    if kind == Switch.Kind.AUTOMATION_OFF and (tenant or model):
        errors["tenant" if tenant else "model"] = "Only a kill can be for one tenant or one model."
    for name, text, longest in (("tenant", tenant, 40), ("model", model, 200)):
        if len(text) > longest or not text.isprintable():
            errors[name] = f"Must be at most {longest} printable characters."
    if errors:
        raise CommandRefused(errors)
    end = ends_at if isinstance(ends_at, datetime) else None
    scope = find_switch_scope(scope_kind, scope_key)
    same = {"kind": kind, "scope_kind": scope.kind.value, "scope_key": scope.key, "tenant_key": tenant, "model_name": model, "armed": True}
    try:
        with transaction.atomic():
            before = Switch.objects.select_for_update().filter(**same).first()
            if before is not None and (before.ends_at is None or before.ends_at > now):
                return before
            if before is not None:  # it ended by itself
                Switch.objects.filter(pk=before.pk).update(armed=False, released_at=before.ends_at)
            counts = reached(scope_kind=scope.kind.value, scope_key=scope.key, tenant=tenant, model=model)
            switch = Switch(id=uuid4(), version=1, ends_at=end, reason=why, preview=counts.as_json(), armed_by_id=user.pk, armed_at=now, **same)
            _sign(switch, now)
            switch.save(force_insert=True)
            _audit(switch, "switch.armed", user, why, now, request_id)
            transaction.on_commit(lambda: wake_switches(switch.pk))
            transaction.on_commit(lambda: publish_notices([_notice(switch)]))
    except IntegrityError:
        # Somebody armed the same one in the same moment.
        return Switch.objects.get(**same)
    return switch


def release(*, switch_id: UUID, reason: object, user: AbstractUser, now: datetime, request_id: str = "") -> Switch:
    """Release a switch; one that is released stays so. Raises CommandRefused without a reason."""
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    if errors:
        raise CommandRefused(errors)
    with transaction.atomic():
        switch = Switch.objects.select_for_update().get(pk=switch_id)
        if not switch.armed:
            return switch
        switch.armed, switch.version = False, switch.version + 1
        switch.released_by_id, switch.released_at, switch.release_reason = user.pk, now, why
        _sign(switch, now)
        switch.save()
        _audit(switch, "switch.released", user, why, now, request_id)
        transaction.on_commit(lambda: wake_switches(switch.pk))
        transaction.on_commit(lambda: publish_notices([_notice(switch)]))
    return switch


def _sign(switch: Switch, now: datetime) -> None:
    body = SwitchBody(
        switch=str(switch.pk),
        version=switch.version,
        kind=SwitchKind(switch.kind),
        scope_kind=ScopeKind(switch.scope_kind),
        scope_key=switch.scope_key,
        armed=switch.armed,
        issued_at=now.timestamp(),
        ends_at=switch.ends_at.timestamp() if switch.ends_at else None,
        tenant=switch.tenant_key,
        model=switch.model_name,
    )
    signed = sign_switch(body, signing.signing_key())
    switch.body, switch.signature, switch.key_id = signed.body, signed.signature, signed.key_id


@dataclass(frozen=True)
class Relayed:
    """A switch as a gateway hands it on, with the scope that decides to whom."""

    scope_kind: str
    scope_key: str
    signed: SignedSwitch
    armed: bool = True


def relayed(*, now: datetime) -> dict[str, Relayed]:
    """What agents should hear of, by switch: everything in force, and what was released lately."""
    rows = Switch.objects.filter(Q(armed=True) | Q(released_at__gt=now - REMEMBER))
    return {
        str(row.pk): Relayed(
            row.scope_kind,
            row.scope_key,
            SignedSwitch(switch=str(row.pk), version=row.version, body=bytes(row.body), signature=bytes(row.signature), key_id=row.key_id),
            row.armed,
        )
        for row in rows
    }


def released_at(node_ids: Iterable[int]) -> set[tuple[int, str]]:
    """Pairs of (node id, switch) of released switches that the node has said to have released: it need not hear of them again."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT answer.node_id, answer.switch_id FROM fleet_switchanswer answer JOIN fleet_switch known ON known.id = answer.switch_id"
            " WHERE NOT known.armed AND answer.version = known.version AND answer.state = 'released' AND answer.node_id = ANY(%s)",
            [list(node_ids)],
        )
        return {(node_id, str(switch)) for node_id, switch in cursor.fetchall()}


def places(node_ids: Iterable[int]) -> dict[int, dict[str, str]]:
    """For each node the scope keys that cover it, by scope kind."""
    rows = Node.objects.filter(pk__in=list(node_ids)).values_list("pk", "site__region__area__slug", "site__region__slug", "site__code")
    return {pk: {"fleet": "", "area": area, "region": region, "site": site, "node": str(pk)} for pk, area, region, site in rows}


_ANSWERS = """
    INSERT INTO fleet_switchanswer AS held (switch_id, node_id, version, state, stopped, remaining, detail, at, sequence, received_at)
    SELECT seen.switch, seen.node_id, seen.version, seen.state, seen.stopped, seen.remaining, seen.detail, seen.at, seen.sequence, %(now)s
    FROM unnest(%(switch)s::uuid[], %(node_id)s::bigint[], %(version)s::bigint[], %(state)s::text[], %(stopped)s::int[], %(remaining)s::int[],
        %(detail)s::text[], %(at)s::timestamptz[], %(sequence)s::bigint[])
        AS seen (switch, node_id, version, state, stopped, remaining, detail, at, sequence)
    JOIN fleet_switch known ON known.id = seen.switch AND seen.version <= known.version
    JOIN fleet_node node ON node.id = seen.node_id
    ON CONFLICT (switch_id, node_id) DO UPDATE SET version = excluded.version, state = excluded.state, stopped = excluded.stopped,
        remaining = excluded.remaining, detail = excluded.detail, at = excluded.at, sequence = excluded.sequence, received_at = excluded.received_at
    WHERE held.version <= excluded.version AND held.sequence < excluded.sequence
    RETURNING switch_id
"""


def record_answers(answers: Iterable[tuple[int, SwitchUpdate]], *, now: datetime) -> int:
    """Store pairs of (node id, update), the newest of each switch and node; how many rows changed."""
    newest: dict[tuple[int, str], SwitchUpdate] = {}
    for node_id, update in answers:
        key = (node_id, update.switch)
        if key not in newest or newest[key].sequence < update.sequence:
            newest[key] = update
    if not newest:
        return 0
    rows = sorted(newest.items(), key=lambda item: (item[0][1], item[0][0]))
    found = [update for _, update in rows]
    with connection.cursor() as cursor:
        cursor.execute(
            _ANSWERS,
            {
                "now": now,
                "switch": [update.switch for update in found],
                "node_id": [key[0] for key, _ in rows],
                "version": [update.version for update in found],
                "state": [update.state.value for update in found],
                "stopped": [min(update.stopped, 2**31 - 1) for update in found],
                "remaining": [None if update.remaining is None else min(update.remaining, 2**31 - 1) for update in found],
                "detail": [update.detail for update in found],
                "at": [datetime.fromtimestamp(update.at, UTC) for update in found],
                "sequence": [update.sequence for update in found],
            },
        )
        changed = {str(switch) for (switch,) in cursor.fetchall()}
        count = cursor.rowcount
    publish_notices({"type": "switch", "key": key, "state": "moved"} for key in sorted(changed))
    return count


def record_events(events: Iterable[tuple[int, AgentEvent]], *, now: datetime) -> dict[int, list[str]]:
    """Store what agents did on their own, each once, with its audit entry in the same transaction. Returns the ids that each agent may forget."""
    found = {event.id: (node_id, event) for node_id, event in events}
    if not found:
        return {}
    with transaction.atomic():
        known = set(LocalEvent.objects.filter(pk__in=list(found)).values_list("pk", flat=True))
        fresh = {key: pair for key, pair in found.items() if UUID(key) not in known}
        there = set(Node.objects.filter(pk__in={node_id for node_id, _ in fresh.values()}).values_list("pk", flat=True))
        rows = [
            LocalEvent(
                id=key,
                node_id=node_id,
                kind=event.kind,
                at=datetime.fromtimestamp(event.at, UTC),
                subject=event.subject,
                detail=event.detail,
                received_at=now,
            )
            for key, (node_id, event) in sorted(fresh.items())
            if node_id in there
        ]
        LocalEvent.objects.bulk_create(rows, ignore_conflicts=True, batch_size=1000)
        audit.record_many(
            audit.Act(
                actor=f"agent:{row.node_id}",
                through=f"agent:{row.node_id}",
                action=f"agent.{row.kind}",
                at=now,
                kind=AuditKind.NODE,
                key=str(row.node_id),
                detail={"event": str(row.pk), "subject": row.subject, "event_at": row.at.isoformat(), **row.detail},
            )
            for row in rows
        )
    acked: dict[int, list[str]] = {}
    for key, (node_id, _) in found.items():
        acked.setdefault(node_id, []).append(key)
    return acked


@dataclass(frozen=True)
class Standing:
    """How far a switch has come: nodes by what they answered, of `nodes` in its scope. Who has not answered is `silent`, never counted as stopped."""

    nodes: int
    applied: int
    pending: int
    released: int
    refused: int
    silent: int
    stopped: int
    remaining: int


def standing(switch: Switch) -> Standing:
    """Counts over the nodes that are in the scope now. Two queries."""
    nodes = nodes_in(switch.scope_kind, switch.scope_key)
    answers = SwitchAnswer.objects.filter(switch=switch, node__in=nodes, version=switch.version)
    counts = dict(answers.values_list("state").annotate(count=Count("pk")))
    sums = answers.aggregate(stopped=Sum("stopped"), remaining=Sum("remaining"))
    total = nodes.count()
    return Standing(
        nodes=total,
        applied=counts.get("applied", 0),
        pending=counts.get("pending", 0),
        released=counts.get("released", 0),
        refused=counts.get("refused", 0),
        silent=total - sum(counts.values()),
        stopped=sums["stopped"] or 0,
        remaining=sums["remaining"] or 0,
    )


def wake_switches(switch_id: UUID) -> None:
    """Tell the gateways that a switch changed. Redis being away loses nothing: they also look by themselves."""
    try:
        connect().xadd(WAKE_KEY, {"s": str(switch_id)}, maxlen=WAKE_MAXLEN, approximate=True)
    except (redis.RedisError, OSError) as error:
        log.warning("gateway_wake_dropped", error=str(error))


def _audit(switch: Switch, action: str, user: AbstractUser, reason: str, now: datetime, request_id: str) -> None:
    audit.record(
        actor=user.get_username(),
        action=action,
        now=now,
        kind=AuditKind.SWITCH,
        key=str(switch.pk),
        reason=reason,
        request_id=request_id,
        detail={
            "kind": switch.kind,
            "scope": f"{switch.scope_kind} {switch.scope_key}".strip(),
            "tenant": switch.tenant_key,
            "model": switch.model_name,
            "version": switch.version,
            "ends_at": switch.ends_at.isoformat() if switch.ends_at else None,
            "reached": switch.preview,
        },
    )


def _notice(switch: Switch) -> dict[str, object]:
    return {"type": "switch", "key": str(switch.pk), "kind": switch.kind, "state": "armed" if switch.armed else "released"}
