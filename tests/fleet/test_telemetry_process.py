"""The telemetry process whole: tick and flush against PostgreSQL and Redis, either of them away, and the real command killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from django.db import connection

from fleet import stream
from fleet.frames import STATE_NUMBERS
from fleet.models import DataQuality, Gpu, GpuReading, LastKnownReading, SiteHealth, Workload
from fleet.telemetry.fields import Sample
from fleet.telemetry.own_metrics import make_registry
from fleet.telemetry.process import TelemetryProcess
from fleet.telemetry.prompb import body_of
from fleet.telemetry.resolver import SenderScope
from fleet.telemetry.senders import create_sender
from script.servers import free_port
from tests.builders import make_gpu, make_node, make_region, make_site
from tests.fleet.samples import T0, gpu_value, push

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def power(gpu: Gpu, value: float, at: float, **labels: str) -> Sample:
    return Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": gpu.uuid, "site": gpu.node.site.code, "node": gpu.node.host_name, **labels}, value, at)


def running(clock: Clock) -> TelemetryProcess:
    process = TelemetryProcess(areas=[], clock=clock)
    process.load()
    return process


@pytest.mark.django_db
class TestCycle:
    def test_from_sample_to_rows_and_frames(self, clock: Clock) -> None:
        gpu = make_gpu()
        sender, _ = create_sender(name="north", regions=[gpu.node.site.region])
        process = running(clock)
        scope = SenderScope(sender.pk, "north", frozenset({gpu.node.site.region_id}))
        for n in range(4):
            clock.now = T0 + 10 * n
            up = Sample({"__name__": "up", "job": "dcgm", "site": gpu.node.site.code, "node": gpu.node.host_name}, 1.0, clock.now)
            push(process.ingest, [power(gpu, 300 + n, clock.now, exported_pod="llm-0", exported_namespace="t"), up], scope, now=clock.now)
            process.tick()
            clock.now += 3
            process.flush()
            process.tell_inventory()
        assert GpuReading.objects.get(gpu=gpu).power_watts == 303
        workload = Workload.objects.get()
        assert (workload.pod, workload.namespace, workload.ended_at) == ("llm-0", "t", None)
        frame = stream.read_area(stream.connect(), gpu.node.site.region.area_id)
        assert frame is not None
        assert frame.columns.site_id.tolist() == [gpu.node.site_id]
        assert frame.columns.state.tolist() == [STATE_NUMBERS["ok"]]
        assert SiteHealth.objects.get().state == "ok"
        assert make_registry(process)[0].get_sample_value("masthead_telemetry_flushes_total") == 4

    def test_an_unknown_gpu_comes_into_the_inventory_and_its_samples_are_taken(self, clock: Clock) -> None:
        node = make_node("gpu-n-01")
        process = running(clock)
        gpu = Gpu(uuid="GPU-new-one", node=node)
        for n in range(3):
            clock.now = T0 + 10 * n
            push(process.ingest, [power(gpu, 300 + n, clock.now, device="nvidia0", modelName="NVIDIA H100 80GB HBM3")], now=clock.now)
            process.flush()
            process.tell_inventory()
            clock.now += 6
            process.tick()
        process.flush()
        assert GpuReading.objects.get(gpu__uuid="GPU-new-one").power_watts == 302

    def test_a_silent_site_leaves_its_last_values(self, clock: Clock) -> None:
        gpu = make_gpu()
        process = running(clock)
        push(process.ingest, [power(gpu, 300, T0)], now=T0)
        for seconds in range(0, 50, 5):
            clock.now = T0 + seconds
            process.tick()
        process.flush()
        known = LastKnownReading.objects.get(gpu=gpu)
        assert (known.values, known.sampled_at) == ({"power_watts": 300.0}, datetime.fromtimestamp(T0, tz=UTC))

    def test_refusals_and_missing_series_are_rows(self, clock: Clock) -> None:
        gpu = make_gpu()
        sender, _ = create_sender(name="north", regions=[gpu.node.site.region])
        process = running(clock)
        scope = SenderScope(sender.pk, "north", frozenset({gpu.node.site.region_id}))
        push(process.ingest, [power(gpu, 300, T0), power(gpu, 99999, T0 + 1), power(gpu, 300, T0 + 2)], scope)
        clock.now = T0 + 120
        process.tick()
        process.flush()
        counts = dict(DataQuality.objects.filter(site=gpu.node.site).values_list("reason", "count"))
        assert counts == {"out_of_range": 1, "series_missing": 1}
        clock.now += 61
        push(process.ingest, [power(gpu, 301, clock.now)], scope, now=clock.now)
        process.flush()
        assert not DataQuality.objects.filter(reason="series_missing").exists()

    def test_values_of_a_watched_site_are_sent(self, clock: Clock) -> None:
        gpu = make_gpu()
        process = running(clock)
        client = stream.connect()
        client.zadd(stream.WATCH_KEY, {f"site:{gpu.node.site.code}": T0 + 3600})
        client.delete(stream.DETAIL_KEY)
        for n, watts in enumerate((300, 300, 310)):
            clock.now = T0 + n
            push(process.ingest, [power(gpu, watts, clock.now)], now=clock.now)
            process.tick()
        assert client.xlen(stream.DETAIL_KEY) == 2
        client.delete(stream.WATCH_KEY, stream.DETAIL_KEY)

    def test_rights_taken_from_a_sender_hold_within_seconds(self, clock: Clock) -> None:
        gpu = make_gpu()
        sender, token = create_sender(name="north", regions=[gpu.node.site.region])
        process = running(clock)
        found = process.senders.find(token, now=datetime.fromtimestamp(T0, tz=UTC))
        assert found is not None
        push(process.ingest, [power(gpu, 300, T0)], found[0])
        sender.regions.set([make_region()])
        clock.now += 6
        process.tick()
        found = process.senders.find(token, now=datetime.fromtimestamp(clock.now, tz=UTC))
        assert found is not None
        push(process.ingest, [power(gpu, 310, T0 + 5)], found[0])
        process.flush()
        assert GpuReading.objects.get(gpu=gpu).power_watts == 300


@pytest.mark.django_db(transaction=True)
class TestAway:
    def test_postgresql_away_loses_nothing(self, clock: Clock) -> None:
        gpu = make_gpu()
        process = running(clock)
        port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], "9"
        connection.close()
        try:
            push(process.ingest, [power(gpu, 300, T0, exported_pod="llm-0", exported_namespace="t")], now=T0)
            clock.now += 6
            process.tick()
            assert process.flush() is None
            process.tell_inventory()
            assert process.figures.failures["readings"] == 1
        finally:
            connection.settings_dict["PORT"] = port
            connection.close()
        clock.now += 6
        process.tick()
        assert process.flush() is not None
        process.tell_inventory()
        assert GpuReading.objects.get(gpu=gpu).power_watts == 300
        assert Workload.objects.get().pod == "llm-0"

    def test_redis_away_loses_nothing(self, clock: Clock, settings: object) -> None:
        gpu = make_gpu()
        settings.REDIS_URL = "redis://127.0.0.1:9/0"  # type: ignore[attr-defined]
        process = running(clock)
        push(process.ingest, [power(gpu, 300, T0)], now=T0)
        process.tick()
        process.flush()
        assert GpuReading.objects.get(gpu=gpu).power_watts == 300


class Telemetry:
    """The real command on the test database."""

    def __init__(self, *options: str, **environment: str) -> None:
        self.port = free_port()
        name = connection.settings_dict
        url = f"postgresql://{name['USER']}@{name['HOST']}:{name['PORT']}/{name['NAME']}"
        command = [sys.executable, "manage.py", "telemetry", f"--port={self.port}", *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"MASTHEAD_DATABASE_URL": url} | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def post(self, token: str, body: bytes) -> int:
        headers = {"Authorization": f"Bearer {token}", "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        try:
            return httpx.post(f"http://127.0.0.1:{self.port}/api/v1/write", content=body, headers=headers).status_code
        except httpx.TransportError:
            return 0

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(sig)
        return self.end()

    def end(self) -> str:
        """What it wrote, once it is over."""
        out, _ = self.process.communicate(timeout=60)
        return out.decode()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def started() -> Iterator[list[Telemetry]]:
    found: list[Telemetry] = []
    yield found
    for one in found:
        if one.process.poll() is None:
            one.stop(signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_the_command_takes_flushes_at_its_end_and_knows_all_again(started: list[Telemetry]) -> None:
    site = make_site()
    gpu = make_gpu(node=make_node(site=site))
    _, token = create_sender(name="north", regions=[site.region])

    def body(watts: float) -> bytes:
        sample = power(gpu, watts, time.time())
        return body_of([(sample.labels, [(sample.value, sample.at)])])

    first = Telemetry()
    started.append(first)
    until(lambda: first.post(token, body(300)) == 204)
    assert first.post("wrong", body(1)) == 401
    assert first.post(token, b"garbage") == 400
    output = first.stop()
    assert first.process.returncode == 0, output
    assert "Traceback" not in output
    assert GpuReading.objects.get(gpu=gpu).power_watts == 300

    second = Telemetry(MASTHEAD_REDIS_URL="redis://127.0.0.1:9/0")
    started.append(second)
    until(lambda: second.post(token, body(310)) == 204)
    until(lambda: GpuReading.objects.get(gpu=gpu).power_watts == 310)
    second.stop(signal.SIGKILL)
    third = running(Clock())
    assert gpu_value(third.ingest, gpu.uuid, "power_watts") == 310


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_an_unknown_area_ends_the_command_with_its_name(started: list[Telemetry]) -> None:
    one = Telemetry("--areas=atlantis")
    started.append(one)
    assert "--areas: no area is called 'atlantis'" in one.end()
    assert one.process.returncode == 1
