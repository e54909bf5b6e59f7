"""Tables of cases for what metrics mean: values, blanks, workloads, slices, energy; Triton and vLLM between two scrapes (C09, C10)."""

import math
from collections import defaultdict

import pytest

from fleet.models import GpuReading, SliceReading
from fleet.telemetry.energy import EnergyReading, energy_joules
from fleet.telemetry.fields import (
    FIELD_OF_METRIC,
    GPU_FIELDS,
    SLICE_FIELDS,
    DcgmType,
    Refusal,
    compute_slices,
    is_blank,
    read_value,
    short_host,
    sliced_utilization,
    workload_of,
)
from fleet.telemetry.service_metrics import SERVICE_FIELDS, Scrape, combine_engines, derive, engine_of, find_field, job_of
from tests.fleet.samples import FIXTURES, T0, case_file, case_json, from_answer, from_exposition


def test_fields_are_the_columns_of_the_readings() -> None:
    for model, fields in ((GpuReading, GPU_FIELDS), (SliceReading, SLICE_FIELDS)):
        columns = {column.name for column in model._meta.get_fields()}
        assert {field.name for field in fields} <= columns


@pytest.mark.parametrize(
    ("value", "its_type", "blank"),
    [
        (9223372036854775792.0, DcgmType.INT64, True),
        (2147483640.0, DcgmType.INT64, False),
        (198412345678901.0, DcgmType.INT64, False),
        (140737488355328.0, DcgmType.INT64, False),
        (2147483632.0, DcgmType.INT32, True),
        (2147483647.0, DcgmType.INT32, True),
        (2147483631.0, DcgmType.INT32, False),
        (140737488355328.0, DcgmType.FP64, True),
        (140737488355331.0, DcgmType.FP64, True),
        (140737488355327.0, DcgmType.FP64, False),
        (0.0, DcgmType.INT64, False),
    ],
)
def test_blanks_go_by_the_fields_own_type(value: float, its_type: DcgmType, blank: bool) -> None:
    assert is_blank(value, its_type) is blank


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 63.0, (0.63, None)),
        ("DCGM_FI_DEV_GPU_UTIL", 100.0, (1.0, None)),
        ("DCGM_FI_DEV_GPU_UTIL", 100.5, (None, Refusal.OUT_OF_RANGE)),
        ("DCGM_FI_DEV_GPU_UTIL", 4294967295.0, (None, Refusal.OUT_OF_RANGE)),
        ("DCGM_FI_DEV_GPU_UTIL", math.nan, (None, Refusal.NOT_A_NUMBER)),
        ("DCGM_FI_DEV_GPU_UTIL", math.inf, (None, Refusal.BLANK)),
        ("DCGM_FI_DEV_FB_USED", 0.0, (0.0, None)),
        ("DCGM_FI_DEV_FB_USED", 40960.0, (42949672960.0, None)),
        ("DCGM_FI_DEV_MEMORY_TEMP", 2147483632.0, (None, Refusal.BLANK)),
        ("DCGM_FI_DEV_GPU_TEMP", -5.0, (-5.0, None)),
        ("DCGM_FI_DEV_POWER_USAGE", -1.0, (None, Refusal.OUT_OF_RANGE)),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 126272106318.0, (126272106.318, None)),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 126272106.0, (126272106.0, None)),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", 2147483640.0, (2147483640.0, None)),
    ],
)
def test_values_in_our_units(metric: str, value: float, expected: tuple[float | None, Refusal | None]) -> None:
    got = read_value(metric, value)
    assert got[1] == expected[1]
    assert got[0] == pytest.approx(expected[0]) if expected[0] is not None else got[0] is None


def test_gpu_util_on_a_slices_line_means_nothing() -> None:
    assert read_value("DCGM_FI_DEV_GPU_UTIL", 0.0, on_slice=True) == (None, None)
    assert read_value("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9, on_slice=True) == (0.9, None)


def test_each_metric_name_is_one_field() -> None:
    names = [metric.name for field in GPU_FIELDS for metric in field.metrics]
    assert len(names) == len(set(names)) == len(FIELD_OF_METRIC)


@pytest.mark.parametrize(("profile", "slices"), [("1g.10gb", 1), ("3g.40gb", 3), ("7g.80gb", 7), ("1g.10gb+me", 1), ("1c.3g.40gb", 3), ("", 0), ("mig", 0)])
def test_compute_slices(profile: str, slices: int) -> None:
    assert compute_slices(profile) == slices


def test_sliced_utilisation_is_weighted_and_unknown_when_a_slice_is() -> None:
    assert sliced_utilization([("1g.10gb", 0.9), ("2g.20gb", 0.6), ("3g.40gb", 0.2)]) == pytest.approx(0.385714, abs=1e-6)
    assert sliced_utilization([("1g.10gb", 0.9), ("2g.20gb", None)]) is None
    assert sliced_utilization([]) is None


@pytest.mark.parametrize(
    ("labels", "honor", "expected"),
    [
        ({"exported_pod": "a", "exported_namespace": "t", "exported_container": "c", "pod": "exporter"}, False, ("t", "a", "c")),
        ({"pod": "exporter", "namespace": "mon", "container": "exporter"}, False, ("", "", "")),
        ({"pod": "a", "namespace": "t", "container": "c"}, True, ("t", "a", "c")),
        ({"pod": "", "namespace": "", "container": ""}, True, ("", "", "")),
        ({"exported_pod": "", "pod": "exporter", "namespace": "mon"}, True, ("", "", "")),
        ({"pod_name": "a", "pod_namespace": "t", "container_name": "c"}, True, ("t", "a", "c")),
        ({}, True, ("", "", "")),
    ],
)
def test_workload_labels(labels: dict[str, str], honor: bool, expected: tuple[str, str, str]) -> None:
    assert workload_of(labels, honor_labels=honor) == expected


def test_host_names_are_compared_by_their_first_label() -> None:
    assert short_host("GPU-A-01.example.net") == short_host("gpu-a-01") == "gpu-a-01"


def test_c32_energy_of_restarting_blinking_and_blank_counters() -> None:
    expect, limits = case_json("C32"), case_json("C32", "limits.json")
    readings: dict[str, list[EnergyReading]] = defaultdict(list)
    for sample in from_answer(case_json("C32", "range.json")):
        value, _ = read_value("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", sample.value)
        readings[sample.labels["UUID"]].append(EnergyReading(sample.at, value))
    for letter, uuid in expect["gpu"].items():
        intervals = energy_joules(readings[uuid], power_limit_watts=limits["power_limit_w"], slack=limits["slack"])
        total = sum(interval.joules for interval in intervals)
        assert total == pytest.approx(expect["energy_mj"][uuid] / 1000), letter
        assert total / 3.6e6 == pytest.approx(expect["kwh"][uuid], abs=expect["tolerance_kwh"])
        assert all(0 <= interval.joules <= limits["power_limit_w"] * (interval.until - interval.since) * limits["slack"] for interval in intervals)
        assert any(interval.at_least for interval in intervals) == (letter == "B")


def scrapes(job: str, *texts: str, seconds: float = 60.0) -> list[dict[str, Scrape]]:
    found = []
    for number, text in enumerate(texts):
        values: dict[str, dict[str, float]] = defaultdict(dict)
        for sample in from_exposition(text, T0 + number * seconds):
            match = find_field(sample.labels)
            if match is not None:
                field, item = match
                assert field.job == job
                values[item][field.name] = sample.value * field.scale
        found.append({item: Scrape(T0 + number * seconds, its) for item, its in values.items()})
    return found


def test_c09_vllm_names_of_all_versions_count_once() -> None:
    expect = case_json("C09")
    for name in ("vllm-old", "vllm-both", "vllm-new"):
        (items,) = scrapes("vllm", case_file("C09", f"{name}.prom"))
        usage = {str(engine_of(item)): scrape.values["kv_cache_usage_ratio"] for item, scrape in items.items()}
        assert usage == expect["kv_cache_usage"][name]
        total = combine_engines([scrape.values for scrape in items.values()])
        assert (total["inter_token_count_total"], total["inter_token_seconds_total"]) == (expect["inter_token"]["count"], expect["inter_token"]["sum_s"])
        assert total["inter_token_seconds_total"] / total["inter_token_count_total"] == expect["inter_token"]["mean_s"]
        assert total["requests_running"] == expect["requests_running"][name]
        assert total.get("prefix_hit_ratio") == expect["prefix_hit_ratio"][name]
        assert "kv_cache_usage_ratio" not in total


def test_c10_triton_between_two_scrapes() -> None:
    expect = case_json("C10")
    first, second = scrapes("triton", case_file("C10", "scrape-1.prom"), case_file("C10", "scrape-2.prom"), seconds=expect["interval_s"])
    last, previous = second["detector:3"], first["detector:3"]
    derived = derive("triton", last, previous)
    assert derived["mean_latency_seconds"] == pytest.approx(expect["mean_latency_ms"] / 1000)
    assert derived["mean_queue_seconds"] == pytest.approx(expect["mean_queue_ms"] / 1000)
    assert derived["mean_batch"] == expect["mean_batch"]
    assert derived["requests_per_second"] == expect["request_rate_per_s"]
    assert derived["failures"] == expect["failures"].pop("total")
    assert derived["success_ratio"] == pytest.approx(expect["success_ratio"], abs=expect["tolerance"])
    for reason, count in expect["failures"].items():
        name = f"failures_{reason.lower()}_total"
        assert last.values[name] - previous.values[name] == count
    (gpu,) = (scrape for item, scrape in second.items() if item.startswith("GPU-"))
    assert gpu.values["gpu_utilization_ratio"] * 100 == pytest.approx(expect["gpu_util_pct"])
    assert gpu.values["gpu_memory_used_bytes"] / 2**20 == expect["gpu_mem_used_mib"]


def test_triton_without_traffic_or_after_a_restart_has_no_means() -> None:
    (first,) = scrapes("triton", case_file("C10", "scrape-1.prom"))
    (later,) = scrapes("triton", case_file("C10", "scrape-2.prom"))
    scrape, more = first["detector:3"], later["detector:3"]
    idle = derive("triton", Scrape(T0 + 60, scrape.values), scrape)
    assert (idle["requests_per_second"], idle["mean_latency_seconds"], idle["success_ratio"]) == (0.0, None, None)
    restarted = derive("triton", Scrape(T0 + 60, scrape.values), Scrape(T0, more.values))
    assert {restarted["requests_per_second"], restarted["mean_latency_seconds"], restarted["failures"]} == {None}
    assert derive("triton", scrape, None)["requests_per_second"] is None


def test_fixture_of_triton() -> None:
    (items,) = scrapes("triton", (FIXTURES / "triton-metrics.prom").read_text())
    values = items["detector:3"].values
    assert values["requests_ok_total"] == 158233
    assert sum(value for name, value in values.items() if name.startswith("failures_")) == 233
    assert values["request_seconds_total"] / values["requests_ok_total"] == pytest.approx(0.03199658, abs=1e-8)
    assert values["latency_p99_seconds"] == pytest.approx(0.088339)
    assert items[""].values == {"cpu_utilization_ratio": 0.214}


def test_fixture_of_vllm() -> None:
    (items,) = scrapes("vllm", (FIXTURES / "vllm-v1-metrics.prom").read_text())
    ((item, scrape),) = items.items()
    assert item == "acme/tern-70b-instruct#0"
    assert sum(scrape.values[f"requests_{reason}_total"] for reason in ("stop", "length", "abort")) == 8270
    assert scrape.values["kv_cache_usage_ratio"] == 0.7138
    assert scrape.values["time_to_first_token_seconds_total"] / scrape.values["time_to_first_token_count_total"] == pytest.approx(0.239943, abs=1e-6)
    assert not any("created" in name for name in scrape.values)


def test_fixture_of_node_exporter() -> None:
    (items,) = scrapes("node", (FIXTURES / "node-exporter-excerpt.prom").read_text())
    assert items[""].values["load1"] == 37.12
    assert items["/"].values == {"filesystem_available_bytes": 6.12202496e11}
    assert items["bond0"].values == {"network_receive_bytes_total": 8.812330112e12}


def test_service_fields_are_named_once_per_job() -> None:
    names = [(field.job, field.name) for field in SERVICE_FIELDS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "job"), [("dcgm", "dcgm"), ("nvidia-dcgm-exporter", "dcgm"), ("node-exporter", "node"), ("Triton", "triton"), ("kubelet", None)]
)
def test_jobs(name: str, job: str | None) -> None:
    assert job_of(name) == job
