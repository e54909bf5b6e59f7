"""An exporter that repeats itself: the node says so, its GPUs are unknown, the first change ends it, a restart changes nothing."""

from typing import Any

import pytest

from fleet.models import Finding, GpuHealth, HealthTransition, Node, NodeHealth
from tests.builders import make_gpu, make_node
from tests.fleet.health_world import START, World, state_of, when

pytestmark = pytest.mark.django_db

FROZEN: dict[str, Any] = {"energy_joules": 5e9 + 12_000.0, "clock_event_reasons": 0.0}


@pytest.fixture
def node() -> Node:
    return make_node()


def test_a_frozen_exporter_is_noticed_and_its_gpus_are_unknown_until_it_reads_anew(node: Node) -> None:
    gpus = [make_gpu(node=node, index=index) for index in range(2)]
    world = World()
    world.run(40)
    world.run(50, **FROZEN)
    assert {state_of(thing) for thing in (*gpus, node, node.site)} == {("ok", "ok")}
    world.run(20, **FROZEN)
    assert [state_of(gpu) for gpu in gpus] == [("unknown", "exporter_frozen")] * 2
    assert state_of(node) == state_of(node.site) == ("degraded", "exporter_frozen")
    health = NodeHealth.objects.get(node=node)
    assert (health.since, health.why) == (
        when(START + 30),
        "GPU exporter answers, yet its readings have not changed since 2026-11-20 10:00:30 UTC: it repeats old ones.",
    )
    assert GpuHealth.objects.get(gpu=gpus[0]).since == when(START + 30)
    finding = Finding.objects.get()
    assert (finding.kind, finding.object_key, finding.code, finding.severity) == ("node", str(node.pk), "exporter_frozen", "major")
    assert (finding.since, finding.advised_action) == (when(START + 30), "Restart dcgm-exporter on the node.")
    world.run(60, **FROZEN | {"clock_event_reasons": float(0x40)})
    assert state_of(gpus[0]) == ("unknown", "exporter_frozen")
    world.run(10)
    assert {state_of(thing) for thing in (*gpus, node, node.site)} == {("ok", "ok")}
    assert Finding.objects.get().until is not None


def test_a_known_fault_outranks_a_frozen_exporter(node: Node) -> None:
    gpu = make_gpu(node=node)
    world = World()
    world.run(30)
    world.xid(gpu, 79)
    world.run(80, **FROZEN)
    assert state_of(gpu) == ("down", "xid_79")
    assert Finding.objects.filter(code="exporter_frozen").exists()


def test_a_restart_keeps_what_was_found_and_raises_no_alarm(node: Node) -> None:
    gpu = make_gpu(node=node)
    world = World()
    world.run(30)
    world.run(80, **FROZEN)
    moves = HealthTransition.objects.count()
    world = world.restarted()
    world.run(20, **FROZEN)
    assert HealthTransition.objects.count() == moves
    assert (state_of(gpu), state_of(node)) == (("unknown", "exporter_frozen"), ("degraded", "exporter_frozen"))
    world.run(20)
    assert (state_of(gpu), state_of(node)) == (("ok", "ok"), ("ok", "ok"))
    world.run(40)
    world.restarted().run(40)
    assert Finding.objects.count() == 1
