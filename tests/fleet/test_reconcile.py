"""Import, agents and telemetry are brought together: nobody overwrites another, nothing is lost, late words change nothing."""

from datetime import timedelta

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.protocol import WorkloadFacts
from agent.protocol.inventory import Sharing
from fleet.inventory.host_names import host_label
from fleet.inventory.reconcile.observed import pci_address
from fleet.inventory.seen import reconcile_agent_report, reconcile_telemetry
from fleet.models import AgentConnection, Disagreement, Finding, Gpu, MigSlice, Node, ProtectedPlacement, Workload
from tests.builders import T0, make_gpu, make_node, make_phy_gpu, make_site
from tests.fleet.seen import gpu_facts, report, series, slice_facts

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
ONES = tuple(slice_facts(7 + start, "1g.10gb", start, 1, f"MIG-{start}") for start in range(7))


def disagreements() -> list[tuple[str, str, str, str, str]]:
    rows = Disagreement.objects.filter(until__isnull=True).order_by("field")
    return [(row.field, row.held_source, row.held_value, row.seen_source, row.seen_value) for row in rows]


@pytest.mark.parametrize(
    ("name", "label"),
    [("gpu-a-01", "gpu-a-01"), ("GPU-A-01.edge.example", "gpu-a-01"), ("10.20.0.14", "10.20.0.14"), ("fe80::1", "fe80::1"), ("host.", "host")],
)
def test_host_names_are_compared_by_their_first_label(name: str, label: str) -> None:
    assert host_label(name) == label


@pytest.mark.parametrize("text", ["00000000:3B:00.0", "0000:3b:00.0", "3B:00.0"])
def test_pci_addresses_have_one_spelling(text: str) -> None:
    assert pci_address(text) == "00000000:3B:00.0"


def test_an_imported_gpu_that_answers_is_present() -> None:
    gpu = make_gpu(presence=Gpu.Presence.EXPECTED, pci_bus_id="0000:19:00.0", index=None)
    reconcile_telemetry([series(gpu.uuid, T0, node_host=gpu.node.host_name, site_code=gpu.node.site.code, pci_bus_id="00000000:19:00.0")], T0)
    gpu.refresh_from_db()
    assert (gpu.presence, gpu.first_seen_at, gpu.index) == (Gpu.Presence.PRESENT, T0, 0)
    assert not Finding.objects.exists()
    assert disagreements() == []


def test_what_sources_disagree_on_is_shown_and_ends_when_they_agree() -> None:
    gpu = make_gpu(sku="h100-pcie-80gb", pci_bus_id="00000000:19:00.0")
    node = gpu.node
    Node.objects.filter(pk=node.pk).update(driver_version="550.1")
    reconcile_agent_report(node.pk, report(T0, gpu_facts(gpu.uuid, pci_bus_id="00000000:AA:00.0"), driver_version="570.1"), T0)
    assert disagreements() == [
        ("driver_version", "import", "550.1", "agent", "570.1"),
        ("pci_bus_id", "import", "00000000:19:00.0", "agent", "00000000:AA:00.0"),
        ("sku", "import", "h100-pcie-80gb", "agent", "h100-sxm-80gb"),
    ]
    gpu.refresh_from_db()
    assert (gpu.sku, gpu.pci_bus_id) == ("h100-pcie-80gb", "00000000:19:00.0")
    first = Disagreement.objects.get(field="sku")
    reconcile_agent_report(node.pk, report(T0 + MINUTE, gpu_facts(gpu.uuid, pci_bus_id="00000000:AA:00.0"), driver_version="570.1"), T0 + MINUTE)
    again = Disagreement.objects.get(field="sku")
    assert (again.pk, again.since, again.last_at) == (first.pk, T0, T0 + MINUTE)
    Gpu.objects.update(sku="h100-sxm-80gb", pci_bus_id="00000000:AA:00.0")
    Node.objects.update(driver_version="570.1")
    reconcile_agent_report(node.pk, report(T0 + 2 * MINUTE, gpu_facts(gpu.uuid, pci_bus_id="00000000:AA:00.0"), driver_version="570.1"), T0 + 2 * MINUTE)
    assert disagreements() == []
    assert Disagreement.objects.filter(until=T0 + 2 * MINUTE).count() == 3


def test_a_driver_upgrade_is_followed_and_telemetry_agrees_later() -> None:
    node = make_node("n1")
    gpu = make_gpu(node=node)
    told = {"node_host": "n1", "site_code": node.site.code}
    reconcile_agent_report(node.pk, report(T0, gpu_facts(gpu.uuid), driver_version="550.1"), T0)
    reconcile_telemetry([series(gpu.uuid, T0, driver_version="550.1", **told)], T0)
    reconcile_agent_report(node.pk, report(T0 + MINUTE, gpu_facts(gpu.uuid), driver_version="570.1"), T0 + MINUTE)
    assert Node.objects.get().driver_version == "570.1"
    reconcile_telemetry([series(gpu.uuid, T0 + MINUTE, driver_version="560.9", **told)], T0 + MINUTE)
    assert disagreements() == [("driver_version", "agent", "570.1", "telemetry", "560.9")]
    reconcile_telemetry([series(gpu.uuid, T0 + 2 * MINUTE, driver_version="570.1", **told)], T0 + 2 * MINUTE)
    assert disagreements() == []


def test_a_model_that_the_catalogue_lacks_is_unknown_until_somebody_says() -> None:
    node = make_node("n1", expected_gpus=2)
    told = {"node_host": "n1", "site_code": node.site.code}
    reconcile_telemetry([series("GPU-x", T0, model_name="Tesla T4", **told)], T0)
    assert Gpu.objects.get().sku == "unknown"
    reconcile_telemetry([series("GPU-x", T0 + MINUTE, model_name="NVIDIA L40S", **told)], T0)
    assert Gpu.objects.get().sku == "l40s-48gb"
    reconcile_telemetry([series("GPU-x", T0 + 2 * MINUTE, model_name="Tesla T4", **told)], T0)
    assert disagreements() == [("sku", "telemetry", "l40s-48gb", "telemetry", "Tesla T4")]


def test_an_unlisted_gpu_is_recorded_and_found() -> None:
    node = make_node("n1.edge.example")
    result = reconcile_telemetry([series("GPU-x", T0, node_host="n1", site_code=node.site.code, pci_bus_id="3B:00.0")], T0)
    gpu = Gpu.objects.get()
    assert result.created == [gpu.pk]
    assert (gpu.presence, gpu.sku, gpu.node, gpu.pci_bus_id) == (Gpu.Presence.PRESENT, "h100-sxm-80gb", node, "00000000:3B:00.0")
    assert gpu.sources == {"pci_bus_id": "telemetry", "sku": "telemetry", "node_id": "telemetry"}
    finding = Finding.objects.open().get()
    assert (finding.code, finding.object_key, finding.evidence["source"], finding.site) == ("unexpected_gpu", "GPU-x", "telemetry", node.site)


def test_a_host_name_that_two_sites_share_needs_the_site() -> None:
    one, two = make_node("du-1"), make_node("du-1")
    result = reconcile_telemetry([series("GPU-x", T0, node_host="du-1"), series("GPU-y", T0, node_host="du-1", site_code=two.site.code)], T0)
    assert result.unplaced == ["GPU-x"]
    assert Gpu.objects.get().node == two
    assert not one.gpus.exists()


def test_a_moved_gpu_takes_its_history_along() -> None:
    old, new = make_node("n1"), make_node("n2")
    gpu = make_gpu(node=old, sources={"node_id": "agent"})
    Finding.objects.create(kind="gpu", object_key=gpu.uuid, code="xid", severity="major", summary="x", since=T0, last_at=T0)
    result = reconcile_agent_report(new.pk, report(T0, gpu_facts(gpu.uuid)), T0)
    gpu.refresh_from_db()
    assert (gpu.node, result.moved) == (new, [gpu.pk])
    assert Finding.objects.open().filter(object_key=gpu.uuid).count() == 1
    assert disagreements() == []


def test_two_agents_that_have_the_same_gpu_disagree_until_one_lets_go() -> None:
    old, new = make_node("n1", site=make_site("S1")), make_node("n2", site=make_site("S2"))
    gpu = make_gpu(node=old, sources={"node_id": "agent"})
    AgentConnection.objects.create(node=old, report={"inventory": report(T0, gpu_facts(gpu.uuid)).to_json()})
    told = report(T0, gpu_facts(gpu.uuid))
    reconcile_agent_report(new.pk, told, T0)
    AgentConnection.objects.create(node=new, report={"inventory": told.to_json()})
    assert disagreements() == [("node_id", "agent", "n1 (S1)", "agent", "n2 (S2)")]
    reconcile_agent_report(old.pk, report(T0 + MINUTE), T0 + MINUTE)
    gpu.refresh_from_db()
    assert (gpu.node, gpu.presence) == (new, Gpu.Presence.PRESENT)
    assert disagreements() == []


def test_telemetry_does_not_move_what_an_agent_has() -> None:
    node, other = make_node("n1", site=make_site("S1")), make_node("n2", site=make_site("S2"))
    gpu = make_gpu(node=node)
    reconcile_agent_report(node.pk, report(T0, gpu_facts(gpu.uuid)), T0)
    reconcile_telemetry([series(gpu.uuid, T0 + MINUTE, node_host=other.host_name, site_code="S2")], T0 + MINUTE)
    gpu.refresh_from_db()
    assert gpu.node == node
    assert disagreements() == [("node_id", "agent", "n1 (S1)", "telemetry", "n2 (S2)")]


def test_an_incomplete_report_ends_nothing() -> None:
    gpu = make_phy_gpu()
    result = reconcile_agent_report(gpu.node_id, report(T0 + MINUTE, complete=False), T0 + MINUTE)
    assert not result.changed
    assert Gpu.objects.get().presence == Gpu.Presence.PRESENT
    assert MigSlice.objects.filter(ended_at__isnull=True).count() == 7


@pytest.mark.parametrize("mig_enabled", [True, None], ids=["slices unknown", "mode unknown"])
def test_a_gpu_that_could_not_be_asked_for_its_slices_keeps_them(mig_enabled: bool | None) -> None:
    gpu = make_phy_gpu()
    part = gpu.slices.get(start=3)
    Workload.objects.create(gpu=gpu, slice=part, namespace="a", pod="p", sharing="mig", started_at=T0, last_seen_at=T0)
    reconcile_agent_report(gpu.node_id, report(T0 + MINUTE, gpu_facts(gpu.uuid, mig_enabled=mig_enabled, slices=None)), T0 + MINUTE)
    assert MigSlice.objects.filter(ended_at__isnull=True).count() == 7
    assert Workload.objects.running().count() == 1
    gpu.refresh_from_db()
    assert gpu.mig_enabled
    assert not Finding.objects.exists()


def test_a_replaced_gpu_hands_its_protected_placements_to_the_new_one() -> None:
    old = make_phy_gpu(pci_bus_id="00000000:19:00.0", first_seen_at=T0, last_seen_at=T0)
    Workload.objects.create(gpu=old, namespace="ran", pod="du-0", sharing="whole", started_at=T0, last_seen_at=T0)
    result = reconcile_telemetry(
        [series("GPU-new", T0 + MINUTE, node_host=old.node.host_name, site_code=old.node.site.code, pci_bus_id="00000000:19:00.0")], T0 + MINUTE
    )
    new = Gpu.objects.get(uuid="GPU-new")
    assert result.replaced == [old.pk]
    assert list(ProtectedPlacement.objects.filter(gpu=new).order_by("start").values_list("start", "size")) == [(0, 1), (1, 1), (2, 1)]
    assert not MigSlice.objects.filter(gpu=old, ended_at__isnull=True).exists()
    assert not Workload.objects.running().exists()
    late = reconcile_telemetry([series(old.uuid, T0, node_host=old.node.host_name, site_code=old.node.site.code)], T0 + MINUTE)
    assert not late.changed
    assert Gpu.objects.get(pk=old.pk).presence == Gpu.Presence.RETIRED


def test_an_imported_gpu_that_was_never_there_is_a_disagreement_not_a_replacement() -> None:
    listed = make_gpu("GPU-typo", presence=Gpu.Presence.EXPECTED, pci_bus_id="00000000:19:00.0")
    reconcile_agent_report(listed.node_id, report(T0, gpu_facts("GPU-real")), T0)
    listed.refresh_from_db()
    assert listed.presence == Gpu.Presence.EXPECTED
    assert ("uuid", "import", "GPU-typo", "agent", "GPU-real") in disagreements()
    assert Finding.objects.open().get(object_key="GPU-real").code == "unexpected_gpu"


def test_a_retired_gpu_that_shows_up_elsewhere_is_back() -> None:
    gpu = make_gpu(presence=Gpu.Presence.RETIRED, retired_at=T0, sources={"node_id": "import"})
    node = make_node("n2")
    result = reconcile_agent_report(node.pk, report(T0 + MINUTE, gpu_facts(gpu.uuid)), T0 + MINUTE)
    gpu.refresh_from_db()
    assert (gpu.presence, gpu.node, gpu.retired_at, result.returned) == (Gpu.Presence.PRESENT, node, None, [gpu.pk])


def test_the_agent_knows_where_a_slice_stands_and_what_it_is_for() -> None:
    gpu = make_gpu(mig_enabled=True)
    ProtectedPlacement.objects.create(gpu=gpu, start=0, size=3)
    told = {"site_code": gpu.node.site.code, "node_host": gpu.node.host_name}
    reconcile_telemetry([series(gpu.uuid, T0, gpu_instance_id=7 + number, profile="1g.10gb", **told) for number in range(7)], T0)
    ids = set(MigSlice.objects.values_list("pk", flat=True))
    assert set(MigSlice.objects.values_list("start", flat=True)) == {None}
    reconcile_agent_report(gpu.node_id, report(T0 + MINUTE, gpu_facts(gpu.uuid, mig_enabled=True, slices=ONES)), T0 + MINUTE)
    assert set(MigSlice.objects.values_list("pk", flat=True)) == ids
    assert list(MigSlice.objects.order_by("start").values_list("start", "purpose")) == [(start, "phy" if start < 3 else "ai") for start in range(7)]
    assert not Finding.objects.open().filter(code="mig_drift").exists()


def test_a_bare_protected_placement_is_critical() -> None:
    gpu = make_phy_gpu()
    reconcile_agent_report(gpu.node_id, report(T0 + MINUTE, gpu_facts(gpu.uuid, mig_enabled=True, slices=ONES[1:])), T0 + MINUTE)
    finding = Finding.objects.open().get(code="mig_drift")
    assert (finding.severity, finding.evidence["bare_protected_positions"]) == ("critical", [0])
    reconcile_agent_report(gpu.node_id, report(T0 + 2 * MINUTE, gpu_facts(gpu.uuid, mig_enabled=True, slices=ONES)), T0 + 2 * MINUTE)
    assert not Finding.objects.open().filter(code="mig_drift").exists()


def test_a_late_sample_does_not_bring_a_slice_back() -> None:
    gpu = make_gpu(mig_enabled=True)
    told = {"site_code": gpu.node.site.code, "node_host": gpu.node.host_name}
    reconcile_telemetry([series(gpu.uuid, T0, gpu_instance_id=1, profile="4g.40gb", **told)], T0)
    reconcile_agent_report(gpu.node_id, report(T0 + MINUTE, gpu_facts(gpu.uuid, mig_enabled=True, slices=())), T0 + MINUTE)
    reconcile_telemetry([series(gpu.uuid, T0 + timedelta(seconds=30), gpu_instance_id=1, profile="4g.40gb", namespace="a", pod="p", **told)], T0 + MINUTE)
    assert not MigSlice.objects.filter(ended_at__isnull=True).exists()
    assert not Workload.objects.running().exists()


def test_workloads_start_move_and_end_with_what_telemetry_names() -> None:
    gpu = make_gpu()
    told = {"site_code": gpu.node.site.code, "node_host": gpu.node.host_name}
    reconcile_telemetry([series(gpu.uuid, T0, namespace="a", pod="p1", container="c", **told)], T0)
    reconcile_telemetry([series(gpu.uuid, T0 + MINUTE, namespace="a", pod="p2", container="c", **told)], T0 + MINUTE)
    reconcile_telemetry([series(gpu.uuid, T0 + 2 * MINUTE, **told)], T0 + 2 * MINUTE)
    rows = Workload.objects.order_by("started_at").values_list("pod", "started_at", "ended_at")
    assert list(rows) == [("p1", T0, T0 + MINUTE), ("p2", T0 + MINUTE, T0 + 2 * MINUTE)]


def test_an_exporter_that_names_one_of_several_workloads_ends_none() -> None:
    gpu = make_gpu()
    pods = [WorkloadFacts(gpu.uuid, None, "a", f"p{number}", "c", Sharing.TIME_SLICED) for number in range(3)]
    reconcile_agent_report(gpu.node_id, report(T0, gpu_facts(gpu.uuid), workloads=pods), T0)
    told = {"site_code": gpu.node.site.code, "node_host": gpu.node.host_name}
    reconcile_telemetry([series(gpu.uuid, T0 + MINUTE, namespace="a", pod="p1", container="c", **told)], T0 + MINUTE)
    assert Workload.objects.running().filter(sharing="time_sliced").count() == 3
    reconcile_agent_report(gpu.node_id, report(T0 + 2 * MINUTE, gpu_facts(gpu.uuid), workloads=pods[:1]), T0 + 2 * MINUTE)
    assert list(Workload.objects.running().values_list("pod", flat=True)) == ["p0"]


def test_workloads_that_telemetry_names_all_of_come_and_go() -> None:
    gpu = make_gpu()
    told = {"site_code": gpu.node.site.code, "node_host": gpu.node.host_name, "namespace": "a", "container": "c"}

    def running(at: int, pods: str, sharing: str) -> list[tuple[str, str]]:
        now = T0 + at * MINUTE
        reconcile_telemetry([series(gpu.uuid, now, pod=pod, sharing=sharing, **told) for pod in pods.split(",")], now)
        return list(Workload.objects.running().order_by("pod").values_list("pod", "sharing"))

    assert running(0, "p1", "") == [("p1", "whole")]
    assert running(1, "p1,p2,p3", "time_sliced") == [("p1", "time_sliced"), ("p2", "time_sliced"), ("p3", "time_sliced")]
    assert running(2, "p2,p3", "time_sliced") == [("p2", "time_sliced"), ("p3", "time_sliced")]
    assert running(3, "p3", "whole") == [("p3", "whole")]
    assert running(4, "p4,p5", "mps") == [("p4", "mps"), ("p5", "mps")]
    assert running(5, "", "whole") == []


def test_a_workload_ends_with_its_slice() -> None:
    gpu = make_gpu(mig_enabled=True)
    pods = [WorkloadFacts(gpu.uuid, 7, "a", "p", "c", Sharing.MIG)]
    reconcile_agent_report(gpu.node_id, report(T0, gpu_facts(gpu.uuid, mig_enabled=True, slices=ONES), workloads=pods), T0)
    assert Workload.objects.running().get(slice__gpu_instance_id=7)
    layout = (slice_facts(1, "4g.40gb", 0, 4), slice_facts(2, "3g.40gb", 4, 4))
    reconcile_agent_report(gpu.node_id, report(T0 + MINUTE, gpu_facts(gpu.uuid, mig_enabled=True, slices=layout)), T0 + MINUTE)
    assert Workload.objects.get().ended_at == T0 + MINUTE


def test_an_unchanged_report_costs_the_same_for_one_gpu_and_eight() -> None:
    counts = []
    for number in (1, 8):
        node = make_node()
        told = report(T0, *(gpu_facts(f"GPU-{number}-{index}", index, f"00000000:{index:02X}:00.0", mig_enabled=True, slices=ONES) for index in range(number)))
        reconcile_agent_report(node.pk, told, T0)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            reconcile_agent_report(node.pk, told, T0 + MINUTE)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert counts[0] <= 20


def test_history_names_the_source() -> None:
    gpu = make_gpu(index=3)
    reconcile_agent_report(gpu.node_id, report(T0, gpu_facts(gpu.uuid, 5)), T0)
    event = apps.get_model("fleet", "GpuEvent").objects.filter(pgh_obj=gpu).order_by("pgh_id").last()
    assert (event.index, event.pgh_context.metadata["source"]) == (5, "agent")
