"""Planned windows on every scope: what they cover, how they change, who did it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fleet.health.maintenance import MaintenanceRefused, create_window, end_window, extend_window, find_scope, windows_covering
from fleet.models import AuditEntry, Finding, Gpu, MaintenanceWindow
from tests.builders import make_gpu, make_node, make_region, make_site
from tests.fleet.health_world import START, World, state_of, when

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def plan(kind: str, key: str, *, minutes: float = 2, start: float = START) -> MaintenanceWindow:
    starts_at = when(start)
    return create_window(
        scope=find_scope(kind, key), starts_at=starts_at, ends_at=starts_at + timedelta(minutes=minutes), reason="fan swap", actor="olga", now=starts_at
    )


@pytest.mark.parametrize(
    ("kind", "key_of", "site_too", "node_too"),
    [
        ("fleet", lambda gpu: "", True, True),
        ("area", lambda gpu: gpu.node.site.region.area.slug, True, True),
        ("region", lambda gpu: gpu.node.site.region.slug, True, True),
        ("site", lambda gpu: gpu.node.site.code, True, True),
        ("node", lambda gpu: str(gpu.node_id), False, True),
        ("gpu", lambda gpu: gpu.uuid, False, False),
    ],
)
def test_a_window_covers_its_scope_and_what_is_inside(kind: str, key_of: Callable[[Gpu], str], site_too: bool, node_too: bool) -> None:
    site = make_site()
    gpu = make_gpu(node=make_node(site=site))
    neighbour = make_gpu(node=make_node(site=site))
    elsewhere = make_gpu(node=make_node(site=make_site(region=make_region())))
    plan(kind, key_of(gpu))
    world = World()
    world.run(20)
    assert state_of(gpu)[0] == "maintenance"
    assert (state_of(gpu.node)[0] == "maintenance") is node_too
    assert (state_of(site)[0] == "maintenance") is site_too
    assert (state_of(neighbour)[0] == "maintenance") is site_too
    assert (state_of(elsewhere)[0] == "maintenance") is (kind == "fleet")
    if not site_too:
        assert state_of(site) == ("ok", "ok")
    gpu.refresh_from_db()
    assert gpu.health.why == "Planned maintenance until 2026-11-20 10:02:00 UTC: fan swap"
    world.run(120)
    assert {state_of(thing) for thing in (gpu, gpu.node, site, neighbour, elsewhere)} == {("ok", "ok")}


def test_what_happens_inside_is_recorded_and_stands_after_the_end() -> None:
    gpu = make_gpu(node=make_node())
    plan("site", gpu.node.site.code)
    world = World()
    world.run(30)
    world.xid(gpu, 79)
    world.run(30)
    assert state_of(gpu)[0] == "maintenance"
    assert Finding.objects.get().code == "xid_79"
    world.run(80)
    assert state_of(gpu) == ("down", "xid_79")


def test_a_silent_site_in_maintenance_is_maintenance_and_then_unknown() -> None:
    node = make_node()
    make_gpu(node=node)
    plan("site", node.site.code)
    world = World()
    world.run(20)
    world.run(80, gpus=[])
    assert state_of(node.site)[0] == "maintenance"
    world.run(40, gpus=[])
    assert state_of(node.site) == ("unknown", "link_down")


def test_a_node_in_maintenance_leaves_the_site_to_the_others() -> None:
    site = make_site()
    one, two = make_gpu(node=make_node(site=site)), make_gpu(node=make_node(site=site))
    plan("node", str(one.node_id))
    world = World()
    world.run(20)
    world.xid(one, 79)
    world.run(20)
    assert state_of(site) == ("ok", "ok")
    world.xid(two, 79)
    world.run(10)
    assert state_of(site) == ("down", "xid_79")


def test_extend_and_end() -> None:
    gpu = make_gpu(node=make_node())
    window = plan("gpu", gpu.uuid)
    world = World()
    world.run(20)
    extend_window(window=window, ends_at=when(START + 600), reason="takes longer", actor="olga", now=when(world.now))
    world.run(140)
    assert state_of(gpu)[0] == "maintenance"
    end_window(window=window, reason="done", actor="pavel", now=when(world.now))
    world.run(10)
    assert state_of(gpu) == ("ok", "ok")
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "actor", "reason")) == [
        ("maintenance.create", "olga", "fan swap"),
        ("maintenance.extend", "olga", "takes longer"),
        ("maintenance.end", "pavel", "done"),
    ]
    end_window(window=window, reason="again", actor="pavel", now=when(world.now))
    assert AuditEntry.objects.count() == 3
    with pytest.raises(MaintenanceRefused) as refused:
        extend_window(window=window, ends_at=when(START + 900), reason="late", actor="olga", now=when(world.now))
    assert refused.value.errors == {"ends_at": "The window is over; plan a new one."}


def test_a_window_to_come_can_be_called_off() -> None:
    gpu = make_gpu(node=make_node())
    window = plan("gpu", gpu.uuid, start=START + 60)
    end_window(window=window, reason="not needed", actor="olga", now=when(START))
    world = World()
    world.run(80)
    assert state_of(gpu) == ("ok", "ok")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reason": "  "}, "reason"),
        ({"reason": "x" * 301}, "reason"),
        ({"reason": "fan\0swap"}, "reason"),
        ({"ends_at": when(START - 1)}, "ends_at"),
        ({"starts_at": when(START + 7200)}, "ends_at"),
        ({"starts_at": when(START - 3600)}, "starts_at"),
        ({"ends_at": when(START) + timedelta(days=91)}, "ends_at"),
    ],
)
def test_bad_windows_are_refused_naming_the_field(changes: dict[str, Any], field: str) -> None:
    site = make_site()
    wanted: dict[str, Any] = {"starts_at": when(START), "ends_at": when(START) + HOUR, "reason": "fan swap", **changes}
    with pytest.raises(MaintenanceRefused) as refused:
        create_window(scope=find_scope("site", site.code), actor="olga", now=when(START), **wanted)
    assert list(refused.value.errors) == [field]
    assert not MaintenanceWindow.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("kind", "key", "field"),
    [
        ("site", "nowhere", "scope_key"),
        ("node", "x", "scope_key"),
        ("node", "9" * 30, "scope_key"),
        ("gpu", "GPU-0", "scope_key"),
        ("area", "x", "scope_key"),
        ("region", "x", "scope_key"),
        ("fleet", "x", "scope_key"),
        ("site", "a\0b", "scope_key"),
        ("site", "x" * 81, "scope_key"),
        ("slice", "x", "scope_kind"),
        ("planet", "", "scope_kind"),
    ],
)
def test_scopes_that_do_not_exist(kind: str, key: str, field: str) -> None:
    with pytest.raises(MaintenanceRefused) as refused:
        find_scope(kind, key)
    assert list(refused.value.errors) == [field]


def test_windows_that_cover_an_object() -> None:
    gpu = make_gpu(node=make_node())
    other = make_gpu(node=make_node())
    soon = plan("region", gpu.node.site.region.slug, start=START + 3600)
    now_ = plan("gpu", gpu.uuid)
    plan("site", other.node.site.code)
    assert windows_covering(now=when(START), site=gpu.node.site, node=gpu.node, gpu=gpu) == [now_, soon]
    assert windows_covering(now=when(START), site=gpu.node.site) == [soon]
    assert windows_covering(now=when(START + 300), site=gpu.node.site, gpu=gpu) == [soon]
