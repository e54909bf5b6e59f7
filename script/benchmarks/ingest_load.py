"""Load for `script/bench ingest`: a Prometheus that sends what the exporters of a sliced fleet say, in a process of its own.

    python -m script.benchmarks.ingest_load --url … --gpus N --values FILE < token

Bodies are made once, byte by byte as Prometheus makes them; each cycle only the numbers and times in them change. It runs until "stop" comes
on its standard input, ends the cycle, writes the last values sent to FILE and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import cramjam
import numpy as np
from numpy.typing import NDArray

INTERVAL_SECONDS = 10.0
SERIES_PER_BODY = 2000  # Prometheus' default max_samples_per_send
SLICES = 7
CONNECTIONS = 4
# (metric, how far it moves per cycle). Of the slice; of the device and repeated on each slice's line; of the device on one line.
OF_SLICE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_USED")
REPEATED = ("DCGM_FI_DEV_POWER_USAGE",)
OF_GPU = ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_XID_ERRORS")
SERIES_PER_GPU = SLICES * (len(OF_SLICE) + len(REPEATED)) + len(OF_GPU)


def gpu_uuid(number: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'ingest-bench-{number}')}"


def site_code(number: int) -> str:
    return f"BEN-{number:05d}"


def labels_of(metric: str, gpu: int, instance: int | None) -> dict[str, str]:
    """Labels as in the fixture of a sliced node, through a Prometheus that does not honour the target's labels."""
    labels = {
        "__name__": metric,
        "DCGM_FI_DRIVER_VERSION": "570.158.01",
        "Hostname": f"gpu-{gpu:05d}",
        "UUID": gpu_uuid(gpu),
        "container": "exporter",
        "device": "nvidia0",
        "gpu": "0",
        "instance": f"10.{gpu >> 16 & 255}.{gpu >> 8 & 255}.{gpu & 255}:9400",
        "job": "dcgm",
        "modelName": "NVIDIA H100 80GB HBM3",
        "namespace": "gpu-mon",
        "node": f"gpu-{gpu:05d}",
        "pci_bus_id": "00000000:19:00.0",
        "pod": f"dcgm-exporter-{gpu:05d}",
        "region": f"region-{gpu // 50:03d}",
        "site": site_code(gpu),
    }
    if instance is not None:
        labels |= {"GPU_I_ID": str(instance), "GPU_I_PROFILE": "1g.10gb"}
        if instance >= 10:
            labels |= {"exported_container": "server", "exported_namespace": f"tenant-{gpu % 40}", "exported_pod": f"llm-{gpu:05d}-{instance}"}
    return labels


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _text(tag: int, text: str) -> bytes:
    data = text.encode()
    return bytes([tag]) + _varint(len(data)) + data


def label_bytes(labels: dict[str, str]) -> bytes:
    parts = []
    for name, value in sorted(labels.items()):
        inner = _text(0x0A, name) + _text(0x12, value)
        parts.append(b"\x0a" + _varint(len(inner)) + inner)
    return b"".join(parts)


def _around_name(gpu: int, instance: int) -> tuple[bytes, bytes]:
    """The label bytes before and after `__name__`."""
    labels = labels_of("", gpu, instance)
    del labels["__name__"]
    before = {name: value for name, value in labels.items() if name < "__name__"}
    return label_bytes(before), label_bytes({name: value for name, value in labels.items() if name not in before})


@dataclass
class Body:
    """One request: its bytes, and where in them the doubles and the times of its series stand."""

    data: NDArray[np.uint8]
    doubles: NDArray[np.int64]  # where the 8 bytes begin
    doubles_of: NDArray[np.int64]  # number of the series
    stamps: NDArray[np.int64]  # where the 6 bytes begin


def make_bodies(gpus: int, per_body: int) -> list[Body]:
    """All bodies of a cycle. The series of a GPU stand together, as its exporter's scrape brings them."""
    bodies: list[Body] = []
    out, doubles, doubles_of, stamps, count = bytearray(), [], [], [], 0
    number = 0
    names = [(metric, 7 + n) for metric in (*OF_SLICE, *REPEATED) for n in range(SLICES)] + [(metric, 7) for metric in OF_GPU]
    first_label = {metric: label_bytes({"__name__": metric}) for metric, _ in names}
    # In the order of their names: DCGM_FI_DRIVER_VERSION … UUID, then __name__, then the lower case ones.
    for gpu in range(gpus):
        around = {instance: _around_name(gpu, instance) for instance in range(7, 7 + SLICES)}
        for metric, instance in names:
            before, after = around[instance]
            labels = before + first_label[metric] + after
            zero = metric == "DCGM_FI_DEV_XID_ERRORS"
            sample = b"\x12\x07\x10" + bytes(6) if zero else b"\x12\x10\x09" + bytes(8) + b"\x10" + bytes(6)
            out += b"\x0a" + _varint(len(labels) + len(sample)) + labels
            if not zero:
                doubles.append(len(out) + 3)
                doubles_of.append(number)
            stamps.append(len(out) + len(sample) - 6)
            out += sample
            number += 1
            count += 1
        if count + SERIES_PER_GPU > per_body or gpu == gpus - 1:
            bodies.append(Body(np.frombuffer(bytes(out), dtype=np.uint8).copy(), np.array(doubles), np.array(doubles_of), np.array(stamps)))
            out, doubles, doubles_of, stamps, count = bytearray(), [], [], [], 0
    return bodies


class Numbers:
    """The values of all series, cycle by cycle, [gpus, series of a GPU] in the exporter's units."""

    def __init__(self, gpus: int) -> None:
        self._random = np.random.default_rng(1)
        self.gpus = gpus
        self.values = np.ones((gpus, SERIES_PER_GPU))
        self._cycle = 0
        self.move()

    def move(self) -> float:
        """The next cycle. Returns the share of the series whose value changed."""
        before = self.values.copy()
        random, gpus = self._random, self.gpus
        self._cycle += 1
        device = SLICES * len(OF_SLICE)
        self.values[:, :SLICES] = random.integers(1, 1_000_000, (gpus, SLICES)) / 1e6
        self.values[:, SLICES:device] = random.integers(1, 9856, (gpus, SLICES))
        self.values[:, device : device + SLICES] = (random.integers(60_000, 700_000, gpus) / 1e3)[:, None]
        rest = self.values[:, device + SLICES :]
        rest[:, 0] = random.integers(345, 1980, gpus)
        rest[:, 1] = random.integers(30, 85, gpus)
        rest[:, 2] = 1e11 + self._cycle * 7_000_000 + random.integers(0, 1_000_000, gpus)
        rest[:, 3] = random.integers(30, 95, gpus)
        rest[:, 4] = 0
        return float((self.values != before).mean())


@dataclass
class Report:
    series: int
    bodies_per_cycle: int
    bytes_per_cycle: int = 0
    cycles: int = 0
    samples_sent: int = 0
    retries: int = 0
    failures: list[str] = field(default_factory=list)
    changed_ratio_min: float = 1.0
    late_seconds_max: float = 0.0


def _send(url: str, token: str, waiting: queue.Queue[bytes | None], report: Report, lock: threading.Lock) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    while (body := waiting.get()) is not None:
        for attempt in range(30):
            try:
                connection.request("POST", parts.path, body, headers)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                status = 0
                if attempt == 29:
                    report.failures.append(str(error))
            if status == 204:
                break
            if 400 <= status < 500:
                report.failures.append(f"answer {status}")
                break
            with lock:
                report.retries += 1
            time.sleep(0.2)
    connection.close()


def _wait_for_stop(stopping: threading.Event) -> None:
    """ "stop" ends the cycle first; a parent that went away ends all at once."""
    if not sys.stdin.readline():
        os._exit(1)
    stopping.set()


def run(url: str, token: str, gpus: int, values_file: Path, per_body: int) -> Report:
    bodies, numbers = make_bodies(gpus, per_body), Numbers(gpus)
    report = Report(gpus * SERIES_PER_GPU, len(bodies))
    stopping = threading.Event()
    threading.Thread(target=_wait_for_stop, args=(stopping,), daemon=True).start()
    waiting: queue.Queue[bytes | None] = queue.Queue(maxsize=16)
    lock = threading.Lock()
    senders = [threading.Thread(target=_send, args=(url, token, waiting, report, lock)) for _ in range(CONNECTIONS)]
    for sender in senders:
        sender.start()
    print(json.dumps({"ready": True, "series": report.series, "bodies": len(bodies)}), flush=True)
    step = INTERVAL_SECONDS / len(bodies)
    began = time.monotonic()
    while not stopping.is_set():
        changed = numbers.move()
        if report.cycles:
            report.changed_ratio_min = min(report.changed_ratio_min, changed)
        flat = numbers.values.reshape(-1)
        size = 0
        for index, body in enumerate(bodies):
            due = began + report.cycles * INTERVAL_SECONDS + index * step
            delay = due - time.monotonic()
            if delay > 0:
                time.sleep(delay)
            report.late_seconds_max = max(report.late_seconds_max, -delay)
            data = body.data
            data[body.doubles[:, None] + np.arange(8)] = np.frombuffer(flat[body.doubles_of].astype("<f8").tobytes(), dtype=np.uint8).reshape(-1, 8)
            data[body.stamps[:, None] + np.arange(6)] = np.frombuffer(_varint(int(time.time() * 1000)), dtype=np.uint8)
            packed = bytes(cramjam.snappy.compress_raw(data.tobytes()))
            size += len(packed)
            waiting.put(packed)
        report.bytes_per_cycle = size
        report.cycles += 1
        report.samples_sent += report.series
    for _ in senders:
        waiting.put(None)
    for sender in senders:
        sender.join()
    np.save(values_file, numbers.values)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--values", type=Path, required=True)
    parser.add_argument("--per-body", type=int, default=SERIES_PER_BODY)
    given = parser.parse_args()
    token = sys.stdin.readline().strip()
    print(json.dumps(vars(run(given.url, token, given.gpus, given.values, given.per_body))), flush=True)


if __name__ == "__main__":
    main()
