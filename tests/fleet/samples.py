"""Samples out of exposition text and of Prometheus' answers, as the cases hold them, and an Ingest over a small fleet to put them in."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fleet.telemetry.fields import GPU_FIELD_INDEX, SLICE_FIELD_INDEX, Sample
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.live_state import LiveState
from fleet.telemetry.prompb import write_request
from fleet.telemetry.resolver import SenderScope
from fleet.telemetry.service_state import ServiceState

CASES = Path(__file__).resolve().parent.parent / "cases"
FIXTURES = CASES.parent / "fixtures"
T0 = 1795168800.0  # 2026-11-20T10:00:00Z
WHOLE_FLEET = SenderScope(1, "whole", None)

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(\d+))?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def case_file(case: str, name: str) -> str:
    (folder,) = CASES.glob(f"{case}*")
    return (folder / name).read_text()


def case_json(case: str, name: str = "expect.json") -> Any:
    return json.loads(case_file(case, name))


def from_exposition(text: str, at: float = T0, **labels: str) -> list[Sample]:
    """The samples of a scrape at `at`, with the labels that Prometheus would add."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            match = _LINE.match(line.strip())
            assert match, line
            found.append(Sample({"__name__": match[1], **dict(_LABEL.findall(match[2] or "")), **labels}, float(match[3]), at))
    return found


def from_answer(answer: Mapping[str, Any]) -> list[Sample]:
    """The samples of an instant or range answer, in the order of time."""
    found = []
    for series in answer["data"]["result"]:
        for at, value in [series["value"]] if "value" in series else series["values"]:
            found.append(Sample(series["metric"], float(value), float(at)))
    return sorted(found, key=lambda sample: sample.at)


def fleet_of(uuids: Iterable[str], *, site: str = "S1", host: str = "gpu-a-01") -> Ingest:
    """An Ingest over one site with one node that carries these GPUs."""
    state = LiveState()
    state.add_sites([(10, site, 1, 100)])
    state.add_nodes([(20, host, 10)])
    state.add_gpus([(30 + n, uuid, 20) for n, uuid in enumerate(dict.fromkeys(uuids))])
    return Ingest(state, ServiceState(), silent_after_seconds=15.0)


def uuids_of(samples: Iterable[Sample]) -> list[str]:
    return list(dict.fromkeys(sample.labels["UUID"] for sample in samples if "UUID" in sample.labels))


def push(ingest: Ingest, samples: Iterable[Sample], sender: SenderScope = WHOLE_FLEET, *, now: float | None = None) -> None:
    """By remote_write, one body per sample time, as Prometheus would send them."""
    by_time: dict[float, list[Sample]] = {}
    for sample in samples:
        by_time.setdefault(sample.at, []).append(sample)
    for at, part in sorted(by_time.items()):
        ingest.take_body(write_request([(one.labels, [(one.value, at)]) for one in part]), sender, now=at + 1 if now is None else now)


def pull(ingest: Ingest, samples: Iterable[Sample], sender: SenderScope = WHOLE_FLEET, *, now: float | None = None) -> None:
    found = list(samples)
    ingest.take_samples(found, sender, now=max(one.at for one in found) + 1 if now is None else now)


def gpu_value(ingest: Ingest, uuid: str, field: str) -> float | None:
    value = float(ingest.state.gpu_values[GPU_FIELD_INDEX[field], ingest.state.gpu_row_of[uuid]])
    return None if np.isnan(value) else value


def slice_value(ingest: Ingest, uuid: str, instance: int, field: str) -> float | None:
    row = ingest.state.slice_row_of[ingest.state.gpu_row_of[uuid], instance]
    value = float(ingest.state.slice_values[SLICE_FIELD_INDEX[field], row])
    return None if np.isnan(value) else value
