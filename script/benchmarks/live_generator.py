"""Publish frames of a made-up fleet once a second through `fleet.stream`, as the telemetry process does, with a set number of changes.

Each changed cell has an arrival time within the second before its tick. The log has one JSON line a tick: {"tick", "at", "changes": [[site id, state, arrival]]}.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import django
import numpy as np
from numpy.typing import NDArray

MIX = (0.955, 0.028, 0.003, 0.006, 0.008)


def next_changes(chance: np.random.Generator, state: NDArray[np.uint8], how_many: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Rows and their new states. Half of the changes heal, so that the mix of the fleet stays what it is."""
    bad, good = np.flatnonzero(state), np.flatnonzero(state == 0)
    healed = chance.choice(bad, size=min(how_many // 2, len(bad)), replace=False)
    fallen = chance.choice(good, size=min(how_many - len(healed), len(good)), replace=False)
    weights = np.array(MIX[1:]) / sum(MIX[1:])
    fresh = np.concatenate([np.zeros(len(healed)), chance.choice(np.arange(1, 5), size=len(fallen), p=weights)]).astype(np.uint8)
    return np.concatenate([healed, fallen]), fresh


def set_scene(chance: np.random.Generator, state: NDArray[np.uint8], area: NDArray[np.int64]) -> None:
    """A stretch of the first area out of contact, one of the fourth in maintenance, the fifth hot."""
    areas = np.unique(area)
    for number, (first, last), word in ((0, (0.46, 0.51), 3), (3, (0.2, 0.38), 4)):
        if number < len(areas):
            rows = np.flatnonzero(area == areas[number])
            state[rows[int(len(rows) * first) : int(len(rows) * last)]] = word
    if len(areas) > 4:
        rows = np.flatnonzero(area == areas[4])
        state[chance.choice(rows, size=int(len(rows) * 0.22), replace=False)] = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--scene", action="store_true", help="begin with a cut ring, a maintenance and a heat wave")
    options = parser.parse_args()
    django.setup()
    from fleet import frames, stream
    from fleet.models import Site

    rows = np.array(list(Site.objects.order_by("pk").values_list("pk", "region__area_id")), dtype=np.int64).reshape(-1, 2)
    count = len(rows)
    chance = np.random.default_rng(11)
    start = time.time()
    state = chance.choice(5, size=count, p=MIX).astype(np.uint8)
    if options.scene:
        set_scene(chance, state, rows[:, 1])
    since = np.full(count, start)
    contact = np.where(state == 3, start - chance.uniform(60, 900, count), start)
    utilization, power = chance.uniform(0.2, 0.9, count), chance.uniform(700, 1700, count)
    publisher = stream.FramePublisher()
    with options.log.open("w", buffering=1) as log:
        tick = 0
        while time.time() - start < options.seconds:
            at = time.time()
            changed, fresh = next_changes(chance, state, min(options.changes, count) if tick else 0)
            state[changed], since[changed] = fresh, at
            arrivals = at - chance.uniform(0, 1, len(changed))
            contact = np.where(state == 3, contact, at)
            cells = frames.columns(
                site_id=rows[:, 0],
                state=state,
                flags=np.where(state == 3, frames.FLAG_SILENT, 0),
                gpus_reporting=np.where(state == 3, 0, 2),
                gpus_expected=np.full(count, 2),
                utilization_ratio=np.where(state == 3, np.nan, utilization),
                power_watts=np.where(state == 3, np.nan, power),
                since=since,
                contact=contact,
            )
            publisher.publish(cells, rows[:, 1], now=at, newest_arrival=float(arrivals.max()) if len(arrivals) else at)
            line = [[int(rows[row, 0]), int(value), round(float(arrival), 3)] for row, value, arrival in zip(changed, fresh, arrivals, strict=True)]
            log.write(json.dumps({"tick": tick, "at": at, "changes": line}) + "\n")
            tick += 1
            time.sleep(max(0.0, start + tick - time.time()))


if __name__ == "__main__":
    main()
