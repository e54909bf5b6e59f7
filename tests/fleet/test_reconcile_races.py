"""Agents and telemetry tell at the same time: one record each, and nobody waits for ever."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection

from fleet.inventory.seen import reconcile_agent_report, reconcile_telemetry
from fleet.models import AgentConnection, Disagreement, Gpu, MigSlice, Workload
from tests.builders import T0, make_node, make_site
from tests.fleet.seen import gpu_facts, report, series, slice_facts

pytestmark = pytest.mark.django_db(transaction=True)


def together(*works: Callable[[], object]) -> None:
    def run(work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(run, work) for work in works]:
            future.result(timeout=60)


def test_the_same_new_gpu_from_both_sides_at_once_is_one_record() -> None:
    site = make_site("S")
    nodes = [make_node(f"n{number}", site=site, expected_gpus=1) for number in range(4)]
    ones = tuple(slice_facts(7 + start, "1g.10gb", start, 1) for start in range(7))
    batch = [
        series(f"GPU-{number}", T0, node_host=f"n{number}", site_code="S", gpu_instance_id=7 + start, profile="1g.10gb", namespace="a", pod=f"p{start}")
        for number in range(4)
        for start in range(7)
    ]

    def agent(number: int) -> Callable[[], object]:
        told = report(T0, gpu_facts(f"GPU-{number}", mig_enabled=True, slices=ones))
        return lambda: reconcile_agent_report(nodes[number].pk, told, T0)

    for _ in range(3):
        together(lambda: reconcile_telemetry(batch, T0), *(agent(number) for number in range(4)), lambda: reconcile_telemetry(batch[::-1], T0))
    assert Gpu.objects.count() == 4
    assert MigSlice.objects.filter(ended_at__isnull=True).count() == 28
    assert Workload.objects.running().count() == 28


def test_an_agent_takes_nothing_from_a_gpu_that_another_nodes_agent_has() -> None:
    here, there = make_node("n1", site=make_site("A"), expected_gpus=1), make_node("n2", site=make_site("B"), expected_gpus=1)
    AgentConnection.objects.create(node=here, connected=True, connected_at=T0, heartbeat_at=T0, report={"inventory": {"gpus": [{"uuid": "GPU-1"}]}})
    slices = tuple(slice_facts(7 + start, "1g.10gb", start, 1) for start in range(7))
    reconcile_agent_report(here.pk, report(T0, gpu_facts("GPU-1", mig_enabled=True, slices=slices)), T0)
    before = Gpu.objects.values().get()
    later = T0 + timedelta(minutes=1)
    reconcile_agent_report(there.pk, report(later, gpu_facts("GPU-1", mig_enabled=False, slices=())), later)
    assert Gpu.objects.values().get() == before
    assert MigSlice.objects.filter(ended_at__isnull=True).count() == 7
    assert Disagreement.objects.get().field == "node_id"


def test_a_gpu_that_two_agents_report_at_once_is_at_one_of_them() -> None:
    nodes = [make_node("n1", expected_gpus=1), make_node("n2", expected_gpus=1)]
    told = report(T0, gpu_facts("GPU-1"))
    reconcile_agent_report(nodes[0].pk, told, T0)
    later = T0 + timedelta(minutes=1)
    both = report(later, gpu_facts("GPU-1"))
    together(*(lambda node=node: reconcile_agent_report(node.pk, both, later) for node in nodes))
    assert Gpu.objects.get().node in nodes
    assert Gpu.objects.get().presence == Gpu.Presence.PRESENT
