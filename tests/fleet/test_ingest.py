"""What the live state holds after samples came: times, ends of series, foreign and unknown things, workloads, services."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.telemetry.fields import GPU_FIELD_INDEX, STALE_NAN_BITS, Refusal, Sample
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.prompb import write_request
from fleet.telemetry.protobuf_wire import DecodeError
from fleet.telemetry.resolver import SenderScope
from tests.fleet.samples import T0, WHOLE_FLEET, fleet_of, gpu_value, push, slice_value

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
GPU = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"


def power(value: float, at: float = T0, uuid: str = GPU, **labels: str) -> Sample:
    return Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": uuid, "Hostname": "gpu-a-01", **labels}, value, at)


def engine(value: float, at: float = T0, instance: str = "9", profile: str = "1g.10gb", **labels: str) -> Sample:
    names = {"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "UUID": GPU, "Hostname": "gpu-a-01", "GPU_I_ID": instance, "GPU_I_PROFILE": profile}
    return Sample({**names, **labels}, value, at)


@pytest.fixture
def ingest() -> Ingest:
    return fleet_of([GPU, OTHER])


class TestTimes:
    def test_an_older_sample_changes_nothing(self, ingest: Ingest) -> None:
        push(ingest, [power(300, T0)])
        push(ingest, [power(200, T0 - 5)], now=T0 + 1)
        assert gpu_value(ingest, GPU, "power_watts") == 300
        assert ingest.quality.totals[Refusal.TOO_OLD] == 0

    def test_a_backlog_is_counted_and_changes_nothing(self, ingest: Ingest) -> None:
        push(ingest, [power(300, T0)])
        push(ingest, [power(200, T0 - 3600 + n) for n in range(5)], now=T0 + 1)
        assert gpu_value(ingest, GPU, "power_watts") == 300
        assert ingest.state.gpu_sampled_at[0] == T0
        assert ingest.quality.totals[Refusal.TOO_OLD] == 5

    def test_a_sample_from_the_future_is_refused(self, ingest: Ingest) -> None:
        push(ingest, [power(300, T0 + 61)], now=T0)
        assert gpu_value(ingest, GPU, "power_watts") is None
        assert ingest.quality.totals[Refusal.FUTURE] == 1
        push(ingest, [power(310, T0 + 60)], now=T0)
        assert gpu_value(ingest, GPU, "power_watts") == 310

    @pytest.mark.parametrize("at", [-9.2e15, -1e11, 0.0])
    def test_a_time_that_no_clock_showed_is_refused(self, ingest: Ingest, at: float) -> None:
        push(ingest, [power(300, at)], now=T0)
        assert gpu_value(ingest, GPU, "power_watts") is None
        assert math.isnan(ingest.state.gpu_sampled_at[0])
        assert ingest.quality.totals[Refusal.TOO_OLD] == 1

    def test_several_samples_of_one_series_in_one_body_any_order(self, ingest: Ingest) -> None:
        labels = power(0).labels
        ingest.take_body(write_request([(labels, [(1.0, T0 + 2), (2.0, T0 + 9), (3.0, T0)])]), WHOLE_FLEET, now=T0 + 10)
        assert gpu_value(ingest, GPU, "power_watts") == 2.0

    def test_the_replica_of_a_pair_takes_turns_without_flicker(self, ingest: Ingest) -> None:
        for n in range(4):
            push(ingest, [power(300 + n, T0 + 10 * n, replica="a")])
            push(ingest, [power(400 + n, T0 + 10 * n + 4, replica="b")])
            assert gpu_value(ingest, GPU, "power_watts") == 400 + n
        push(ingest, [power(STALE, T0 + 40, replica="a")])
        assert gpu_value(ingest, GPU, "power_watts") == 403

    def test_a_counter_that_restarts_falls(self, ingest: Ingest) -> None:
        name = {"__name__": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "UUID": GPU}
        push(ingest, [Sample(name, 5_000_000.0, T0), Sample(name, 1_000.0, T0 + 10)])
        assert gpu_value(ingest, GPU, "energy_joules") == 1.0


class TestEndsOfSeries:
    def test_a_stale_marker_is_absence(self, ingest: Ingest) -> None:
        push(ingest, [power(300, T0), power(STALE, T0 + 10)])
        assert gpu_value(ingest, GPU, "power_watts") is None
        assert ingest.state.gpu_sampled_at[0] == T0

    def test_an_ordinary_nan_is_no_value(self, ingest: Ingest) -> None:
        push(ingest, [power(300, T0), power(math.nan, T0 + 10)])
        assert gpu_value(ingest, GPU, "power_watts") is None
        assert ingest.quality.totals[Refusal.NOT_A_NUMBER] == 1

    @pytest.mark.parametrize("stale_first", [True, False])
    def test_a_new_series_of_the_same_cell_wins_over_the_old_ones_end(self, ingest: Ingest, stale_first: bool) -> None:
        push(ingest, [power(300, T0, pod="a")])
        both = [power(STALE, T0 + 10, pod="a"), power(310, T0 + 10, pod="b")]
        push(ingest, both if stale_first else both[::-1])
        assert gpu_value(ingest, GPU, "power_watts") == 310

    def test_a_slice_that_ends_leaves_the_weighted_utilisation(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.7, instance="1", profile="3g.40gb"), engine(0.2, instance="2", profile="4g.40gb")])
        ingest.state.derive()
        assert gpu_value(ingest, GPU, "utilization_ratio") == pytest.approx((3 * 0.7 + 4 * 0.2) / 7)
        push(ingest, [engine(STALE, T0 + 10, instance="1", profile="3g.40gb"), engine(0.2, T0 + 10, instance="2", profile="4g.40gb")])
        ingest.state.derive()
        assert gpu_value(ingest, GPU, "utilization_ratio") == pytest.approx(4 * 0.2 / 7)
        push(ingest, [engine(STALE, T0 + 20, instance="2", profile="4g.40gb")])
        ingest.state.derive()
        assert gpu_value(ingest, GPU, "utilization_ratio") is None

    def test_a_live_slice_without_a_value_makes_the_gpu_unknown(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.7, instance="1", profile="3g.40gb"), engine(140737488355328.0, instance="2", profile="4g.40gb")])
        ingest.state.derive()
        assert gpu_value(ingest, GPU, "utilization_ratio") is None

    def test_another_profile_under_the_same_instance_is_another_slice(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.7, profile="1g.10gb"), Sample({**engine(0).labels, "__name__": "DCGM_FI_DEV_FB_USED"}, 10.0, T0)])
        push(ingest, [engine(0.1, T0 + 10, profile="3g.40gb")])
        assert slice_value(ingest, GPU, 9, "engine_active_ratio") == 0.1
        assert slice_value(ingest, GPU, 9, "memory_used_bytes") is None
        assert ingest.state.slice_compute[0] == 3


class TestWhoMayWriteWhat:
    def two_regions(self) -> tuple[Ingest, SenderScope]:
        ingest = fleet_of([GPU])
        ingest.state.add_sites([(11, "S2", 1, 200)])
        ingest.state.add_nodes([(21, "gpu-b-01", 11)])
        ingest.state.add_gpus([(40, OTHER, 21)])
        return ingest, SenderScope(7, "north", frozenset({100}))

    def test_a_foreign_site_is_refused_and_the_rest_taken(self) -> None:
        ingest, north = self.two_regions()
        push(ingest, [power(300), power(400, uuid=OTHER)], north)
        assert gpu_value(ingest, GPU, "power_watts") == 300
        assert gpu_value(ingest, OTHER, "power_watts") is None
        assert ingest.quality.totals[Refusal.FOREIGN_SITE] == 1
        push(ingest, [power(301, T0 + 10), power(401, T0 + 10, uuid=OTHER)], north)
        assert ingest.quality.totals[Refusal.FOREIGN_SITE] == 2
        assert gpu_value(ingest, OTHER, "power_watts") is None

    def test_a_foreign_site_label_on_an_own_gpu_is_refused(self) -> None:
        ingest, north = self.two_regions()
        push(ingest, [power(300, site="S2")], north)
        assert gpu_value(ingest, GPU, "power_watts") is None
        assert ingest.quality.totals[Refusal.FOREIGN_SITE] == 1

    def test_an_unknown_gpu_is_told_to_the_inventory_once_and_taken_when_it_is_there(self) -> None:
        ingest, north = self.two_regions()
        new = "GPU-new"
        for n in range(3):
            push(ingest, [power(300 + n, T0 + n, uuid=new, site="S1", gpu="3")], north)
        (seen,) = ingest.sightings.take(now=T0 + 10, limit=100)
        assert (seen.gpu_uuid, seen.site_code, seen.node_host, seen.index) == (new, "S1", "gpu-a-01", 3)
        assert ingest.quality.totals[Refusal.UNKNOWN_GPU] == 3
        ingest.state.add_gpus([(50, new, 20)])
        assert ingest.table.forget_waiting([f"gpu:{new}"]) == 1
        push(ingest, [power(310, T0 + 11, uuid=new, site="S1", gpu="3")], north)
        assert gpu_value(ingest, new, "power_watts") == 310

    def test_an_unknown_gpu_at_a_foreign_or_nameless_place_is_not_told(self) -> None:
        ingest, north = self.two_regions()
        push(ingest, [power(300, uuid="GPU-x", site="S2"), power(300, uuid="GPU-y", Hostname="gpu-b-01"), power(1, uuid="GPU-z", site="S9")], north)
        assert ingest.sightings.take(now=T0 + 10, limit=100) == []
        totals = ingest.quality.totals
        assert (totals[Refusal.FOREIGN_SITE], totals[Refusal.UNKNOWN_SITE]) == (1, 2)

    def test_refusals_are_counted_by_sender_site_and_reason(self) -> None:
        ingest, north = self.two_regions()
        push(ingest, [power(99999, n) for n in (T0, T0 + 1)], north)
        tallies = ingest.quality.take()
        ((key, tally),) = tallies.items()
        assert key == (7, 10, Refusal.OUT_OF_RANGE)
        assert (tally.count, tally.first_at, tally.last_at) == (2, T0 + 1, T0 + 2)
        assert GPU in tally.example
        ingest.quality.put_back(tallies)
        push(ingest, [power(99999, T0 + 5)], north)
        assert [one.count for one in ingest.quality.take().values()] == [3]

    def test_rights_that_change_are_read_anew(self) -> None:
        ingest, north = self.two_regions()
        push(ingest, [power(400, uuid=OTHER)], north)
        ingest.table.forget_sender(north.id)
        push(ingest, [power(401, T0 + 10, uuid=OTHER)], SenderScope(7, "north", frozenset({100, 200})))
        assert gpu_value(ingest, OTHER, "power_watts") == 401


class TestWorkloads:
    def pods(self, ingest: Ingest, now: float) -> list[tuple[int | None, str]]:
        return sorted(((seen.gpu_instance_id, seen.pod) for seen in ingest.sightings.take(now=now, limit=100)), key=str)

    def test_another_pod_is_a_new_series_in_the_same_cell(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.5, exported_pod="a", exported_namespace="t")])
        assert self.pods(ingest, T0 + 3) == [(9, "a")]
        push(ingest, [engine(STALE, T0 + 10, exported_pod="a", exported_namespace="t"), engine(0.6, T0 + 10, exported_pod="b", exported_namespace="t")])
        assert self.pods(ingest, T0 + 14) == [(9, "b")]
        assert slice_value(ingest, GPU, 9, "engine_active_ratio") == 0.6
        push(ingest, [engine(0.7, T0 + 20, exported_pod="a", exported_namespace="t")])
        assert self.pods(ingest, T0 + 24) == [(9, "a")]
        assert self.pods(ingest, T0 + 25) == []

    def test_a_pod_that_goes_ends_its_workload(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.5, exported_pod="a")])
        self.pods(ingest, T0 + 3)
        push(ingest, [engine(STALE, T0 + 10, exported_pod="a"), engine(0.0, T0 + 10)])
        assert self.pods(ingest, T0 + 14) == [(9, "")]

    def test_a_slice_that_goes_while_its_gpu_reports_ends_its_workload(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.5, exported_pod="a"), engine(0.5, instance="8", exported_pod="b")])
        self.pods(ingest, T0 + 3)
        for n in (10, 20):
            push(ingest, [engine(0.5, T0 + n, instance="8", exported_pod="b")])
        assert self.pods(ingest, T0 + 24) == [(9, "")]

    def test_silence_ends_no_workload(self, ingest: Ingest) -> None:
        push(ingest, [engine(0.5, exported_pod="a"), engine(STALE, T0 + 10, exported_pod="a")])
        self.pods(ingest, T0 + 3)
        assert self.pods(ingest, T0 + 600) == []

    def test_what_the_inventory_could_not_take_comes_again(self, ingest: Ingest) -> None:
        push(ingest, [power(300, exported_pod="a")])
        batch = ingest.sightings.take(now=T0 + 3, limit=100)
        ingest.sightings.put_back(batch)
        assert ingest.sightings.take(now=T0 + 4, limit=100) == batch


class TestNames:
    @pytest.mark.parametrize(
        ("name", "value", "field", "right"),
        [
            ("DCGM_FI_DEV_BOARD_POWER_WATTS", 300.0, "power_watts", 300.0),
            ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 61.0, "gpu_temperature_celsius", 61.0),
            ("DCGM_FI_DEV_SM_CLOCK", 1980.0, "sm_clock_hertz", 1.98e9),
            ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9, "sm_clock_hertz", 1.98e9),
            ("DCGM_FI_DEV_GPU_UTIL", 1.0, "utilization_ratio", 0.01),
            ("DCGM_FI_DEV_XID_ERROR", 79.0, "xid", 79.0),
            ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 0.4, "engine_active_ratio", 0.4),
            ("DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", 7.0, "nvlink_bandwidth_total", 7.0),
            ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 72.0, "clock_event_reasons", 72.0),
        ],
    )
    def test_old_and_new_names_are_one_field(self, ingest: Ingest, name: str, value: float, field: str, right: float) -> None:
        push(ingest, [Sample({"__name__": name, "UUID": GPU}, value, T0)])
        assert gpu_value(ingest, GPU, field) == pytest.approx(right)

    def test_a_ratio_that_shows_to_be_a_percent_is_one_from_then_on(self, ingest: Ingest) -> None:
        name = {"__name__": "DCGM_FI_DEV_GPU_UTIL_RATIO", "UUID": GPU}
        values = []
        for n, value in enumerate([0.63, 63.0, 1.0, 101.0]):
            push(ingest, [Sample(name, value, T0 + 10 * n)])
            values.append(gpu_value(ingest, GPU, "utilization_ratio"))
        assert values == [0.63, 0.63, 0.01, None]

    @pytest.mark.parametrize(
        ("metric", "value", "field", "right", "refused"),
        [
            ("DCGM_FI_DEV_GPU_UTIL", 63.0, "utilization_ratio", 0.63, None),
            ("DCGM_FI_DEV_GPU_UTIL", 100.0, "utilization_ratio", 1.0, None),
            ("DCGM_FI_DEV_GPU_UTIL", 100.5, "utilization_ratio", None, Refusal.OUT_OF_RANGE),
            ("DCGM_FI_DEV_GPU_UTIL", 4294967295.0, "utilization_ratio", None, Refusal.OUT_OF_RANGE),
            ("DCGM_FI_DEV_GPU_UTIL", math.nan, "utilization_ratio", None, Refusal.NOT_A_NUMBER),
            ("DCGM_FI_DEV_GPU_UTIL", math.inf, "utilization_ratio", None, Refusal.BLANK),
            ("DCGM_FI_DEV_FB_USED", 0.0, "memory_used_bytes", 0.0, None),
            ("DCGM_FI_DEV_FB_USED", 40960.0, "memory_used_bytes", 42949672960.0, None),
            ("DCGM_FI_DEV_MEMORY_TEMP", 2147483632.0, "memory_temperature_celsius", None, Refusal.BLANK),
            ("DCGM_FI_DEV_GPU_TEMP", -5.0, "gpu_temperature_celsius", -5.0, None),
            ("DCGM_FI_DEV_POWER_USAGE", -1.0, "power_watts", None, Refusal.OUT_OF_RANGE),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 126272106318.0, "energy_joules", 126272106.318, None),
            ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 126272106.0, "energy_joules", 126272106.0, None),
            ("DCGM_FI_PROF_PCIE_RX_BYTES", 2147483640.0, "pcie_rx_bytes_per_second", 2147483640.0, None),
        ],
    )
    def test_values_in_our_units(self, ingest: Ingest, metric: str, value: float, field: str, right: float | None, refused: Refusal | None) -> None:
        push(ingest, [Sample({"__name__": metric, "UUID": GPU}, value, T0)])
        got = gpu_value(ingest, GPU, field)
        assert got == (None if right is None else pytest.approx(right))
        assert {reason for reason, count in ingest.quality.totals.items() if count} == ({refused} if refused else set())

    def test_gpu_util_on_a_slices_line_means_nothing(self, ingest: Ingest) -> None:
        push(ingest, [Sample({**engine(0.0).labels, "__name__": "DCGM_FI_DEV_GPU_UTIL"}, 0.0, T0), engine(0.9)])
        assert gpu_value(ingest, GPU, "utilization_ratio") is None
        assert slice_value(ingest, GPU, 9, "engine_active_ratio") == 0.9
        assert sum(ingest.quality.totals.values()) == 0

    def test_nvlink_errors_are_the_sum_of_their_counters(self, ingest: Ingest) -> None:
        kinds = ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
        push(ingest, [Sample({"__name__": f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL", "UUID": GPU}, n + 1.0, T0) for n, kind in enumerate(kinds)])
        ingest.state.derive()
        assert gpu_value(ingest, GPU, "nvlink_errors_total") == 10

    def test_metrics_that_are_not_ours_are_ignored(self, ingest: Ingest) -> None:
        push(ingest, [Sample({"__name__": "go_goroutines"}, 5.0, T0), Sample({"x": "y"}, 5.0, T0), power(5)])
        assert ingest.quality.totals[Refusal.UNKNOWN_METRIC] == 2
        assert gpu_value(ingest, GPU, "power_watts") == 5


class TestUp:
    def test_up_of_the_dcgm_job(self, ingest: Ingest) -> None:
        labels = {"__name__": "up", "job": "dcgm", "site": "S1", "node": "gpu-a-01.example.net"}
        push(ingest, [Sample(labels, 1.0, T0), Sample(labels, 0.0, T0 + 10)])
        assert (ingest.state.node_up[0], ingest.state.node_up_time[0]) == (0.0, T0 + 10)
        push(ingest, [Sample(labels, 1.0, T0 + 5)], now=T0 + 11)
        assert ingest.state.node_up[0] == 0.0
        ingest.state.derive()
        assert np.isnan(ingest.state.site_last_contact[0])


def test_nodes_that_are_named_by_address_are_told_apart() -> None:
    """Case C16: the host name is whatever a site calls its nodes."""
    ingest = fleet_of([GPU], host="10.1.2.3")
    ingest.state.add_nodes([(21, "10.9.9.9", 10), (22, "2001:db8::7", 10)])
    for n, names in enumerate(({"node": "10.1.2.3"}, {"instance": "10.9.9.9:9400"}, {"instance": "[2001:DB8::7]:9400"})):
        push(ingest, [Sample({"__name__": "up", "job": "dcgm", "site": "S1", **names}, 1.0, T0 + n)])
        assert ingest.state.node_up_time.tolist()[n] == T0 + n
    push(ingest, [Sample({"__name__": "up", "job": "dcgm", "node": "10.9.9.9"}, 0.0, T0 + 10)])
    assert ingest.state.node_up.tolist() == [1.0, 0.0, 1.0]


def test_a_restart_of_the_table_forgets_series_that_no_longer_come(ingest: Ingest) -> None:
    push(ingest, [power(300, exported_pod=f"p{n}") for n in range(50)], now=T0)
    push(ingest, [power(300, T0 + 3600, exported_pod="p0")], now=T0 + 3600)
    assert ingest.table.sweep(older_than=T0 + 1800) == 49
    assert len(ingest.table) == 1
    push(ingest, [power(310, T0 + 3700, exported_pod="p7")])
    assert gpu_value(ingest, GPU, "power_watts") == 310


NAMES = st.sampled_from(
    [
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_FI_DEV_GPU_UTIL",
        "up",
        "node_load1",
        "nv_inference_request_success",
        "vllm:num_requests_running",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "x",
    ]
)
TEXTS = st.sampled_from(["", GPU, "S1", "gpu-a-01", "dcgm", "node", "7", "1g.10gb", "-1", "99999999999", "ü", "31"]) | st.text(max_size=5)
LABELS = st.dictionaries(
    st.sampled_from(["UUID", "site", "node", "Hostname", "job", "GPU_I_ID", "GPU_I_PROFILE", "pod", "exported_pod", "xid", "gpu", "instance", "quantile"]),
    TEXTS,
)
NUMBERS = st.floats() | st.sampled_from([STALE, 0.0, 1.0, 2147483632.0, 9.223372036854775e18, -1.0, 1e308])
SAMPLE_TIMES = st.integers(-(2**50), 2**50).map(lambda millis: millis / 1000) | st.sampled_from([T0, T0 + 1, T0 - 9999, 0.0])


@given(st.lists(st.tuples(NAMES, LABELS, st.lists(st.tuples(NUMBERS, SAMPLE_TIMES), max_size=2)), max_size=8), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_a_sender_sends_is_taken_or_counted(series: list[tuple[str, dict[str, str], list[tuple[float, float]]]], honor: bool) -> None:
    ingest = fleet_of([GPU])
    sender = SenderScope(1, "any", frozenset({100}), honor_labels=honor)
    body = write_request([({"__name__": name, **labels}, samples) for name, labels, samples in series])
    total = sum(len(samples) for _, _, samples in series)
    for _ in range(2):
        taken = ingest.take_body(body, sender, now=T0 + 2)
        assert taken.samples + taken.refused == total
    ingest.state.derive()
    ingest.sightings.take(now=T0 + 60, limit=100)
    ingest.services.take_changed(now=T0 + 60)
    ingest.state.take_xid_changes()
    index = GPU_FIELD_INDEX["power_watts"]
    assert np.isnan(ingest.state.gpu_values[index, 0]) or 0 <= ingest.state.gpu_values[index, 0] <= 3000


def test_a_body_that_cannot_be_decoded_changes_nothing(ingest: Ingest) -> None:
    good = write_request([(power(300).labels, [(300.0, T0)])])
    with pytest.raises(DecodeError):
        ingest.take_body(good + b"\x0a\x7f", WHOLE_FLEET, now=T0)
    assert gpu_value(ingest, GPU, "power_watts") is None


def test_a_gpu_that_sends_only_blanks_is_not_sampled() -> None:
    ingest = fleet_of(["GPU-1"])
    labels = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "UUID": "GPU-1", "site": "S1", "node": "gpu-a-01"}
    ingest.take_samples([Sample(labels, 50.0, T0)], WHOLE_FLEET, now=T0)
    ingest.take_samples([Sample(labels, 9223372036854775792.0, T0 + 30)], WHOLE_FLEET, now=T0 + 30)
    assert ingest.state.gpu_sampled_at[0] == T0
    on_slice = labels | {"__name__": "DCGM_FI_DEV_FB_USED", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}
    ingest.take_samples([Sample(on_slice, 9223372036854775792.0, T0 + 40)], WHOLE_FLEET, now=T0 + 40)
    assert ingest.state.gpu_sampled_at[0] == T0
