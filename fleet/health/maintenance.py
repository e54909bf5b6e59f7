"""Planned maintenance: windows on any scope, and which objects they cover now. What lies inside is `maintenance`, and its findings are still recorded."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from fleet.control import audit
from fleet.models import Area, Gpu, MaintenanceWindow, Node, ObjectKind, Region, Site

LONGEST = timedelta(days=90)
SCOPES = (ObjectKind.FLEET, ObjectKind.AREA, ObjectKind.REGION, ObjectKind.SITE, ObjectKind.NODE, ObjectKind.GPU)


class MaintenanceRefused(Exception):
    """`errors` maps the field to what is wrong with it."""

    def __init__(self, **errors: str) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in errors.items()))
        self.errors = errors


@dataclass(frozen=True)
class Scope:
    """An object that a window covers, with the region that decides who may change it (None: no single region)."""

    kind: ObjectKind
    key: str
    region_id: int | None
    name: str


def find_scope(kind: str, key: str) -> Scope:
    """The object that (kind, key) names. Raises `MaintenanceRefused` naming `scope_kind` or `scope_key`."""
    if kind not in SCOPES:
        raise MaintenanceRefused(scope_kind=f"{kind!r} is none of {', '.join(SCOPES)}.")
    found: Scope | None = None
    if "\0" in key or len(key) > 80:
        raise MaintenanceRefused(scope_key=f"There is no {kind} of this key.")
    match ObjectKind(kind):
        case ObjectKind.FLEET:
            if key:
                raise MaintenanceRefused(scope_key="The whole fleet has no key: leave it empty.")
            return Scope(ObjectKind.FLEET, "", None, "the whole fleet")
        case ObjectKind.AREA:
            area = Area.objects.filter(slug=key).first()
            found = Scope(ObjectKind.AREA, key, None, area.name) if area else None
        case ObjectKind.REGION:
            region = Region.objects.filter(slug=key).first()
            found = Scope(ObjectKind.REGION, key, region.pk, region.name) if region else None
        case ObjectKind.SITE:
            site = Site.objects.filter(code=key).first()
            found = Scope(ObjectKind.SITE, key, site.region_id, site.code) if site else None
        case ObjectKind.NODE:
            node = Node.objects.select_related("site").filter(pk=int(key), retired_at__isnull=True).first() if key.isdecimal() and len(key) < 19 else None
            found = Scope(ObjectKind.NODE, key, node.site.region_id, node.host_name) if node else None
        case _:
            gpu = Gpu.objects.select_related("node__site").filter(uuid=key).exclude(presence=Gpu.Presence.RETIRED).first()
            found = Scope(ObjectKind.GPU, key, gpu.node.site.region_id, gpu.uuid) if gpu else None
    if not found:
        raise MaintenanceRefused(scope_key=f"There is no {kind} {key!r}.")
    return found


def create_window(*, scope: Scope, starts_at: datetime, ends_at: datetime, reason: str, actor: str, now: datetime, request_id: str = "") -> MaintenanceWindow:
    """Plan a window. `actor` is the user name. Raises `MaintenanceRefused` with all errors at once."""
    errors = {**_reason_errors(reason), **_end_errors(starts_at, ends_at, now)}
    if starts_at < now - timedelta(minutes=5):
        errors["starts_at"] = "A window cannot begin in the past."
    if errors:
        raise MaintenanceRefused(**errors)
    with transaction.atomic():
        window = MaintenanceWindow.objects.create(
            scope_kind=scope.kind, scope_key=scope.key, starts_at=starts_at, ends_at=ends_at, reason=reason.strip(), created_by=actor
        )
        _audit(window, "maintenance.create", reason, actor, now, request_id, {"starts_at": starts_at.isoformat(), "ends_at": ends_at.isoformat()})
    return window


def extend_window(*, window: MaintenanceWindow, ends_at: datetime, reason: str, actor: str, now: datetime, request_id: str = "") -> MaintenanceWindow:
    """Move the end of a window that is not over, later or earlier, but not into the past. Raises `MaintenanceRefused`."""
    with transaction.atomic():
        current = MaintenanceWindow.objects.select_for_update().get(pk=window.pk)
        errors = {**_reason_errors(reason), **_end_errors(current.starts_at, ends_at, now)}
        if current.ended_at is not None or current.ends_at <= now:
            errors["ends_at"] = "The window is over; plan a new one."
        if errors:
            raise MaintenanceRefused(**errors)
        before = current.ends_at
        current.ends_at = ends_at
        current.save(update_fields=["ends_at"])
        _audit(current, "maintenance.extend", reason, actor, now, request_id, {"before": before.isoformat(), "after": ends_at.isoformat()})
    return current


def end_window(*, window: MaintenanceWindow, reason: str, actor: str, now: datetime, request_id: str = "") -> MaintenanceWindow:
    """End a window now, or call off one that has not begun. A window that is over already stays as it is. Raises `MaintenanceRefused` without a reason."""
    if errors := _reason_errors(reason):
        raise MaintenanceRefused(**errors)
    with transaction.atomic():
        current = MaintenanceWindow.objects.select_for_update().get(pk=window.pk)
        if current.ended_at is None and current.ends_at > now:
            current.ended_at, current.ended_by = now, actor
            current.save(update_fields=["ended_at", "ended_by"])
            _audit(current, "maintenance.end", reason, actor, now, request_id, {"planned_end": current.ends_at.isoformat()})
    return current


def windows_covering(*, now: datetime, site: Site, node: Node | None = None, gpu: Gpu | None = None) -> list[MaintenanceWindow]:
    """Windows, active or to come, that cover this site, or one of its nodes or GPUs when given; soonest first. One query beside the site's region and area."""
    region = site.region
    scope = (
        Q(scope_kind=ObjectKind.FLEET)
        | Q(scope_kind=ObjectKind.AREA, scope_key=region.area.slug)
        | Q(scope_kind=ObjectKind.REGION, scope_key=region.slug)
        | Q(scope_kind=ObjectKind.SITE, scope_key=site.code)
    )
    if node is not None:
        scope |= Q(scope_kind=ObjectKind.NODE, scope_key=str(node.pk))
    if gpu is not None:
        scope |= Q(scope_kind=ObjectKind.GPU, scope_key=gpu.uuid)
    return list(MaintenanceWindow.objects.not_over(now).filter(scope).order_by("starts_at", "pk"))


def _reason_errors(reason: str) -> dict[str, str]:
    text = reason.strip()
    if not text:
        return {"reason": "Say why."}
    if "\0" in text:
        return {"reason": "Characters that cannot be printed are not allowed."}
    return {"reason": "At most 300 characters."} if len(text) > 300 else {}


def _end_errors(starts_at: datetime, ends_at: datetime, now: datetime) -> dict[str, str]:
    if ends_at <= now:
        return {"ends_at": "The end must lie in the future."}
    if ends_at <= starts_at:
        return {"ends_at": "The end must lie after the start."}
    return {"ends_at": f"At most {LONGEST.days} days."} if ends_at - starts_at > LONGEST else {}


def _audit(window: MaintenanceWindow, action: str, reason: str, actor: str, now: datetime, request_id: str, detail: dict[str, str]) -> None:
    audit.record(
        now=now,
        actor=actor,
        action=action,
        kind=window.scope_kind,
        key=window.scope_key,
        reason=reason,
        detail={"window": window.pk, **detail},
        request_id=request_id,
    )
