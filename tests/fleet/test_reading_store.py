"""Last values in PostgreSQL: changed rows, new rows, everything after a crash, back at a restart; silent sites, services, data quality."""

import math
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.db import connection

from fleet.models import DataQuality, Gpu, GpuReading, LastKnownReading, MigSlice, Region, ServiceReading, SliceReading
from fleet.telemetry.copy_rows import copy_rows
from fleet.telemetry.fields import GPU_FIELD_INDEX, Refusal, Sample
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.kept import add_quality, forget_ended_services, keep_last_known, last_known_of, set_missing, store_services
from fleet.telemetry.live_inventory import UnknownArea, apply_inventory, find_areas, read_inventory, read_version
from fleet.telemetry.live_state import LiveState
from fleet.telemetry.quality import Tally
from fleet.telemetry.reading_store import ReadingStore
from fleet.telemetry.resolver import SenderScope
from fleet.telemetry.senders import create_sender
from fleet.telemetry.service_state import ServiceState
from tests.builders import make_area, make_gpu, make_node, make_phy_gpu, make_region, make_site
from tests.fleet.samples import T0, WHOLE_FLEET, from_exposition, gpu_value, push, slice_value

pytestmark = pytest.mark.django_db


def live() -> tuple[Ingest, ReadingStore]:
    state = LiveState()
    ingest = Ingest(state, ServiceState(), silent_after_seconds=15.0)
    apply_inventory(state, read_inventory(None), ingest)
    return ingest, ReadingStore(state, threading.Lock())


def power(gpu: Gpu, value: float, at: float = T0) -> Sample:
    return Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": gpu.uuid}, value, at)


def engine(gpu: Gpu, value: float, at: float = T0, instance: int = 7) -> Sample:
    labels = {"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "UUID": gpu.uuid, "GPU_I_ID": str(instance), "GPU_I_PROFILE": "1g.10gb"}
    return Sample(labels, value, at)


class TestFlush:
    def test_changed_rows_are_written_and_nothing_else(self) -> None:
        first, second = make_gpu(), make_phy_gpu()
        ingest, store = live()
        push(ingest, [power(first, 300), power(second, 400), engine(second, 0.5)])
        flushed = store.flush()
        assert (flushed.gpus, flushed.slices, flushed.rewrote) == (2, 1, False)
        assert GpuReading.objects.get(gpu=first).power_watts == 300
        reading = SliceReading.objects.get(gpu=second)
        assert (reading.gpu_instance_id, reading.engine_active_ratio, reading.memory_used_bytes) == (7, 0.5, None)
        push(ingest, [power(first, 301, T0 + 10)])
        assert (store.flush().gpus, GpuReading.objects.get(gpu=first).power_watts) == (1, 301)
        assert GpuReading.objects.get(gpu=second).power_watts == 400
        assert store.flush().gpus == 0

    def test_suspect_profiling_of_slices_is_not_stored(self) -> None:
        gpu = make_phy_gpu()
        ingest, store = live()
        push(ingest, [power(gpu, 655), engine(gpu, 0.0), Sample({**engine(gpu, 0).labels, "__name__": "DCGM_FI_DEV_FB_USED"}, 8000.0, T0)])
        ingest.state.derive()
        store.flush()
        reading = SliceReading.objects.get(gpu=gpu)
        assert (reading.engine_active_ratio, reading.memory_used_bytes) == (None, 8000.0 * 2**20)
        assert GpuReading.objects.get(gpu=gpu).utilization_ratio is None

    def test_no_value_is_null_and_the_sample_time_stands(self) -> None:
        gpu = make_gpu()
        ingest, store = live()
        push(ingest, [power(gpu, 300.25, T0 + 0.125)])
        store.flush()
        reading = GpuReading.objects.get(gpu=gpu)
        assert reading.sampled_at == datetime.fromtimestamp(T0 + 0.125, tz=UTC)
        assert (reading.power_watts, reading.utilization_ratio, reading.xid) == (300.25, None, None)
        push(ingest, [power(gpu, 99999, T0 + 10)])
        store.flush()
        reading.refresh_from_db()
        assert (reading.power_watts, reading.refused_samples) == (None, 1)

    def test_suspect_profiling_values_are_not_stored(self) -> None:
        gpu = make_gpu()
        ingest, store = live()
        values = {"DCGM_FI_DEV_GPU_UTIL": 99.0, "DCGM_FI_DEV_POWER_USAGE": 655.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.0}
        push(ingest, [Sample({"__name__": name, "UUID": gpu.uuid}, value, T0) for name, value in values.items()])
        ingest.state.derive()
        store.flush()
        reading = GpuReading.objects.get(gpu=gpu)
        assert (reading.engine_active_ratio, reading.utilization_ratio) == (None, 0.99)

    def test_an_emptied_table_is_written_whole(self) -> None:
        gpus = [make_phy_gpu() for _ in range(3)]
        ingest, store = live()
        push(ingest, [sample for gpu in gpus for sample in (power(gpu, 300), engine(gpu, 0.5))])
        store.flush()
        GpuReading.objects.all().delete()
        SliceReading.objects.all().delete()
        push(ingest, [power(gpus[0], 301, T0 + 10)])
        assert store.flush().rewrote
        assert list(GpuReading.objects.order_by("power_watts").values_list("power_watts", flat=True)) == [300, 300, 301]
        assert SliceReading.objects.count() == 3
        assert not store.flush().rewrote

    def test_an_emptied_table_is_seen_although_nothing_changed(self) -> None:
        gpu = make_gpu()
        ingest, store = live()
        push(ingest, [power(gpu, 300)])
        store.flush()
        GpuReading.objects.all().delete()
        assert store.flush().rewrote
        assert GpuReading.objects.count() == 1

    def test_a_failed_flush_leaves_the_rows_changed(self) -> None:
        gpu = make_gpu()
        ingest, store = live()
        push(ingest, [power(gpu, 300)])
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE staging_fleet_gpu_reading (wrong int)")
        with pytest.raises(Exception, match="gpu_id"):
            store.flush()
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE staging_fleet_gpu_reading")
        assert store.flush().gpus == 1


class TestSeed:
    def test_a_restarted_process_knows_what_it_knew(self) -> None:
        whole, sliced = make_gpu(), make_phy_gpu()
        ingest, store = live()
        push(ingest, [power(whole, 300), power(sliced, 400), engine(sliced, 0.5, instance=9)])
        ingest.state.derive()
        store.flush()
        again, its_store = live()
        assert its_store.seed() == 2
        assert gpu_value(again, whole.uuid, "power_watts") == 300
        assert slice_value(again, sliced.uuid, 9, "engine_active_ratio") == 0.5
        assert again.state.gpu_sampled_at.tolist() == [T0, T0]
        assert gpu_value(again, sliced.uuid, "utilization_ratio") == pytest.approx(0.5 / 7)
        assert its_store.flush().gpus == 0
        push(again, [power(whole, 299, T0 - 1)], now=T0 + 20)
        assert gpu_value(again, whole.uuid, "power_watts") == 300

    def test_a_known_xid_is_no_event_after_a_restart_and_a_new_one_is(self) -> None:
        gpu = make_phy_gpu()
        labels = {"__name__": "DCGM_FI_DEV_XID_ERRORS", "UUID": gpu.uuid, "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}
        ingest, store = live()
        push(ingest, [Sample(labels, 31.0, T0)])
        store.flush()
        again, its_store = live()
        its_store.seed()
        push(again, [Sample(labels, 31.0, T0 + 10)])
        assert again.state.take_xid_changes() == []
        push(again, [Sample(labels, 79.0, T0 + 20)])
        assert [(change.old, change.new) for change in again.state.take_xid_changes()] == [(31, 79)]

    def test_a_silent_site_leaves_its_last_values_in_a_logged_table(self) -> None:
        gpu = make_phy_gpu()
        ingest, store = live()
        push(ingest, [power(gpu, 300), engine(gpu, 0.5)])
        keep_last_known(last_known_of(ingest.state, [0]), now=T0 + 60)
        known = LastKnownReading.objects.get(gpu=gpu)
        assert (known.values, known.slices) == ({"power_watts": 300.0}, {"7": {"engine_active_ratio": 0.5}})
        assert known.sampled_at == datetime.fromtimestamp(T0, tz=UTC)
        push(ingest, [power(gpu, 310, T0 + 100)])
        keep_last_known(last_known_of(ingest.state, [0]), now=T0 + 160)
        known.refresh_from_db()
        assert known.values == {"power_watts": 310.0}
        again, its_store = live()
        its_store.seed()
        assert gpu_value(again, gpu.uuid, "power_watts") == 310
        assert its_store.flush().gpus == 1
        assert GpuReading.objects.get(gpu=gpu).power_watts == 310
        assert not store.flush().rewrote


class TestInventory:
    def test_areas_split_the_fleet(self) -> None:
        inside, outside = make_region(area=make_area("south")), make_region(area=make_area("north"))
        gpu = make_gpu(node=make_node(site=make_site(region=inside)))
        make_gpu(node=make_node(site=make_site(region=outside)))
        inventory = read_inventory(find_areas(["south"]))
        assert [uuid for _, uuid, _ in inventory.gpus] == [gpu.uuid]
        assert find_areas([]) is None
        with pytest.raises(UnknownArea, match="'west'"):
            find_areas(["south", "west"])

    def test_the_version_changes_with_the_inventory_alone(self) -> None:
        gpu = make_gpu()
        before = read_version()
        Gpu.objects.filter(pk=gpu.pk).update(last_seen_at=datetime.now(UTC))
        assert read_version() == before
        Gpu.objects.filter(pk=gpu.pk).update(index=3)
        assert read_version() != before

    def test_what_leaves_becomes_inactive_and_what_comes_is_taken(self) -> None:
        gpu, other = make_gpu(), make_gpu()
        ingest, _ = live()
        new = "GPU-later"
        push(ingest, [power(gpu, 300), Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": new, "site": gpu.node.site.code}, 5.0, T0)])
        Gpu.objects.filter(pk=other.pk).update(presence=Gpu.Presence.RETIRED, retired_at=datetime.now(UTC))
        made = make_gpu(new, node=gpu.node)
        apply_inventory(ingest.state, read_inventory(None), ingest)
        assert ingest.state.gpu_active.tolist() == [True, False, True]
        push(ingest, [power(other, 1, T0 + 10), Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": new, "site": gpu.node.site.code}, 6.0, T0 + 10)])
        assert gpu_value(ingest, other.uuid, "power_watts") is None
        assert gpu_value(ingest, made.uuid, "power_watts") == 6

    def test_a_gpu_that_moved_to_a_foreign_region_is_refused_from_then_on(self) -> None:
        gpu = make_gpu()
        north = SenderScope(1, "north", frozenset({gpu.node.site.region_id}))
        ingest, _ = live()
        push(ingest, [power(gpu, 300)], north)
        Gpu.objects.filter(pk=gpu.pk).update(node=make_node())
        apply_inventory(ingest.state, read_inventory(None), ingest)
        push(ingest, [power(gpu, 310, T0 + 10)], north)
        assert gpu_value(ingest, gpu.uuid, "power_watts") == 300
        assert ingest.quality.totals[Refusal.FOREIGN_SITE] == 1


def test_service_values() -> None:
    node = make_node("gpu-a-01")
    ingest, _ = live()
    for n in (0, 1):
        text = f'nv_inference_request_success{{model="detector",version="3"}} {600 * n}\nnv_inference_request_duration_us{{model="detector",version="3"}} {24000000 * n}'
        push(ingest, from_exposition(text, T0 + 60 * n, job="triton", site=node.site.code, node="gpu-a-01.example.net"))
    rows = [row for row, _ in ingest.services.take_changed(now=T0 + 100)]
    assert store_services(rows, ingest.state.node_id) == 1
    assert store_services(rows, ingest.state.node_id) == 1
    reading = ServiceReading.objects.get(node=node)
    assert (reading.job, reading.item, reading.values["requests_per_second"], reading.values["mean_latency_seconds"]) == ("triton", "detector:3", 10, 0.04)


def test_items_that_no_longer_come_go_while_their_job_goes_on() -> None:
    node, silent = make_node(), make_node()
    now = datetime.fromtimestamp(T0, tz=UTC)
    for where, item, hours in ((node, "", 0), (node, "[a]", 0), (node, "m", 3), (node, "m [a]", 3), (node, "m [b]", 5), (silent, "m", 9), (silent, "", 0)):
        ServiceReading.objects.create(node=where, job="triton", item=item, sampled_at=now - timedelta(hours=hours))
    ServiceReading.objects.create(node=node, job="vllm", item="m", sampled_at=now - timedelta(hours=9))
    assert forget_ended_services() == 1
    assert not ServiceReading.objects.filter(item="m [b]").exists()


def test_data_quality_adds_up_and_missing_series_are_a_state() -> None:
    site = make_site()
    sender, _ = create_sender(name="north", regions=[site.region])
    tallies: dict[tuple[int | None, int | None, Refusal], Tally] = {
        (sender.pk, site.pk, Refusal.BLANK): Tally(3, T0, T0 + 5, "x"),
        (sender.pk, None, Refusal.FOREIGN_SITE): Tally(1, T0, T0, "y\x00"),
    }
    add_quality(tallies)
    add_quality({(sender.pk, site.pk, Refusal.BLANK): Tally(4, T0 + 9, T0 + 9), (987654, None, Refusal.BLANK): Tally(1, T0, T0)})
    row = DataQuality.objects.get(site=site)
    assert (row.count, row.example, row.last_at.timestamp(), row.first_at.timestamp()) == (7, "x", T0 + 9, T0)
    assert DataQuality.objects.count() == 2
    missing = DataQuality.objects.filter(reason=Refusal.SERIES_MISSING)
    for count in (5, 2):
        set_missing({(sender.pk, site.pk): count}, now=T0)
        assert missing.get().count == count
    set_missing({}, now=T0 + 300)
    assert missing.count() == 1
    set_missing({}, now=T0 + 900)
    assert not missing.exists()
    set_missing({(sender.pk, site.pk): 0}, now=T0 + 900)
    assert not missing.exists()
    assert DataQuality.objects.count() == 2


def test_rows_for_copy() -> None:
    values = np.array([1.5, np.nan])
    data = copy_rows([("q", np.array([7, 8])), ("i", np.array([1, 2])), ("t", np.array([T0, T0 + 0.25])), ("d", values)])
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE copied (a bigint, b integer, c timestamptz, d double precision) ON COMMIT DROP")
        with cursor.copy("COPY copied FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(data)
        cursor.execute("SELECT a, b, extract(epoch FROM c)::float8, NULLIF(d, 'NaN') FROM copied ORDER BY a")
        assert cursor.fetchall() == [(7, 1, T0, 1.5), (8, 2, T0 + 0.25, None)]


def test_the_whole_fleets_profiles_come_from_the_inventory() -> None:
    gpu = make_phy_gpu()
    MigSlice.objects.filter(gpu=gpu).update(profile="1g.10gb")
    ingest, store = live()
    push(ingest, [engine(gpu, 0.25, instance=7 + n) for n in range(7)], WHOLE_FLEET)
    store.flush()
    again, its_store = live()
    its_store.seed()
    assert again.state.slice_compute.tolist() == [1] * 7
    assert again.state.slice_live.all()
    assert again.state.gpu_values[GPU_FIELD_INDEX["utilization_ratio"], 0] == pytest.approx(0.25)
    assert Region.objects.count() == 1


@pytest.mark.parametrize("silent", [False, True], ids=["restart", "after a crash of the database"])
def test_the_last_xid_outlives_a_gap_and_a_restart(silent: bool) -> None:
    gpu = make_gpu()
    ingest, store = live()
    name = {"__name__": "DCGM_FI_DEV_XID_ERRORS", "UUID": gpu.uuid}
    push(ingest, [Sample(name, 13.0, T0), power(gpu, 300), Sample(name, math.nan, T0 + 10)])
    store.flush()
    assert GpuReading.objects.get(gpu=gpu).xid == 13
    if silent:
        keep_last_known(last_known_of(ingest.state, [0]), now=T0 + 60)
        GpuReading.objects.all().delete()
    again, its_store = live()
    its_store.seed()
    push(again, [Sample(name, 13.0, T0 + 60)])
    assert again.state.take_xid_changes() == []
    push(again, [Sample(name, 79.0, T0 + 70)])
    assert [(change.old, change.new) for change in again.state.take_xid_changes()] == [(13, 79)]
