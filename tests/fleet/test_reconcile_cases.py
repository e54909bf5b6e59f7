"""Real-world cases of the inventory: C03, C12, C16-C19 and the fixtures of one sliced node."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from agent.protocol import SliceFacts
from fleet.inventory.seen import mark_missing, mark_present, reconcile_agent_report, reconcile_telemetry
from fleet.models import Finding, Gpu, MigSlice, Node, ObjectKind, Workload
from fleet.telemetry.fields import SeriesSeen, series_seen
from tests.builders import T0, make_node, make_site
from tests.fleet.seen import CASES, FIXTURES, case, gpu_facts, report, series_of_text

pytestmark = pytest.mark.django_db


def of_answer(answer: dict, *, site: str | None = None, honor_labels: bool = False) -> list[SeriesSeen]:
    """The identities in an answer of Prometheus' HTTP API. The node is the label `node`; without one `Hostname` is all there is."""
    return [
        series_seen(
            row["metric"],
            site_code=site or row["metric"].get("site", ""),
            node_host=row["metric"].get("node") or row["metric"].get("Hostname", ""),
            honor_labels=honor_labels,
            at=row["value"][0],
        )
        for row in answer["data"]["result"]
    ]


def test_c03_the_exporters_own_pod_is_nobodys_workload() -> None:
    expect = case("C03-exported-pod-or-pod", "expect.json")
    for code, told in case("C03-exported-pod-or-pod", "sites.json").items():
        answer = case("C03-exported-pod-or-pod", told["response"])
        make_node(answer["data"]["result"][0]["metric"]["Hostname"], site=make_site(code))
        reconcile_telemetry(of_answer(answer, site=code, honor_labels=told["honor_labels"]), T0)
    for uuid, workload in expect["workload"].items():
        running = Workload.objects.running().filter(gpu__uuid=uuid)
        assert list(running.values("namespace", "pod", "container")) == ([workload] if workload else [])
    assert Workload.objects.filter(namespace="gpu-mon").count() == expect["gpus_attributed_to_namespace_gpu-mon"]


def test_c12_a_partial_answer_retires_nothing() -> None:
    expect = case("C12-partial-success", "expect.json")
    for code, host in (("edge-ams", "gpu-a-01"), ("edge-fra", "gpu-f-01")):
        make_node(host, site=make_site(code), expected_gpus=4)
    reconcile_telemetry(of_answer(case("C12-partial-success", "1-full.json")), T0)
    assert Gpu.objects.filter(presence=Gpu.Presence.PRESENT).count() == 8
    incident = case("C12-partial-success", "open_incidents.json")[0]
    Finding.objects.create(kind=ObjectKind.GPU, object_key=incident["gpu"], code="xid", severity="major", summary="x", since=T0, last_at=T0)
    result = reconcile_telemetry(of_answer(case("C12-partial-success", "2-partial.json")), T0 + timedelta(seconds=60))
    assert Gpu.objects.filter(presence=Gpu.Presence.PRESENT).count() == 8
    assert len(result.missing) == expect["after_partial"]["removed"]
    assert Finding.objects.open().filter(object_key=incident["gpu"]).exists()
    reconcile_telemetry(of_answer(case("C12-partial-success", "3-infos.json")), T0 + timedelta(seconds=120))
    assert Gpu.objects.filter(presence=Gpu.Presence.PRESENT).count() == expect["after_infos"]["fresh"]


def test_c16_an_exporter_pod_is_no_node() -> None:
    expect = case("C16-hostname-is-a-pod", "expect.json")
    site = make_site("edge-a")
    for listed in case("C16-hostname-is-a-pod", "inventory.json"):
        make_node(listed["node"], site=site)
    for name in ("1.json", "2.json", "3.json"):
        reconcile_telemetry(of_answer(case("C16-hostname-is-a-pod", name), site=site.code), T0)
        assert list(Node.objects.values_list("host_name", flat=True)) == expect["nodes"]
        assert list(Gpu.objects.order_by("index").values_list("uuid", flat=True)) == expect["gpus"]
    assert set(Gpu.objects.values_list("node__host_name", flat=True)) == set(expect["nodes"])


def test_c16_an_unknown_gpu_behind_an_exporter_pod_is_not_placed() -> None:
    site = make_site("edge-a")
    make_node("gpu-a-01", site=site)
    result = reconcile_telemetry(of_answer(case("C16-hostname-is-a-pod", "3.json"), site=site.code), T0)
    assert sorted(result.unplaced) == sorted(case("C16-hostname-is-a-pod", "expect.json")["gpus"])
    assert not Gpu.objects.exists()


def test_c17_a_gpu_off_the_bus_keeps_its_record_and_the_others_their_history() -> None:
    expect = case("C17-gpu-lost-and-renumbered", "expect.json")
    lost, later = expect["missing"][0], T0 + timedelta(minutes=5)
    node = make_node("gpu-b-01", site=make_site("edge-b"), expected_gpus=expect["expected_count"])
    texts = {name: (CASES / "C17-gpu-lost-and-renumbered" / f"{name}.prom").read_text() for name in ("before", "after")}
    reconcile_telemetry(series_of_text(texts["before"], site="edge-b", at=T0), T0)
    ids = dict(Gpu.objects.values_list("uuid", "pk"))
    Finding.objects.create(kind=ObjectKind.GPU, object_key=expect["present"][1], code="xid", severity="major", summary="C's", since=T0, last_at=T0)

    reconcile_telemetry(series_of_text(texts["after"], site="edge-b", at=later), later)
    mark_missing([ids[lost]], later)

    assert dict(Gpu.objects.values_list("uuid", "pk")) == ids
    assert {gpu.uuid: gpu.index for gpu in Gpu.objects.exclude(uuid=lost)} == expect["index_after"]
    gone = Gpu.objects.get(uuid=lost)
    assert (gone.presence, gone.index, gone.last_seen_at, gone.missing_since, gone.node) == (Gpu.Presence.MISSING, None, T0, later, node)
    finding = Finding.objects.open().get(object_key=lost)
    assert (finding.code, finding.evidence["expected"], finding.evidence["present"]) == ("gpu_missing", 4, 3)
    assert Finding.objects.open().get(object_key=expect["present"][1]).summary == "C's"
    assert sorted(Gpu.objects.filter(presence=Gpu.Presence.PRESENT).values_list("uuid", flat=True)) == sorted(expect["present"])

    assert mark_present([ids[lost]], later + timedelta(minutes=9)) == 1
    assert not Finding.objects.open().filter(object_key=lost).exists()


def test_c17_by_the_agents_report() -> None:
    expect = case("C17-gpu-lost-and-renumbered", "expect.json")
    node = make_node("gpu-b-01", expected_gpus=4)
    order = [expect["present"][0], expect["missing"][0], *expect["present"][1:]]
    pci = [f"00000000:{bus}:00.0" for bus in ("19", "3B", "4C", "5D")]
    reconcile_agent_report(node.pk, report(T0, *(gpu_facts(uuid, index, pci[index]) for index, uuid in enumerate(order))), T0)
    later = T0 + timedelta(minutes=5)
    left = [(0, order[0], pci[0]), (1, order[2], pci[2]), (2, order[3], pci[3])]
    result = reconcile_agent_report(node.pk, report(later, *(gpu_facts(uuid, index, slot) for index, uuid, slot in left)), later)
    assert [Gpu.objects.get(pk=pk).uuid for pk in result.missing] == expect["missing"]
    assert {gpu.uuid: gpu.index for gpu in Gpu.objects.filter(presence=Gpu.Presence.PRESENT)} == expect["index_after"]


def test_c18_a_replaced_gpu_leaves_its_faults_behind() -> None:
    expect = case("C18-gpu-replaced", "expect.json")
    before, after, incident = (case("C18-gpu-replaced", name) for name in ("1-before.json", "2-after.json", "open.json"))
    node = make_node(before["node"], expected_gpus=1)
    for told in (before, after):
        at = datetime.fromisoformat(told["observed_at"])
        gpus = [gpu_facts(gpu["uuid"], gpu["index"], gpu["pci_bus_id"], serial=gpu["serial"], name=gpu["model"]) for gpu in told["gpus"]]
        reconcile_agent_report(node.pk, report(at, *gpus), at)
        if told is before:
            Finding.objects.create(
                kind=ObjectKind.GPU, object_key=incident["gpu_uuid"], code="hw_power_brake", severity="major", summary=incident["reason"], since=at, last_at=at
            )
    old, new = Gpu.objects.get(uuid=expect["retired"]), Gpu.objects.get(uuid=expect["added"])
    assert (old.presence, old.retired_at, old.replaced_by) == (Gpu.Presence.RETIRED, datetime(2026, 11, 20, 12, tzinfo=UTC), new)
    assert (new.presence, new.first_seen_at, new.serial) == (Gpu.Presence.PRESENT, old.retired_at, "1650022000777")
    closed = Finding.objects.get(object_key=old.uuid)
    assert (closed.until, closed.ended_because) == (old.retired_at, "GPU replaced")
    assert Finding.objects.open().filter(object_key=new.uuid).count() == expect["new_gpu_open_incidents"]


def test_c19_slices_come_and_go_and_a_reboot_removes_them_all() -> None:
    expect, told = case("C19-mig-reconfigured", "expect.json"), case("C19-mig-reconfigured", "agent_reports.json")
    node, uuid = make_node("gpu-c-01", expected_gpus=1), told["gpu_uuid"]
    starts = {"4g.40gb": (0, 4), "3g.40gb": (4, 4)}
    for each in told["reports"]:
        at = datetime.fromisoformat(each["t"])
        slices = tuple(
            SliceFacts(row["gi_id"], row["ci_id"], row["profile"], *_place(row, number, starts), mig_uuid=row["uuid"])
            for number, row in enumerate(each["slices"])
        )
        facts = gpu_facts(uuid, name=told["model"], mig_enabled=each["mig_mode"] == "Enabled", slices=slices)
        reconcile_agent_report(node.pk, report(at, facts), at)
        if each["t"] == expect["drift_at"]:
            drift = Finding.objects.open().get(object_key=uuid)
            assert (drift.code, drift.since, drift.evidence["desired"], drift.evidence["actual"]) == ("mig_drift", at, ["4g.40gb@0", "3g.40gb@4"], [])
    assert Gpu.objects.get().sku == "a100-80gb"
    assert MigSlice.objects.count() == expect["slice_records_total"]
    assert set(MigSlice.objects.filter(profile="1g.10gb").values_list("ended_at", flat=True)) == {datetime.fromisoformat(expect["ended_at"]["first_layout"])}
    second = MigSlice.objects.filter(created_at=datetime.fromisoformat(expect["ended_at"]["first_layout"]))
    assert set(second.values_list("ended_at", flat=True)) == {datetime.fromisoformat(expect["ended_at"]["second_layout"])}
    ones = MigSlice.objects.filter(gpu_instance_id=1).order_by("created_at")
    assert [(row.profile, row.ended_at is None) for row in ones] == [("4g.40gb", False), ("3g.40gb", True)]
    assert len(set(ones.values_list("mig_uuid", flat=True))) == 1
    assert not Finding.objects.open().exists()
    commanded = case("C19-mig-reconfigured", "command.json")["mig_uuid"]
    assert not MigSlice.objects.filter(mig_uuid=commanded, ended_at__isnull=True).exists()


def _place(row: dict, number: int, starts: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """The case gives no placements: 1g one after another, 4g at 0, 3g at 4 (a second 3g stands at 0)."""
    if row["profile"] == "1g.10gb":
        return number, 1
    return (0, 4) if row["profile"] == "3g.40gb" and number == 0 else starts[row["profile"]]


def test_the_sliced_node_of_the_fixtures() -> None:
    """dcgm-exporter, nvidia-smi -L and the Kubernetes node tell the same story of gpu-ams-07."""
    make_node("gpu-ams-07", site=make_site("ams"), expected_gpus=2)
    text = (FIXTURES / "dcgm-exporter-h100-mig-k8s.prom").read_text()
    reconcile_telemetry(series_of_text(text, site="ams", at=T0), T0)
    listed = (FIXTURES / "nvidia-smi-L-mig.txt").read_text()
    assert sorted(Gpu.objects.values_list("uuid", flat=True)) == sorted(re.findall(r"UUID: (GPU-[^)]+)", listed))
    assert sorted(MigSlice.objects.values_list("profile", flat=True)) == sorted(re.findall(r"MIG (\S+) +Device", listed))
    assert {(row.profile, row.gpu_instance_id) for row in MigSlice.objects.all()} == {("3g.40gb", 2), ("2g.20gb", 3), ("1g.10gb", 9), ("1g.10gb", 10)}
    assert Workload.objects.running().count() == 4
    assert {row.sharing for row in Workload.objects.filter(slice__isnull=False)} == {"mig"}
    assert Workload.objects.get(slice__isnull=True).sharing == "whole"
    assert [gpu.mig_enabled for gpu in Gpu.objects.order_by("index")] == [True, False]
    capacity = json.loads((FIXTURES / "kubernetes-node-mig.json").read_text())["status"]["allocatable"]
    whole = Gpu.objects.filter(slices__isnull=True).count()
    per_profile = {profile: MigSlice.objects.filter(profile=profile).count() for profile in MigSlice.objects.values_list("profile", flat=True)}
    assert {"nvidia.com/gpu": str(whole)} | {f"nvidia.com/mig-{name}": str(count) for name, count in per_profile.items()} == {
        name: count for name, count in capacity.items() if name.startswith("nvidia.com/")
    }
