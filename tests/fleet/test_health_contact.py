"""No data is told apart: link down, region silent, node down, exporter down, GPU lost, never reported."""

import pytest

from fleet.models import Finding, HealthTransition, SiteHealth
from tests.builders import make_gpu, make_node, make_region, make_site
from tests.fleet.health_world import INTERVAL, START, World, enrol, state_of, when

pytestmark = pytest.mark.django_db


def test_all_reporting_is_ok() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    enrol(node)
    world = World()
    world.run(60)
    assert state_of(gpu) == state_of(node) == state_of(node.site) == ("ok", "ok")
    health = node.site.health
    assert (health.gpus_reporting, health.gpus_expected, health.nodes_reporting) == (1, 1, 1)
    assert health.power_watts == 400.0
    assert health.gpu_utilization_ratio == 0.5
    assert health.out_of_contact_since is None
    assert not Finding.objects.exists()


def test_never_reported_is_unknown() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    world = World()
    world.run(60, gpus=[], nodes=[])
    assert state_of(gpu) == state_of(node) == state_of(node.site) == ("unknown", "never_reported")
    assert not HealthTransition.objects.exists()


def test_link_cut_turns_a_one_node_site_unknown_since_its_last_contact() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    enrol(node)
    world = World()
    world.run(61)
    last = world.now - 1
    world.run(60, gpus=[], nodes=[])
    assert state_of(node.site) == ("unknown", "link_down")
    assert state_of(node) == state_of(gpu) == ("unknown", "link_down")
    health = SiteHealth.objects.get(site=node.site)
    assert health.since == health.last_contact_at == health.out_of_contact_since == when(last)
    assert "link or node" in health.why
    finding = Finding.objects.get()
    assert (finding.kind, finding.object_key, finding.code, finding.since) == ("site", node.site.code, "out_of_contact", when(last))
    assert finding.evidence["cause"] == "link_down"
    moves = list(HealthTransition.objects.filter(kind="site").order_by("at").values_list("from_state", "to_state", "cause", "at"))
    assert moves[1:] == [("ok", "unknown", "link_down", when(last))]

    world.now = START + 130
    world.run(12)
    assert state_of(node.site) == state_of(node) == state_of(gpu) == ("ok", "ok")
    assert SiteHealth.objects.get(site=node.site).out_of_contact_since is None
    assert SiteHealth.objects.get(site=node.site).since == when(START + 130)
    assert Finding.objects.get().until == when(START + 130)


def test_link_cut_of_a_site_with_several_nodes_makes_no_node_down() -> None:
    site = make_site()
    nodes = [make_node(site=site) for _ in range(3)]
    gpus = [make_gpu(node=node) for node in nodes]
    for node in nodes:
        enrol(node)
    world = World()
    world.run(60)
    # The last words of the nodes spread over an interval, as scrapes do.
    for number, (node, gpu) in enumerate(zip(nodes, gpus, strict=True)):
        world.now = START + 60 + 3 * number
        world.scrape([gpu])
        world.beat([node])
        world.tick()
    last = world.now
    changes = world.run(80, gpus=[], nodes=[])
    assert {change.verdict.cause for change in changes.verdicts} <= {"silent", "link_down", "ok"}
    assert state_of(site) == ("unknown", "link_down")
    assert SiteHealth.objects.get(site=site).since == when(last)
    assert [state_of(node) for node in nodes] == [("unknown", "link_down")] * 3
    assert list(HealthTransition.objects.filter(kind="site", from_state="ok").values_list("to_state", flat=True)) == ["unknown"]


def test_node_down_while_its_neighbours_report() -> None:
    site = make_site()
    dead, alive = make_node(site=site), make_node(site=site)
    lost, fine = make_gpu(node=dead), make_gpu(node=alive)
    enrol(dead)
    enrol(alive)
    world = World()
    world.run(61)
    last = world.now - 1
    world.now += 9
    world.run(60, gpus=[fine], nodes=[alive])
    assert state_of(dead) == ("down", "node_down")
    assert state_of(lost) == ("unknown", "node_down")
    assert state_of(alive) == state_of(fine) == ("ok", "ok")
    assert state_of(site) == ("degraded", "node_down")
    assert Finding.objects.get(code="node_down").since == when(last)


def test_exporter_down_while_the_agent_speaks() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    enrol(node)
    world = World()
    world.run(60)
    world.live.node_up[:] = 0
    for _ in range(60):
        world.live.node_up_time[:] = world.now
        if world.now % INTERVAL == 0:
            world.beat()
        world.tick()
        world.now += 1
    assert state_of(node) == ("degraded", "exporter_down")
    assert state_of(gpu) == ("unknown", "exporter_down")
    assert state_of(node.site) == ("degraded", "exporter_down")
    assert "cannot scrape" in Finding.objects.get(code="exporter_down").summary


def test_agent_silent_while_telemetry_comes() -> None:
    with_agent, without = make_node(), make_node()
    make_gpu(node=with_agent)
    make_gpu(node=without)
    enrol(with_agent)
    world = World()
    world.run(60)
    world.run(60, nodes=[])
    assert state_of(with_agent) == ("degraded", "agent_silent")
    assert state_of(with_agent.site) == ("degraded", "agent_silent")
    assert state_of(without) == ("ok", "ok")
    world.run(20)
    assert state_of(with_agent) == ("ok", "ok")


def test_one_gpu_of_several_stops_and_comes_back() -> None:
    node = make_node(expected_gpus=4)
    gpus = [make_gpu(node=node, index=index) for index in range(4)]
    world = World()
    world.run(61)
    last = world.now - 1
    world.now += 9
    world.run(60, gpus=gpus[1:])
    assert state_of(gpus[0]) == ("down", "gpu_lost")
    gpus[0].refresh_from_db()
    assert gpus[0].presence == "missing"
    assert gpus[0].missing_since == when(last)
    assert state_of(node) == ("degraded", "gpu_lost")
    assert state_of(node.site) == ("degraded", "gpu_lost")
    lost = Finding.objects.get(code="gpu_lost")
    assert (lost.since, lost.severity) == (when(last), "critical")
    assert lost.advised_action
    assert Finding.objects.get(code="gpu_count").evidence["present"] == 3
    world.run(60)
    assert state_of(gpus[0]) == state_of(node) == state_of(node.site) == ("ok", "ok")
    gpus[0].refresh_from_db()
    assert gpus[0].presence == "present"
    assert not Finding.objects.open().exists()


def test_all_gpus_of_a_node_lost_make_the_site_down() -> None:
    node = make_node()
    gpu = make_gpu(node=node)
    world = World()
    world.run(61)
    world.now += 9
    for _ in range(60):
        if world.now % INTERVAL == 0:
            world.live.node_up_time[:] = world.now
        world.tick()
        world.now += 1
    assert state_of(gpu) == ("down", "gpu_lost")
    assert state_of(node) == ("down", "gpu_lost")
    assert state_of(node.site) == ("down", "gpu_lost")


def test_most_of_a_region_falling_silent_together_is_our_link() -> None:
    region = make_region()
    nodes = [make_node(site=make_site(region=region)) for _ in range(5)]
    gpus = [make_gpu(node=node) for node in nodes]
    world = World()
    world.run(61)
    world.now += 9
    world.run(60, gpus=gpus[:1])
    assert [state_of(node.site) for node in nodes] == [("ok", "ok")] + [("unknown", "region_silent")] * 4
    finding = Finding.objects.get(kind="region")
    assert (finding.object_key, finding.code, finding.evidence["silent"], finding.evidence["of"]) == (region.slug, "region_silent", 4, 5)
    assert not HealthTransition.objects.filter(kind="site", to_state="unknown", cause="ok").exists()
    world.run(20)
    assert {state_of(node.site) for node in nodes} == {("ok", "ok")}
    assert not Finding.objects.open().exists()


def test_a_single_site_of_a_region_stays_link_down() -> None:
    region = make_region()
    nodes = [make_node(site=make_site(region=region)) for _ in range(5)]
    gpus = [make_gpu(node=node) for node in nodes]
    world = World()
    world.run(61)
    world.now += 9
    world.run(60, gpus=gpus[1:])
    assert state_of(nodes[0].site) == ("unknown", "link_down")
    assert not Finding.objects.filter(kind="region").exists()


def test_a_regions_prometheus_that_dies_is_not_many_dead_exporters() -> None:
    region = make_region()
    nodes = [make_node(site=make_site(region=region)) for _ in range(4)]
    for node in nodes:
        make_gpu(node=node)
        enrol(node)
    world = World()
    world.run(61)
    world.now += 9
    world.run(60, gpus=[])
    assert {state_of(node.site) for node in nodes} == {("unknown", "region_silent")}
    assert Finding.objects.get(kind="region").evidence["agents_heard"] is True
    assert not Finding.objects.filter(code="out_of_contact").exists()


def test_a_process_that_was_deaf_does_not_call_others_silent() -> None:
    node = make_node()
    make_gpu(node=node)
    world = World()
    world.run(60)
    world.now += 300  # this process was stopped: nothing came in
    world.run(int(2 * INTERVAL), gpus=[], nodes=[])
    assert state_of(node.site) == ("ok", "ok")
    world.run(int(2 * INTERVAL), gpus=[], nodes=[])
    assert state_of(node.site) == ("unknown", "link_down")
