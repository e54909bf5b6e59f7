"""`script/bench ingest`: a fleet's telemetry by remote_write, from bytes to rows.

The telemetry process runs as it always does, on its own PostgreSQL and Redis; a process of its own plays Prometheus. Afterwards PostgreSQL must hold
exactly the values sent last. Prints the load, then one line of JSON; exit status 0 only if every must of the specification held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg

from script.benchmarks.ingest_load import INTERVAL_SECONDS, SERIES_PER_BODY, SERIES_PER_GPU, SLICES, gpu_uuid
from script.servers import APP_ROLE, OWNER_ROLE, Postgres, Redis, free_port, port_answers, wait_until

ROOT = Path(__file__).resolve().parents[2]
MIB = 2.0**20
MUSTS = {"flush_s_median": 2.0, "age_s_p95": 12.0, "rss_mb": 900.0}
AGE_P95 = 'masthead_telemetry_sample_age_seconds{quantile="0.95"}'
# (column of the reading, column of the load's values, factor), for GPUs; the slices' are columns 0-6 and 7-13.
GPU_COLUMNS = (
    ("power_watts", 14, 1.0),
    ("sm_clock_hertz", 21, 1e6),
    ("gpu_temperature_celsius", 22, 1.0),
    ("energy_joules", 23, 1e-3),
    ("memory_temperature_celsius", 24, 1.0),
    ("xid", 25, 1.0),
)


def seed(url: str, gpus: int) -> None:
    """One GPU with seven slices on one node at each site, 50 sites a region, 60 regions an area."""
    with psycopg.connect(url) as connection:
        run = connection.execute
        areas, regions = -(-gpus // 3000), -(-gpus // 50)
        run("INSERT INTO fleet_area (slug, name) SELECT 'area-' || n, 'Area ' || n FROM generate_series(0, %s - 1) n", [areas])
        run(
            "INSERT INTO fleet_region (area_id, slug, name, kind) SELECT a.id, 'region-' || lpad(n::text, 3, '0'), 'Region ' || n, 'edge' "
            "FROM generate_series(0, %s - 1) n JOIN fleet_area a ON a.slug = 'area-' || n / 60",
            [regions],
        )
        run(
            "INSERT INTO fleet_site (region_id, code, name, kind, time_zone, power_feed) "
            "SELECT r.id, 'BEN-' || lpad(n::text, 5, '0'), 'Bench ' || n, 'cell', 'UTC', '' "
            "FROM generate_series(0, %s - 1) n JOIN fleet_region r ON r.slug = 'region-' || lpad((n / 50)::text, 3, '0')",
            [gpus],
        )
    os.environ["DJANGO_SETTINGS_MODULE"] = "console.settings"
    import django

    django.setup()
    from datetime import UTC, datetime

    from fleet.models import Gpu, MigSlice, Node, Region, Site
    from fleet.telemetry.senders import create_sender

    now = datetime.now(UTC)
    sites = list(Site.objects.order_by("code").values_list("id", flat=True))
    nodes = Node.objects.bulk_create(
        [Node(site_id=site_id, host_name=f"gpu-{n:05d}", role=Node.Role.DU, expected_gpus=1, driver_version="570.158.01") for n, site_id in enumerate(sites)],
        batch_size=5000,
    )
    gpu_rows = Gpu.objects.bulk_create(
        [
            Gpu(uuid=gpu_uuid(n), node=node, sku="h100-sxm-80gb", index=0, pci_bus_id="00000000:19:00.0", mig_enabled=True, presence=Gpu.Presence.PRESENT)
            for n, node in enumerate(nodes)
        ],
        batch_size=5000,
    )
    MigSlice.objects.bulk_create(
        [
            MigSlice(gpu=gpu, gpu_instance_id=7 + k, profile="1g.10gb", start=k, size=1, purpose="phy" if k < 3 else "ai", created_at=now)
            for gpu in gpu_rows
            for k in range(SLICES)
        ],
        batch_size=5000,
    )
    _, token = create_sender(name="bench", regions=Region.objects.all())
    Path(os.environ["BENCH_TOKEN_FILE"]).write_text(token)


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and not line.startswith("#"))}


def start_load(url: str, token: str, gpus: int, values: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "script.benchmarks.ingest_load", f"--url={url}", f"--gpus={gpus}", f"--values={values}"]
    load = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write(token + "\n")
    load.stdin.flush()
    load.stdout.readline()
    return load


def stop_load(load: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = load.communicate("stop\n", timeout=120)
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_floor(gpus: int, folder: Path, cycles: int) -> float:
    """CPU seconds per cycle of a process that only receives and decodes."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "script.benchmarks.ingest_floor", f"--port={port}"], cwd=ROOT, env=os.environ | {"MASTHEAD_SECRET_KEY": "x" * 60}
    )
    try:
        wait_until(lambda: port_answers(port), timeout_seconds=30, what="the floor")
        load = start_load(f"http://127.0.0.1:{port}/api/v1/write", "none", gpus, folder / "floor.npy")
        process = psutil.Process(server.pid)
        time.sleep(INTERVAL_SECONDS + 2)  # every series was seen once
        before, began = cpu_seconds(process), time.monotonic()
        time.sleep(INTERVAL_SECONDS * cycles)
        spent = (cpu_seconds(process) - before) / (time.monotonic() - began) * INTERVAL_SECONDS
        stop_load(load)
        return spent
    finally:
        server.terminate()
        server.wait(20)


def compare(url: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[int, int]:
    """(cells that PostgreSQL lacks or holds another value of, cells counted more than once)."""
    gpus = len(values)
    index = {gpu_uuid(n): n for n in range(gpus)}
    lost = double = 0
    with psycopg.connect(url) as connection:
        names = ", ".join(f"r.{name}" for name, _, _ in GPU_COLUMNS)
        held = np.full((gpus, len(GPU_COLUMNS)), np.nan)
        rows = connection.execute(f"SELECT g.uuid, {names} FROM fleet_gpu_reading r JOIN fleet_gpu g ON g.id = r.gpu_id").fetchall()  # noqa: S608
        double += max(0, len(rows) - gpus)
        for uuid, *its in rows:
            held[index[uuid]] = [np.nan if value is None else value for value in its]
        for column, (name, source, factor) in enumerate(GPU_COLUMNS):
            right = values[:, source] * factor
            lost += int((held[:, column] != right).sum())
            if name == "power_watts":  # it stands on seven lines
                double += int((held[:, column] > 1.5 * right).sum())
        slices = np.full((gpus, SLICES, 2), np.nan)
        query = "SELECT g.uuid, r.gpu_instance_id, r.engine_active_ratio, r.memory_used_bytes FROM fleet_slice_reading r JOIN fleet_gpu g ON g.id = r.gpu_id"
        count = 0
        for uuid, instance, engine, memory in connection.execute(query):
            slices[index[uuid], instance - 7] = (np.nan if engine is None else engine, np.nan if memory is None else memory)
            count += 1
        double += max(0, count - gpus * SLICES)
        lost += int((slices[:, :, 0] != values[:, :SLICES]).sum()) + int((slices[:, :, 1] != values[:, SLICES : 2 * SLICES] * MIB).sum())
    return lost, double


def settle(port: int, limit_seconds: float) -> None:
    """Wait until every series is known, what waited is caught up, and the inventory has taken all identities."""
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        metrics = scrape(port)
        caught_up = metrics.get(AGE_P95, float("inf")) <= MUSTS["age_s_p95"]
        if caught_up and metrics["masthead_telemetry_sightings_waiting"] == 0 and metrics["masthead_telemetry_flushes_total"] >= 3:
            return
        time.sleep(2)


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.chmod(0o755)
    postgres, redis = Postgres(folder / "postgres"), Redis(folder / "redis")
    port, telemetry, load = free_port(), None, None
    os.environ["BENCH_TOKEN_FILE"] = str(folder / "token")
    try:
        postgres.start()
        redis.start()
        os.environ.update(
            MASTHEAD_SECRET_KEY="bench-" + "x" * 60,
            MASTHEAD_REDIS_URL=redis.url,
            MASTHEAD_INSECURE_HTTP="true",
            MASTHEAD_SCRAPE_INTERVAL_SECONDS="10",
            MASTHEAD_DATABASE_URL=postgres.url(),
        )
        owner = os.environ | {"MASTHEAD_DATABASE_URL": postgres.url(role=OWNER_ROLE)}
        subprocess.run([sys.executable, "manage.py", "setup_database", "-v0"], cwd=ROOT, env=owner, check=True, stdout=subprocess.DEVNULL)
        print(f"# Seeding {given.gpus} sites, GPUs and {given.gpus * SLICES} slices.", flush=True)
        seed(postgres.url(role=APP_ROLE), given.gpus)
        with (folder / "telemetry.log").open("wb") as log:
            telemetry = subprocess.Popen([sys.executable, "manage.py", "telemetry", f"--port={port}"], cwd=ROOT, stdout=log, stderr=log)
        wait_until(lambda: port_answers(port), timeout_seconds=60, what="telemetry", log=folder / "telemetry.log")
        process = psutil.Process(telemetry.pid)
        load = start_load(f"http://127.0.0.1:{port}/api/v1/write", (folder / "token").read_text(), given.gpus, folder / "values.npy")
        print("# Warming up: every series is read once, the inventory takes the workloads.", flush=True)
        settle(port, given.warm)
        result = measure(given, process, port)
        report = stop_load(load)
        telemetry.terminate()
        telemetry.wait(60)
        lost, double = compare(postgres.url(), np.load(folder / "values.npy"))
        floor = None if given.no_floor else round(measure_floor(given.gpus, folder, 3), 3)
        return {
            "series": report["series"],
            "seconds": given.seconds,
            "changed_ratio": round(report["changed_ratio_min"], 4),
            **result,
            "floor_cpu_s_per_cycle": floor,
            "lost": lost,
            "double": double,
            "load": {
                "gpus": given.gpus,
                "slices": given.gpus * SLICES,
                "series_per_gpu": SERIES_PER_GPU,
                "interval_s": INTERVAL_SECONDS,
                "bodies_per_cycle": report["bodies_per_cycle"],
                "series_per_body": SERIES_PER_BODY,
                "megabytes_per_cycle": round(report["bytes_per_cycle"] / 1e6, 1),
                "cycles": report["cycles"],
                "retries": report["retries"],
                "failures": len(report["failures"]),
                "late_s_max": round(report["late_seconds_max"], 2),
            },
        }
    finally:
        for process_left in (load, telemetry):
            if process_left is not None and process_left.poll() is None:
                process_left.kill()
                process_left.wait()
        if given.keep_log:
            shutil.copy(folder / "telemetry.log", given.keep_log)
        redis.stop()
        postgres.stop()


def measure(given: argparse.Namespace, process: psutil.Process, port: int) -> dict[str, Any]:
    """Watch the process for the time asked for, once a second."""
    flushes: dict[float, float] = {}
    ages: list[float] = []
    rss = 0
    cpu, began = cpu_seconds(process), time.monotonic()
    first = scrape(port)["masthead_telemetry_flushes_total"]
    while time.monotonic() - began < given.seconds:
        time.sleep(1)
        metrics = scrape(port)
        ages.append(metrics[AGE_P95])
        rss = max(rss, process.memory_info().rss)
        if metrics["masthead_telemetry_flushes_total"] > first:
            flushes[metrics["masthead_telemetry_flushes_total"]] = metrics["masthead_telemetry_flush_seconds"]
    seconds = time.monotonic() - began
    times = sorted(flushes.values())
    return {
        "flush_s_median": round(statistics.median(times), 3),
        "flush_s_p95": round(float(np.quantile(times, 0.95)), 3),
        "age_s_p95": round(max(ages), 2),
        "rss_mb": round(rss / 1e6, 1),
        "cpu_s_per_cycle": round((cpu_seconds(process) - cpu) / seconds * INTERVAL_SECONDS, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm", type=float, default=240, help="seconds to wait at most until every series and workload is known")
    parser.add_argument("--no-floor", action="store_true")
    parser.add_argument("--keep-log", default="")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="masthead-bench-", dir="/tmp"))
    try:
        result = run(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    held = all(result[name] <= limit for name, limit in MUSTS.items()) and result["changed_ratio"] >= 0.85 and not result["lost"] and not result["double"]
    print(json.dumps(result))
    return 0 if held and not result["load"]["failures"] else 1


if __name__ == "__main__":
    sys.exit(main())
