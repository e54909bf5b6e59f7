"""The store: restarts make no transitions, a database that is away loses nothing, storing twice changes nothing, frames and notices."""

from typing import Any

import numpy as np
import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet import frames
from fleet.health import writes
from fleet.health.changes import Changes
from fleet.models import Finding, GpuHealth, HealthTransition, Region, SiteHealth, XidEvent
from script.servers import APP_ROLE, OWNER_ROLE
from tests.builders import make_area, make_gpu, make_node, make_region, make_site
from tests.fleet.health_world import START, World, enrol, state_of, when

pytestmark = pytest.mark.django_db


def test_a_restart_makes_no_transitions_and_forgets_no_fault() -> None:
    node = make_node()
    hot, lost, fine = (make_gpu(node=node, index=index) for index in range(3))
    enrol(node)
    world = World()
    world.run(30)
    world.xid(lost, 79)
    for _ in range(3):
        world.scrape([fine, lost])
        world.scrape([hot], clock_event_reasons=0x40)
        world.beat()
        for _ in range(10):
            world.tick()
            world.now += 1
    before = [state_of(thing) for thing in (hot, lost, fine, node, node.site)]
    assert before[:3] == [("degraded", "hw_thermal_slowdown"), ("down", "xid_79"), ("ok", "ok")]
    transitions, findings = HealthTransition.objects.count(), Finding.objects.count()

    world.now += 5
    again = world.restarted()
    for _ in range(6):
        if again.now % 10 == 0:
            again.scrape([fine, lost])
            again.scrape([hot], clock_event_reasons=0x40)
            again.beat()
        again.tick()
        again.now += 1
    assert [state_of(thing) for thing in (hot, lost, fine, node, node.site)] == before
    assert (HealthTransition.objects.count(), Finding.objects.count()) == (transitions, findings)
    assert XidEvent.objects.count() == 1
    again.now += -again.now % 10
    again.run(50)
    assert state_of(hot) == ("ok", "ok")
    assert state_of(lost) == ("down", "xid_79")
    assert Finding.objects.get(code="hw_thermal_slowdown").until is not None


def test_a_restart_sees_the_same_xid_as_no_event_and_another_one_as_one() -> None:
    gpu = make_gpu(node=make_node())
    world = World()
    world.run(30)
    world.xid(gpu, 31)
    world.xid_count(gpu, 31, 1)
    world.run(10)
    again = world.restarted()
    again.xid(gpu, 31, old=None)
    again.xid_count(gpu, 31, 1)
    again.run(10)
    assert XidEvent.objects.get().count == 1
    third = again.restarted()
    third.xid(gpu, 94, old=None)
    third.run(10)
    assert set(XidEvent.objects.values_list("xid", flat=True)) == {31, 94}


def test_a_restart_amid_a_cut_keeps_since_and_cause() -> None:
    node = make_node()
    make_gpu(node=node)
    world = World()
    world.run(61)
    world.now += 9
    world.run(40, gpus=[])
    before = SiteHealth.objects.get(site=node.site)
    again = world.restarted()
    again.run(60, gpus=[])
    after = SiteHealth.objects.get(site=node.site)
    assert (after.state, after.cause, after.since, after.why) == (before.state, before.cause, before.since, before.why)
    assert HealthTransition.objects.filter(kind="site", to_state="unknown").count() == 1
    assert Finding.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_loses_nothing() -> None:
    gpu = make_gpu(node=make_node())
    world = World()
    world.run(30)
    name, config = connection.settings_dict["NAME"], connection.settings_dict
    server = f"host={config['HOST']} port={config['PORT']} dbname=postgres"
    with psycopg.connect(server, user=OWNER_ROLE, autocommit=True) as owner, psycopg.connect(server, user=APP_ROLE, autocommit=True) as killer:
        owner.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            world.xid(gpu, 79)
            for _ in range(3):
                assert world.tick().notices == []
                world.now += 1
            world.xid(gpu, 31, old=79)
            world.tick()
            assert world.store.pending
            assert world.store.evaluator.cells is not None
        finally:
            owner.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    world.now += 2
    notices = world.tick().notices
    assert world.store.pending == 0
    assert {notice["type"] for notice in notices} == {"transition", "finding"}
    assert state_of(gpu) == ("down", "xid_79")
    assert set(XidEvent.objects.values_list("xid", flat=True)) == {79, 31}
    assert HealthTransition.objects.filter(kind="gpu", to_state="down").count() == 1


def test_a_finding_that_began_and_ended_while_the_database_was_away_is_a_row() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    world = World()
    world.run(20)
    changes = Changes()
    hot: dict[str, Any] = {"clock_event_reasons": 0x40}
    for values in (hot, hot, {}, {}, {}, {}, {}):
        world.scrape(**values)
        for _ in range(10):
            world.live.derive()
            changes.extend(world.store.evaluator.evaluate(world.live, world.store.roster, world.now))
            world.now += 1
    for _ in range(2):  # a commit whose answer was lost is tried again
        writes.write_verdicts(changes.verdicts)
        writes.write_findings(changes.findings)
    finding = Finding.objects.get()
    assert (finding.code, finding.since, finding.until) == ("hw_thermal_slowdown", when(START + 20), when(START + 40))
    moves = HealthTransition.objects.filter(kind="gpu", object_key=gpu.uuid).order_by("at").values_list("to_state", flat=True)
    assert list(moves) == ["ok", "degraded", "ok"]


def test_changes_of_things_deleted_meanwhile_are_left_out() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    other = make_gpu(node=make_node())
    world = World()
    world.scrape()
    world.xid(gpu, 79)
    gpu.delete()
    node.delete()
    world.tick()
    assert world.store.pending == 0
    assert state_of(other) == ("ok", "ok")
    assert not GpuHealth.objects.filter(state="down").exists()


def test_a_change_that_the_database_refuses_does_not_hold_up_the_others() -> None:
    gpu, odd = make_gpu(node=make_node()), make_gpu(node=make_node())
    world = World()
    world.run(20)
    world.xid(odd, 2**40)  # no integer column holds this
    world.xid(gpu, 79, at=START + 19)
    world.tick()
    assert world.store.pending == 0
    assert XidEvent.objects.get().xid == 79
    assert state_of(gpu) == ("down", "xid_79")


def test_frames_hold_the_sites_of_the_inventory_sorted_by_id() -> None:
    area = make_area()
    sites = [make_site(region=make_region(area=area)) for _ in range(3)]
    gpus = [make_gpu(node=make_node(site=site)) for site in sites]
    world = World()
    assert len(world.store.frame_cells(world.live)[0]) == 0
    world.run(60)
    world.run(60, gpus=gpus[1:])
    world.live.site_active[world.live.site_row_of_code[sites[2].code]] = False
    cells, area_ids = world.store.frame_cells(world.live)
    assert cells.site_id.tolist() == [sites[0].pk, sites[1].pk]
    assert area_ids.tolist() == [area.pk, area.pk]
    assert cells.state.tolist() == [frames.STATE_NUMBERS["unknown"], frames.STATE_NUMBERS["ok"]]
    assert cells.flags.tolist() == [frames.FLAG_STALE | frames.FLAG_SILENT, 0]
    assert cells.gpus_reporting.tolist() == [0, 1]
    assert cells.gpus_expected.tolist() == [1, 1]
    assert cells.utilization.tolist() == [frames.NO_UTILIZATION, 5000]
    assert np.isnan(cells.power_watts[0])
    assert cells.power_watts[1] == 400.0


def test_notices_name_what_moved() -> None:
    region: Region = make_region()
    gpu = make_gpu(node=make_node(site=make_site("DEN-1", region=region)))
    world = World()
    world.run(30)
    world.xid(gpu, 79)
    notices = world.tick().notices
    moved = {(notice["kind"], notice["key"]): notice for notice in notices if notice["type"] == "transition"}
    assert moved["site", "DEN-1"]["state"] == "down"
    assert moved["site", "DEN-1"]["region_id"] == region.pk
    found = [notice for notice in notices if notice["type"] == "finding" and notice["kind"] == "gpu"]
    assert [(notice["code"], notice["key"], notice["site"]) for notice in found] == [("xid_79", gpu.uuid, "DEN-1")]


def test_the_number_of_statements_does_not_grow_with_the_changes() -> None:
    counts = []
    for many in (3, 60):
        nodes = [make_node() for _ in range(many)]
        for node in nodes:
            make_gpu(node=node)
        world = World()
        world.scrape()
        with CaptureQueriesContext(connection) as captured:
            world.tick()
        counts.append(len(captured))
    assert counts[0] == counts[1]
