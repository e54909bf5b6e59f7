"""What happened to one GPU, in plain words: changes of state, XIDs with their meaning, controls set and ended. Newest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.control_words import asked_for
from fleet.health.xid import table
from fleet.models import Gpu, HealthState, HealthTransition, ObjectKind, Policy, XidEvent

SHOWN = 30


@dataclass(frozen=True)
class Event:
    at: datetime
    state: str  # health state whose mark stands beside it
    text: str
    detail: str = ""


def events_of(gpu: Gpu, policies: Iterable[Policy], *, now: datetime) -> list[Event]:
    """The newest `SHOWN` events. Two statements; `policies` are those of the GPU."""
    events = [
        Event(row.at, row.to_state, _("%(state)s: %(why)s") % {"state": _(HealthState(row.to_state).label), "why": row.why}, row.cause)
        for row in HealthTransition.objects.filter(kind=ObjectKind.GPU, object_key=gpu.uuid).order_by("-at")[:SHOWN]
    ]
    events += [xid_event(row) for row in XidEvent.objects.filter(gpu=gpu).order_by("-last_at")[:SHOWN]]
    for policy in policies:
        events += _policy_events(policy, gpu, now)
    return sorted(events, key=lambda event: event.at, reverse=True)[:SHOWN]


def xid_event(row: XidEvent) -> Event:
    rule = table().rule(row.xid)
    times = ngettext("%(n)d time", "%(n)d times", row.count) % {"n": row.count}
    return Event(row.last_at, rule.state.value, f"XID {row.xid}: {rule.meaning}" + (f" ({times})" if row.count > 1 else ""), rule.advised)


def _policy_events(policy: Policy, gpu: Gpu, now: datetime) -> list[Event]:
    what = asked_for(policy, sku=gpu.sku)
    events = [
        Event(policy.starts_at, HealthState.MAINTENANCE, _("%(what)s set by %(who)s") % {"what": what, "who": policy.created_by.get_username()}, policy.reason)
    ]
    if policy.withdrawn_at:
        who = policy.withdrawn_by.get_username() if policy.withdrawn_by else ""
        events.append(Event(policy.withdrawn_at, HealthState.OK, _("%(what)s withdrawn by %(who)s") % {"what": what, "who": who}))
    elif policy.ends_at and policy.ends_at <= now:
        events.append(Event(policy.ends_at, HealthState.OK, _("%(what)s ended by itself") % {"what": what}))
    return events
