"""Breakers: guards that stop acts of a whole scope when too much happens at once, or when it is we who cannot see. They open by themselves, people reset them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.auth.models import AbstractUser
from django.db import transaction
from django.db.models import Count, Q, QuerySet

from fleet.control import audit
from fleet.control.action_facts import DISRUPTIVE
from fleet.control.commands import CommandRefused, checked_reason
from fleet.control.guardrail_settings import limits_of_settings
from fleet.control.guardrails import Limits
from fleet.models import AuditKind, Breaker, Command, CommandTarget, Node, ObjectKind, Site
from fleet.stream import publish_notices

WEEK = timedelta(days=7)
SYSTEM = "console"


@dataclass(frozen=True)
class Trip:
    """A rule that is broken now."""

    rule: str
    scope_kind: str
    scope_key: str
    why: str
    evidence: dict[str, Any]


def evaluate(*, now: datetime, limits: Limits | None = None) -> list[Breaker]:
    """Open a breaker for each rule that is broken and has none open yet, each with its audit entry. A few statements, however large the fleet."""
    rules = limits or limits_of_settings()
    found = [*_observer(rules), *_disruptions(rules, now)]
    opened = []
    for trip in found:
        with transaction.atomic():
            breaker, created = Breaker.objects.get_or_create(
                rule=trip.rule,
                scope_kind=trip.scope_kind,
                scope_key=trip.scope_key,
                reset_at=None,
                defaults={"why": trip.why, "evidence": trip.evidence, "tripped_at": now},
            )
            if created:
                opened.append(breaker)
                _audit(breaker, "breaker.tripped", SYSTEM, trip.why, now)
                transaction.on_commit(partial(_tell, breaker))
    return opened


def _tell(breaker: Breaker) -> None:
    publish_notices([{"type": "breaker", "key": str(breaker.pk), "state": "tripped", "detail": breaker.why}])


def _observer(limits: Limits) -> Iterable[Trip]:
    """More than half of a region silent together: it is our link that failed, more likely than all of theirs."""
    rows = (
        Site.objects.order_by()
        .values_list("region__slug")
        .annotate(sites=Count("pk"), silent=Count("pk", filter=Q(health__out_of_contact_since__isnull=False)))
    )
    for region, sites, silent in rows:
        if sites >= limits.observer_fewest_sites and silent > limits.observer_silent_share * sites:
            yield Trip(
                "observer",
                ObjectKind.REGION,
                region,
                f"{silent} of {sites} sites are silent together: our link, more likely than theirs.",
                {"sites": sites, "silent": silent},
            )


def _disruptions(limits: Limits, now: datetime) -> Iterable[Trip]:
    """New disruptive acts of the last minutes against a share of the nodes, by region and in the whole fleet; for the fleet also against its own week."""
    window = timedelta(minutes=limits.trip_minutes)
    recent = CommandTarget.objects.filter(command__kind__in=DISRUPTIVE, released_at__gt=now - window, command__break_glass=False)
    nodes = dict(Node.objects.filter(retired_at__isnull=True).order_by().values_list("site__region__slug").annotate(count=Count("pk")))
    by_region = dict(recent.order_by().values_list("node__site__region__slug").annotate(count=Count("node", distinct=True)))
    for region, acts in by_region.items():
        most = max(limits.region_trip_fewest, limits.region_trip_share * nodes.get(region, 0))
        if acts > most:
            yield Trip(
                "region",
                ObjectKind.REGION,
                region,
                f"{acts} nodes disrupted within {limits.trip_minutes} min, more than {most:.0f}.",
                {"acts": acts, "limit": most},
            )
    acts, total = sum(by_region.values()), sum(nodes.values())
    week = CommandTarget.objects.filter(command__kind__in=DISRUPTIVE, released_at__gt=now - WEEK, released_at__lte=now - window).count()
    usual = week / (WEEK / window)
    most = max(limits.fleet_trip_fewest, limits.fleet_trip_share * total)
    if acts > most or (acts > limits.fleet_trip_fewest and week and acts > limits.fleet_trip_factor * usual):
        why = f"{acts} nodes disrupted within {limits.trip_minutes} min; the limit is {most:.0f}, the week's usual {usual:.1f}."
        yield Trip("fleet", ObjectKind.FLEET, "", why, {"acts": acts, "limit": most, "usual": round(usual, 2)})


def reset(*, breaker_id: int, reason: object, backlog: object, user: AbstractUser, now: datetime, request_id: str = "") -> Breaker:
    """A person's word that it may go on; `backlog` says whether what waited is skipped or goes on. Raises CommandRefused."""
    errors: dict[str, str] = {}
    why = checked_reason(reason, errors)
    if backlog not in ("skip", "replay"):
        errors["backlog"] = "skip or replay."
    if errors:
        raise CommandRefused(errors)
    with transaction.atomic():
        breaker = Breaker.objects.select_for_update().get(pk=breaker_id)
        if breaker.reset_at is not None:
            raise CommandRefused({"": "It was reset already."})
        breaker.reset_at, breaker.reset_by, breaker.reset_reason, breaker.backlog = now, user.get_username(), why, str(backlog)
        breaker.save()
        skipped = 0
        if backlog == "skip":
            skipped = waiting_under(breaker).update(
                state=CommandTarget.State.SKIPPED, code="breaker", detail=f"Skipped when a breaker was reset: {why}"[:300], finished_at=now
            )
        _audit(breaker, "breaker.reset", user.get_username(), why, now, request_id, {"backlog": backlog, "skipped": skipped})
    return breaker


def _waiting() -> QuerySet[CommandTarget]:
    """Targets of disruptive commands that run or are paused, which have not begun."""
    return CommandTarget.objects.filter(
        state=CommandTarget.State.PENDING,
        released_at__isnull=True,
        command__state__in=(Command.State.RUNNING, Command.State.PAUSED),
        command__kind__in=DISRUPTIVE,
    )


def waiting_counts(found: Iterable[Breaker]) -> dict[int, int]:
    """How many targets wait under each of these breakers, by its id. One statement."""
    by_region = dict(_waiting().order_by().values_list("node__site__region__slug").annotate(count=Count("pk")))
    total = sum(by_region.values())
    return {one.pk: total if one.scope_kind == ObjectKind.FLEET else by_region.get(one.scope_key, 0) for one in found}


def waiting_under(breaker: Breaker) -> QuerySet[CommandTarget]:
    """Targets that have not begun and lie in the breaker's scope."""
    rows = _waiting()
    return rows if breaker.scope_kind == ObjectKind.FLEET else rows.filter(node__in=Node.objects.filter(site__region__slug=breaker.scope_key))


def _audit(breaker: Breaker, action: str, actor: str, reason: str, now: datetime, request_id: str = "", detail: dict[str, Any] | None = None) -> None:
    kind = AuditKind.FLEET if breaker.scope_kind == ObjectKind.FLEET else AuditKind.REGION
    audit.record(
        actor=actor,
        action=action,
        now=now,
        kind=kind,
        key=breaker.scope_key,
        reason=reason,
        request_id=request_id,
        detail={"breaker": breaker.pk, "rule": breaker.rule, **breaker.evidence, **(detail or {})},
    )
