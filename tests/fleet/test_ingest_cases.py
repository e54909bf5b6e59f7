"""Cases C01-C08, C13 and the DCGM fixtures: what goes in by either door comes out right."""

import json
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from fleet.telemetry.energy import EnergyReading, energy_joules
from fleet.telemetry.fields import MIB, Refusal, Sample
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.live_detail import DetailWatch
from fleet.telemetry.resolver import SenderScope
from tests.fleet.samples import (
    FIXTURES,
    T0,
    WHOLE_FLEET,
    case_file,
    case_json,
    fleet_of,
    from_answer,
    from_exposition,
    gpu_value,
    pull,
    push,
    slice_value,
    uuids_of,
)

Door = Callable[..., None]
DOORS = pytest.mark.parametrize("door", [push, pull])


def ingest_of(samples: list[Sample], door: Door = push, sender: SenderScope = WHOLE_FLEET) -> Ingest:
    ingest = fleet_of(uuids_of(samples))
    door(ingest, samples, sender)
    ingest.state.derive()
    return ingest


def same(value: float | None, expected: float | None, scale: float = 1.0) -> bool:
    if value is None or expected is None:
        return value is expected
    return value == pytest.approx(expected * scale)


@DOORS
def test_c01_blanks_are_no_values(door: Door) -> None:
    expect = case_json("C01")
    fields = {
        "GPU_UTIL": ("utilization_ratio", 0.01),
        "MEMORY_TEMP": ("memory_temperature_celsius", 1.0),
        "POWER_USAGE": ("power_watts", 1.0),
        "FB_USED": ("memory_used_bytes", MIB),
        "PROF_SM_ACTIVE": ("sm_active_ratio", 1.0),
        "PROF_DRAM_ACTIVE": ("dram_active_ratio", 1.0),
        "PROF_PCIE_TX_BYTES": ("pcie_tx_bytes_per_second", 1.0),
        "PROF_PCIE_RX_BYTES": ("pcie_rx_bytes_per_second", 1.0),
        "NVLINK_BANDWIDTH_TOTAL": ("nvlink_bandwidth_total", 1.0),
    }
    for samples, values in (
        (from_exposition(case_file("C01", "scrape.prom")), expect["values"]),
        (from_answer(case_json("C01", "query.json")), expect["query_json_values"]),
    ):
        ingest = ingest_of(samples, door)
        for gpu, its_values in values.items():
            for name, right in its_values.items():
                field, scale = fields[name]
                assert same(gpu_value(ingest, expect["gpu_uuid"][gpu], field), right, scale), (gpu, name)
        assert ingest.quality.totals[Refusal.BLANK] > 0
        utilization = [gpu_value(ingest, uuid, "utilization_ratio") for uuid in expect["gpu_uuid"].values()]
        assert np.mean([value for value in utilization if value is not None]) == pytest.approx(expect["site_mean_gpu_util_pct"] / 100)


@DOORS
def test_c02_a_percentage_out_of_range_is_refused_and_counted(door: Door) -> None:
    expect = case_json("C02")
    samples = from_answer(case_json("C02", "range.json"))
    (uuid,) = uuids_of(samples)
    ingest = fleet_of([uuid])
    seen = []
    for sample in samples:
        door(ingest, [sample])
        value = gpu_value(ingest, uuid, "utilization_ratio")
        seen.append(None if value is None else round(value * 100, 6))
    assert seen == expect["valid"]
    assert ingest.quality.totals[Refusal.OUT_OF_RANGE] == expect["refused_count"]
    assert ingest.state.gpu_refused[0] == expect["refused_count"]


@DOORS
def test_c03_the_workload_is_never_the_exporter(door: Door) -> None:
    expect = case_json("C03")
    found = {}
    for number, (site, source) in enumerate(case_json("C03", "sites.json").items()):
        samples = from_answer(case_json("C03", source["response"]))
        ingest = fleet_of(uuids_of(samples), site=site, host=samples[0].labels["Hostname"])
        door(ingest, samples, SenderScope(number + 1, site, frozenset({100}), honor_labels=source["honor_labels"]))
        for seen in ingest.sightings.take(now=T0 + 10, limit=100):
            found[seen.gpu_uuid] = {"namespace": seen.namespace, "pod": seen.pod, "container": seen.container} if seen.pod else None
            assert seen.namespace != "gpu-mon"
    assert found == expect["workload"]


@DOORS
def test_c03_old_names_of_the_workload_do_not_collide_with_the_targets(door: Door) -> None:
    ingest = fleet_of(["GPU-1"])
    old = {"pod_name": "llm-0", "pod_namespace": "tenant-a", "container_name": "main"}
    own = {"pod": "dcgm-exporter-x", "namespace": "gpu-mon", "container": "exporter"}
    door(ingest, [Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1", **old, **own}, 300.0, T0)])
    (seen,) = ingest.sightings.take(now=T0 + 3, limit=10)
    assert (seen.namespace, seen.pod, seen.container) == ("tenant-a", "llm-0", "main")


@DOORS
def test_c04_values_of_the_device_are_taken_once(door: Door) -> None:
    expect = case_json("C04")
    ingest = ingest_of(from_exposition(case_file("C04", "scrape.prom")), door)
    for uuid, watts in expect["gpu_power_w"].items():
        assert gpu_value(ingest, uuid, "power_watts") == watts
        assert gpu_value(ingest, uuid, "energy_joules") == pytest.approx(expect["energy_mj"][uuid] / 1000, rel=1e-15)
    assert np.nansum(ingest.state.gpu_values, axis=1)[5] == expect["site_power_w"]
    assert (ingest.state.gpu_count, len(set(ingest.state.slice_row_of))) == (expect["gpu_count"], expect["slice_count"])


@DOORS
def test_c05_a_slices_utilisation_is_its_engine_activity(door: Door) -> None:
    expect = case_json("C05")
    samples = from_exposition(case_file("C05", "scrape.prom"))
    ingest = ingest_of(samples, door)
    sliced = next(sample.labels["UUID"] for sample in samples if "GPU_I_ID" in sample.labels)
    for name, percent in expect["slice_util_pct"].items():
        value = slice_value(ingest, sliced, int(name.split("/")[1]), "engine_active_ratio")
        assert value == pytest.approx(percent / 100)
    for uuid, percent in expect["gpu_util_pct"].items():
        assert gpu_value(ingest, uuid, "utilization_ratio") == pytest.approx(percent / 100, abs=expect["tolerance"] / 100)


@DOORS
def test_c06_the_sample_time_counts(door: Door) -> None:
    expect = case_json("C06")
    times = {one["metric"]["UUID"]: float(one["value"][1]) for one in case_json("C06", "timestamps.json")["data"]["result"]}
    samples = [Sample(one.labels, one.value, times[one.labels["UUID"]]) for one in from_answer(case_json("C06", "values.json"))]
    ingest = fleet_of(times)
    door(ingest, samples, now=T0)
    for uuid, age in expect["age_s"].items():
        assert pytest.approx(age) == T0 - ingest.state.gpu_sampled_at[ingest.state.gpu_row_of[uuid]]
    fresh = ingest.state.reporting(now=T0, within_seconds=60)
    assert fresh.tolist() == [expect["state"][uuid] == "fresh" for uuid in ingest.state.gpu_uuid]
    assert np.mean(ingest.state.gpu_values[8][fresh]) == pytest.approx(expect["live_mean_util_pct"] / 100)


@DOORS
def test_c07_xid_is_a_code(door: Door) -> None:
    expect = case_json("C07")
    samples = from_answer(case_json("C07", "range.json"))
    ingest = fleet_of(uuids_of(samples))
    door(ingest, samples)
    changes = ingest.state.take_xid_changes()
    first, *later = changes
    assert (first.old, first.new) == (None, expect["preexisting"]["xid"])
    events = [{"t": change.at, "xid": change.new} for change in later if change.new != 0]
    assert [event["xid"] for event in events] == [event["xid"] for event in expect["gauge_events"]]
    assert [event["t"] - T0 for event in events] == [180, 360, 540]
    door(ingest, from_answer(case_json("C07", "counts.json")))
    counts = ingest.state.take_xid_counts()
    assert sum(count.new - (count.old or 0) for count in counts if count.new > (count.old or 0)) == expect["xid31_occurrences_with_counts"]
    assert {count.xid for count in counts} == {31}


@DOORS
def test_c08_profiling_at_zero_on_a_busy_gpu_is_suspect(door: Door) -> None:
    expect = case_json("C08")
    ingest = ingest_of(from_exposition(case_file("C08", "scrape.prom")), door)
    suspect = {uuid for uuid, marked in zip(ingest.state.gpu_uuid, ingest.state.gpu_suspect, strict=True) if marked}
    assert suspect == set(expect["busy"])
    assert set(ingest.state.gpu_uuid) - suspect == set(expect["idle_candidates"])
    ((_, detail),) = DetailWatch(ingest.state).changes({"S1"}, now=T0 + 1)
    told = {uuid: values["engine_active_ratio"] for uuid, values in detail["gpus"].items()}
    assert {uuid for uuid, value in told.items() if np.isnan(value)} == set(expect["busy"])


def sliced_at_zero(watts: float, memory_mib: float | None, limit: float | None) -> list[Sample]:
    """A GPU of seven slices whose profiling module reads 0."""
    device = {"UUID": "GPU-1", "Hostname": "gpu-a-07"}
    samples = []
    for instance in range(7, 14):
        labels = {**device, "GPU_I_ID": str(instance), "GPU_I_PROFILE": "1g.10gb"}
        samples.append(Sample({"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", **labels}, 0.0, T0))
        if memory_mib is not None:
            samples.append(Sample({"__name__": "DCGM_FI_DEV_FB_USED", **labels}, memory_mib, T0))
    samples.append(Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", **device}, watts, T0))
    if limit is not None:
        samples.append(Sample({"__name__": "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", **device}, limit, T0))
    return samples


@DOORS
@pytest.mark.parametrize(
    ("watts", "memory_mib", "limit", "suspect"),
    [
        (655.0, 8000.0, 700.0, True),
        (655.0, None, None, True),
        (230.0, 8000.0, 700.0, True),
        (230.0, 12.0, 700.0, False),
        (230.0, None, 700.0, False),
        (92.0, 8000.0, 700.0, False),
        (92.0, 8000.0, None, False),
    ],
)
def test_c08_on_a_sliced_gpu_power_and_memory_are_the_witnesses(door: Door, watts: float, memory_mib: float | None, limit: float | None, suspect: bool) -> None:
    ingest = ingest_of(sliced_at_zero(watts, memory_mib, limit), door)
    assert ingest.state.gpu_suspect.tolist() == [suspect]
    assert gpu_value(ingest, "GPU-1", "utilization_ratio") == (None if suspect else 0.0)
    ((_, detail),) = DetailWatch(ingest.state).changes({"S1"}, now=T0 + 1)
    assert {bool(np.isnan(values["engine_active_ratio"])) for values in detail["slices"].values()} == {suspect}
    assert np.isnan(detail["gpus"]["GPU-1"]["utilization_ratio"]) == suspect


def test_c08_one_slice_at_work_clears_the_others() -> None:
    samples = sliced_at_zero(655.0, 8000.0, 700.0)
    samples[0] = Sample(samples[0].labels, 0.7, T0)
    ingest = ingest_of(samples)
    assert not ingest.state.gpu_suspect.any()
    assert gpu_value(ingest, "GPU-1", "utilization_ratio") == pytest.approx(0.1)


@DOORS
def test_c12_what_a_partial_answer_lacks_stays_with_its_time(door: Door) -> None:
    expect = case_json("C12")
    full, partial, infos = (from_answer(case_json("C12", name)) for name in ("1-full.json", "2-partial.json", "3-infos.json"))
    ingest = fleet_of(uuids_of(full))
    door(ingest, full)
    door(ingest, partial)
    fresh = ingest.state.reporting(now=T0 + 61, within_seconds=30)
    assert (fresh.sum(), (~fresh).sum()) == (expect["after_partial"]["fresh"], expect["after_partial"]["unknown"])
    assert set(ingest.state.gpu_sampled_at[~fresh]) == {T0}
    assert ingest.state.gpu_active.all()
    door(ingest, infos)
    assert ingest.state.reporting(now=T0 + 121, within_seconds=30).sum() == expect["after_infos"]["fresh"]


@DOORS
def test_c13_the_replicas_of_a_pair_are_one_gpu(door: Door) -> None:
    expect = case_json("C13")
    samples = from_answer(case_json("C13", "vector.json"))
    ingest = ingest_of(samples, door)
    assert ingest.state.gpu_count == expect["gpu_count"]
    low, high = expect["site_power_w_between"]
    assert low <= np.nansum(ingest.state.gpu_values[5]) <= high
    assert not np.isnan(ingest.state.gpu_values[5]).any()


@DOORS
def test_fixture_of_a_sliced_node(door: Door) -> None:
    samples = from_exposition((FIXTURES / "dcgm-exporter-h100-mig-k8s.prom").read_text())
    ingest = ingest_of(samples, door, SenderScope(1, "kubernetes", None, honor_labels=True))
    assert (ingest.state.gpu_count, ingest.state.slice_count) == (2, 4)
    sliced, whole = uuids_of(samples)
    assert gpu_value(ingest, sliced, "utilization_ratio") == pytest.approx(0.432857, abs=1e-6)
    assert np.nansum(ingest.state.gpu_values[5]) == pytest.approx(959.549)
    workloads = {(seen.gpu_uuid, seen.gpu_instance_id): seen.pod for seen in ingest.sightings.take(now=T0 + 10, limit=100)}
    assert len(workloads) == 5
    assert workloads[sliced, 10] == ""
    assert sum(bool(pod) for pod in workloads.values()) == 4
    assert workloads[whole, None] == "llm-70b-0"


def test_fixture_through_prometheus_without_honoured_labels() -> None:
    samples = from_answer(json.loads((FIXTURES / "prometheus-query-mig-exported-labels.json").read_text()))
    ingest = ingest_of(samples)
    pods = {seen.gpu_instance_id: (seen.namespace, seen.pod) for seen in ingest.sightings.take(now=T0 + 10, limit=100)}
    assert all(not namespace or namespace.startswith("tenant-") for namespace, _ in pods.values())
    assert any(pod for _, pod in pods.values())


@DOORS
def test_fixture_of_a_slurm_node(door: Door) -> None:
    samples = from_exposition((FIXTURES / "dcgm-exporter-8xh100-slurm.prom").read_text())
    ingest = ingest_of(samples, door)
    assert ingest.state.gpu_count == 8
    assert ingest.state.slice_count == 0
    assert not np.isnan(ingest.state.gpu_values[8]).any()


def test_c32_energy_of_restarting_blinking_and_blank_counters() -> None:
    expect, limits = case_json("C32"), case_json("C32", "limits.json")
    samples = from_answer(case_json("C32", "range.json"))
    ingest = fleet_of(uuids_of(samples))
    readings: dict[str, list[EnergyReading]] = defaultdict(list)
    for sample in samples:
        push(ingest, [sample])
        uuid = sample.labels["UUID"]
        readings[uuid].append(EnergyReading(sample.at, gpu_value(ingest, uuid, "energy_joules")))
    for letter, uuid in expect["gpu"].items():
        intervals = energy_joules(readings[uuid], power_limit_watts=limits["power_limit_w"], slack=limits["slack"])
        total = sum(interval.joules for interval in intervals)
        assert total == pytest.approx(expect["energy_mj"][uuid] / 1000), letter
        assert total / 3.6e6 == pytest.approx(expect["kwh"][uuid], abs=expect["tolerance_kwh"])
        assert all(0 <= interval.joules <= limits["power_limit_w"] * (interval.until - interval.since) * limits["slack"] for interval in intervals)
        assert any(interval.at_least for interval in intervals) == (letter == "B")
