"""Triton, vLLM, node-exporter and `up` as they are shown: names of all versions, two scrapes, several servers of a node (cases C09, C10)."""

import math
import struct
from collections.abc import Callable, Iterable

import pytest

from fleet.telemetry.fields import STALE_NAN_BITS, Refusal, Sample
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.service_state import ServiceRow
from tests.fleet.samples import FIXTURES, T0, case_file, case_json, fleet_of, from_exposition, pull, push

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
GPUS = ("GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002")
Door = Callable[..., None]
DOORS = pytest.mark.parametrize("door", [push, pull])


@pytest.fixture
def ingest() -> Ingest:
    return fleet_of(GPUS)


def scrape(ingest: Ingest, text: str, at: float = T0, *, job: str, door: Door = push, **labels: str) -> None:
    door(ingest, from_exposition(text, at, job=job, site="S1", node="gpu-a-01", **labels))


def rows(ingest: Ingest, job: str, name: str) -> dict[str, ServiceRow]:
    return {row.item: row for row in ingest.services.read(job, 0, name)}


def values(ingest: Ingest, job: str, name: str) -> dict[str, float | None]:
    """Of the item as a whole."""
    return ingest.services.read(job, 0, name)[0].values


@DOORS
@pytest.mark.parametrize("name", ["vllm-old", "vllm-both", "vllm-new"])
def test_c09_vllm_names_of_all_versions_count_once(ingest: Ingest, name: str, door: Door) -> None:
    expect = case_json("C09")
    scrape(ingest, case_file("C09", f"{name}.prom"), job="vllm", door=door, instance="10.0.0.1:8000")
    found = rows(ingest, "vllm", "acme/tern-8b")
    usage = expect["kv_cache_usage"][name]
    total = found.pop("acme/tern-8b").values
    if len(usage) == 1:
        assert found == {}
        assert total["kv_cache_usage_ratio"] == usage["0"]
    else:
        assert {item: row.values["kv_cache_usage_ratio"] for item, row in found.items()} == {
            f"acme/tern-8b [engine {engine}, 10.0.0.1:8000]": ratio for engine, ratio in usage.items()
        }
        assert total["kv_cache_usage_ratio"] is None
    count, seconds = total["inter_token_count_total"], total["inter_token_seconds_total"]
    assert (count, seconds) == (expect["inter_token"]["count"], expect["inter_token"]["sum_s"])
    assert total["requests_running"] == expect["requests_running"][name]
    assert total.get("prefix_hit_ratio") == expect["prefix_hit_ratio"][name]


@DOORS
def test_c10_triton_between_two_scrapes(ingest: Ingest, door: Door) -> None:
    expect = case_json("C10")
    for n in (1, 2):
        scrape(ingest, case_file("C10", f"scrape-{n}.prom"), T0 + n * expect["interval_s"], job="triton", door=door)
        if n == 1:
            before = values(ingest, "triton", "detector:3")
    derived = values(ingest, "triton", "detector:3")
    assert derived["mean_latency_seconds"] == pytest.approx(expect["mean_latency_ms"] / 1000)
    assert derived["mean_queue_seconds"] == pytest.approx(expect["mean_queue_ms"] / 1000)
    assert derived["mean_batch"] == expect["mean_batch"]
    assert derived["requests_per_second"] == expect["request_rate_per_s"]
    assert derived["failures"] == expect["failures"].pop("total")
    assert derived["success_ratio"] == pytest.approx(expect["success_ratio"], abs=expect["tolerance"])
    for reason, count in expect["failures"].items():
        name = f"failures_{reason.lower()}_total"
        assert (derived[name] or 0) - (before[name] or 0) == count
    gpu = values(ingest, "triton", "GPU-63199462-ce47-58fe-ac45-9cfbf5dd0802")
    assert gpu["gpu_utilization_ratio"] == pytest.approx(expect["gpu_util_pct"] / 100)
    assert (gpu["gpu_memory_used_bytes"] or 0) / 2**20 == expect["gpu_mem_used_mib"]


def test_triton_without_traffic_or_after_a_restart_has_no_means(ingest: Ingest) -> None:
    names = ("requests_per_second", "mean_latency_seconds", "success_ratio", "failures")

    def after(number: int, at: float) -> tuple[float | None, ...]:
        scrape(ingest, case_file("C10", f"scrape-{number}.prom"), at, job="triton")
        found = values(ingest, "triton", "detector:3")
        return tuple(found[name] for name in names)

    assert after(1, T0) == (None, None, None, None)
    assert after(1, T0 + 60) == (0.0, None, None, 0.0)
    after(2, T0 + 120)
    assert after(1, T0 + 180)[:2] == (None, None)


MODEL = 'nv_inference_request_success{{model="detector",version="3"{labels}}} {count}'


class TestSeveralServersOfANode:
    @DOORS
    def test_one_triton_model_on_two_gpus(self, ingest: Ingest, door: Door) -> None:
        for n in (0, 1):
            text = "\n".join(MODEL.format(labels=f',gpu_uuid="{gpu}"', count=1000 * g + 100 * n) for g, gpu in enumerate(GPUS))
            scrape(ingest, text, T0 + 10 * n, job="triton", door=door, instance="10.0.0.1:8002")
        found = rows(ingest, "triton", "detector:3")
        assert found["detector:3"].values["requests_per_second"] == 20
        assert {item: row.values["requests_per_second"] for item, row in found.items() if item != "detector:3"} == {
            f"detector:3 [10.0.0.1:8002, {gpu}]": 10 for gpu in GPUS
        }

    @DOORS
    @pytest.mark.parametrize("label", ["instance", "pod"])
    def test_two_tritons_with_the_same_model(self, ingest: Ingest, label: str, door: Door) -> None:
        for n in range(3):
            for server, rate in (("one", 10), ("two", 5)):
                scrape(ingest, MODEL.format(labels="", count=rate * 10 * n), T0 + 10 * n + (rate == 5), job="triton", door=door, **{label: server})
        assert {item: row.values["requests_per_second"] for item, row in rows(ingest, "triton", "detector:3").items()} == {
            "detector:3": 15,
            "detector:3 [one]": 10,
            "detector:3 [two]": 5,
        }

    def test_two_vllms_with_the_same_model(self, ingest: Ingest) -> None:
        text = 'vllm:generation_tokens_total{{engine="0",model_name="m"}} {total}\nvllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}\n'
        for n in (0, 1):
            for server, rate, usage in (("a:8000", 300, 0.2), ("b:8000", 100, 0.9)):
                scrape(ingest, text.format(total=rate * 10 * n, usage=usage), T0 + 10 * n, job="vllm", instance=server)
        found = rows(ingest, "vllm", "m")
        assert found["m"].values["generation_tokens_per_second"] == 400
        assert found["m"].values["kv_cache_usage_ratio"] is None
        assert found["m [engine 0, b:8000]"].values["kv_cache_usage_ratio"] == 0.9

    def test_a_server_that_ended_or_fell_silent_counts_no_longer(self, ingest: Ingest) -> None:
        for n in range(2):
            for server in ("one", "two", "three"):
                scrape(ingest, MODEL.format(labels="", count=100 * n), T0 + 10 * n, job="triton", instance=server)
        assert values(ingest, "triton", "detector:3")["requests_per_second"] == 30
        labels = from_exposition(MODEL.format(labels="", count=0), job="triton", site="S1", node="gpu-a-01", instance="two")[0].labels
        push(ingest, [Sample(labels, STALE, T0 + 20)])
        for n in range(2, 12):
            scrape(ingest, MODEL.format(labels="", count=100 * n), T0 + 10 * n, job="triton", instance="one")
            shown = values(ingest, "triton", "detector:3")["requests_per_second"]
            assert shown == (20 if n <= 10 else 10)
        assert rows(ingest, "triton", "detector:3")["detector:3 [two]"].values == {"requests_ok_total": None}

    def test_a_server_that_restarts_makes_the_whole_unknown_for_one_scrape(self, ingest: Ingest) -> None:
        shown = []
        for n, counts in enumerate([(0, 0), (100, 100), (5, 200), (105, 300)]):
            for server, count in zip(("one", "two"), counts, strict=True):
                scrape(ingest, MODEL.format(labels="", count=count), T0 + 10 * n, job="triton", instance=server)
            shown.append(values(ingest, "triton", "detector:3")["requests_per_second"])
        assert shown == [None, 20, None, 20]

    def test_up_is_that_of_the_worst_server(self, ingest: Ingest) -> None:
        for server, up in (("a", 1), ("b", 0)):
            scrape(ingest, f"up {up}", job="vllm", instance=server)
        assert {item: row.values["up"] for item, row in rows(ingest, "vllm", "").items()} == {"": 0.0, "[a]": 1.0, "[b]": 0.0}

    def test_the_gpu_that_two_tritons_see_is_one(self, ingest: Ingest) -> None:
        for n, server in enumerate(("a", "b")):
            scrape(ingest, f'nv_gpu_power_usage{{gpu_uuid="{GPUS[0]}"}} {300 + n}', T0 + n, job="triton", instance=server)
        assert values(ingest, "triton", GPUS[0])["gpu_power_watts"] == 301


def test_failure_reasons_that_are_not_listed_add_up(ingest: Ingest) -> None:
    text = (
        MODEL
        + '\nnv_inference_request_failure{{model="detector",version="3",reason="QUOTA"}} {quota}'
        + ('\nnv_inference_request_failure{{model="detector",version="3",reason="SHAPE"}} {shape}')
    )
    for n, (count, quota, shape) in enumerate([(0, 0, 0), (93, 3, 4)]):
        scrape(ingest, text.format(labels="", count=count, quota=quota, shape=shape), T0 + 10 * n, job="triton")
    (row,) = ingest.services.read("triton", 0, "detector:3")
    assert (row.values["failures_unlisted_total"], row.values["failures"], row.values["success_ratio"]) == (7, 7, 0.93)


def test_names_that_are_too_long_are_refused_and_counted(ingest: Ingest) -> None:
    for engine in ("0", "1"):
        scrape(ingest, f'vllm:num_requests_running{{engine="{engine}",model_name="{"m" * 121}"}} 1', job="vllm")
    assert ingest.quality.totals[Refusal.NAME_TOO_LONG] == 2
    assert len(ingest.services) == 0
    scrape(ingest, f'vllm:num_requests_running{{engine="0",model_name="{"m" * 120}"}} 1', job="vllm")
    assert len(ingest.services) == 1


def test_pods_that_come_and_go_are_forgotten(ingest: Ingest) -> None:
    for n in range(20):
        scrape(ingest, MODEL.format(labels="", count=n), T0 + 600 * n, job="triton", pod=f"triton-{n}")
    assert len(rows(ingest, "triton", "detector:3")) == 21
    ingest.sweep(older_than=T0 + 600 * 18)
    assert set(rows(ingest, "triton", "detector:3")) == {"detector:3", "detector:3 [triton-18]", "detector:3 [triton-19]"}
    for n in range(2):
        scrape(ingest, MODEL.format(labels="", count=100 * n), T0 + 12_000 + 10 * n, job="triton", pod="triton-3")
    assert rows(ingest, "triton", "detector:3")["detector:3 [triton-3]"].values["requests_per_second"] == 10
    assert len(ingest.services) == 3


def test_fixture_of_triton(ingest: Ingest) -> None:
    scrape(ingest, (FIXTURES / "triton-metrics.prom").read_text(), job="triton")
    found = values(ingest, "triton", "detector:3")
    assert found["requests_ok_total"] == 158233
    assert sum(value or 0 for name, value in found.items() if name.startswith("failures_")) == 233
    assert (found["request_seconds_total"] or 0) / 158233 == pytest.approx(0.03199658, abs=1e-8)
    assert found["latency_p99_seconds"] == pytest.approx(0.088339)
    assert values(ingest, "triton", "") == {"cpu_utilization_ratio": 0.214}


def test_fixture_of_vllm(ingest: Ingest) -> None:
    scrape(ingest, (FIXTURES / "vllm-v1-metrics.prom").read_text(), job="vllm")
    found = values(ingest, "vllm", "acme/tern-70b-instruct")
    assert sum(found[f"requests_{reason}_total"] or 0 for reason in ("stop", "length", "abort")) == 8270
    assert found["kv_cache_usage_ratio"] == 0.7138
    assert (found["time_to_first_token_seconds_total"] or 0) / (found["time_to_first_token_count_total"] or 1) == pytest.approx(0.239943, abs=1e-6)
    assert not any("created" in name for name in found)


def test_fixture_of_node_exporter(ingest: Ingest) -> None:
    scrape(ingest, (FIXTURES / "node-exporter-excerpt.prom").read_text(), job="node")
    assert values(ingest, "node", "")["load1"] == 37.12
    assert values(ingest, "node", "/") == {"filesystem_available_bytes": 6.12202496e11}
    assert values(ingest, "node", "bond0")["network_receive_bytes_total"] == 8.812330112e12


def test_node_exporter(ingest: Ingest) -> None:
    text = 'node_load1 37.12\nnode_memory_MemTotal_bytes 2.1e12\nnode_network_receive_bytes_total{device="bond0"} %s\n'
    for n, total in enumerate((1000, 6000)):
        scrape(ingest, text % total, T0 + 10 * n, job="node", instance="10.0.0.1:9100")
    assert values(ingest, "node", "") == {"load1": 37.12, "memory_total_bytes": 2.1e12}
    assert values(ingest, "node", "bond0")["network_receive_bytes_per_second"] == 500


def test_a_service_that_ends_and_numbers_that_are_none_leave_no_value(ingest: Ingest) -> None:
    labels = {"__name__": "nv_gpu_utilization", "gpu_uuid": GPUS[0], "job": "triton", "site": "S1", "node": "gpu-a-01"}
    for n, (value, right) in enumerate([(0.5, 0.5), (math.inf, None), (0.25, 0.25), (math.nan, None), (87.0, None), (1.0, 1.0), (STALE, None)]):
        push(ingest, [Sample(labels, value, T0 + 10 * n)])
        assert values(ingest, "triton", GPUS[0])["gpu_utilization_ratio"] == right


def test_a_scrape_is_read_when_it_settled(ingest: Ingest) -> None:
    def changed(now: float) -> Iterable[tuple[ServiceRow, tuple[str, int]]]:
        return ingest.services.take_changed(now=now)

    push(ingest, from_exposition("node_load1 1", T0, job="node", site="S1", node="gpu-a-01"), now=T0)
    assert changed(T0 + 0.5) == []
    ((row, key),) = changed(T0 + 0.6)
    assert (row.job, row.values) == ("node", {"load1": 1.0})
    assert changed(T0 + 20) == []
    ingest.services.keep_changed([key])
    assert len(list(changed(T0 + 20))) == 1
