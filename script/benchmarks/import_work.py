"""The measured part of `script/bench import`, in a process that has the settings of a worker."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import resource
import time
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

import pgtrigger  # noqa: E402 - models need the settings first
from django.utils import timezone  # noqa: E402

from console.models import User  # noqa: E402
from fleet import jobs  # noqa: E402
from fleet.inventory.export import About, export_rows  # noqa: E402
from fleet.inventory.importing import pipeline  # noqa: E402
from fleet.inventory.importing.columns import SITES  # noqa: E402
from fleet.job_kinds import runner_of  # noqa: E402
from fleet.models import ImportRow, Job, Site  # noqa: E402


def made_up_sites(rows: int, seed: int = 7) -> bytes:
    """A CSV of that many sites in regions of 50, with every column filled; the regions come with it."""
    rng = random.Random(seed)  # noqa: S311 - made-up coordinates
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(SITES.names)
    for number in range(rows):
        region = number // 50
        place = [round(rng.uniform(-60, 60), 5), round(rng.uniform(-170, 170), 5)]
        writer.writerow(
            [f"S-{number:05d}", f"Site {number}", f"region-{region:03d}", f"area-{region // 60}", "cell", *place, "Europe/Berlin", "A+B 2N", 12_000, 1]
        )
    return text.getvalue().encode()


def work(job: Job, state: Job.State) -> None:
    done = jobs.run(job.pk, runner_of, timezone.now())
    if done is None or done.state != state:
        raise SystemExit(f"The job is {done and done.state}, not {state}: {done and done.error}")


def measure(rows: int, history: bool) -> dict[str, Any]:
    owner = User.objects.create_user("bench")
    content = made_up_sites(rows)
    started = time.monotonic()
    held = pipeline.start_import(owner=owner, kind="sites", file_name="sites.csv", content=content, on_duplicate="update", region_ids=None)
    work(held.job, Job.State.WAITING)
    checked = time.monotonic()
    right = ImportRow.objects.filter(outcome="new").count() == rows
    pipeline.queue_apply(held, user=owner, reason="benchmark", region_ids=None, now=timezone.now())
    with contextlib.nullcontext() if history else pgtrigger.ignore():
        work(held.job, Job.State.DONE)
    applied = time.monotonic()
    right = right and Site.objects.count() == rows
    export_started = time.monotonic()
    about = About(filter="", made_at=timezone.now(), made_by="bench")
    sizes, first = [], 0.0
    for chunk in export_rows("sites", Site.objects.order_by("code"), "csv", about):
        first = first or time.monotonic() - export_started
        sizes.append(len(chunk))
    exported = time.monotonic()
    before_undo = time.monotonic()
    work(pipeline.queue_undo(held, user=owner, reason="benchmark", region_ids=None), Job.State.DONE)
    undone = time.monotonic()
    right = right and not Site.objects.exists()
    return {
        "rows": rows,
        "import_s": round(applied - started, 2),
        "check_s": round(checked - started, 2),
        "apply_s": round(applied - checked, 2),
        "undo_s": round(undone - before_undo, 2),
        "export_s": round(exported - export_started, 2),
        "export_first_chunk_s": round(first, 2),
        "right": right,
        "load": {
            "columns": len(SITES.names),
            "csv_bytes": len(content),
            "export_bytes": sum(sizes),
            "export_chunks": len(sizes),
            "history": history,
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--no-history", action="store_true")
    given = parser.parse_args()
    print(json.dumps(measure(given.rows, not given.no_history)))
