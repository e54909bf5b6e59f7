"""What telemetry keeps beside the readings: service values, data quality, and the last known values of sites that fell silent."""

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
from django.db import connection
from django.db.models import Q
from psycopg.types.json import Jsonb

from fleet.models import DataQuality, LastKnownReading, ServiceReading
from fleet.telemetry.fields import GPU_FIELDS, SLICE_FIELDS, Refusal
from fleet.telemetry.live_state import LiveState
from fleet.telemetry.quality import Key, Tally
from fleet.telemetry.service_state import ServiceRow

_PART = 2_000
MISSING_FORGOTTEN_SECONDS = 600.0
SERVICE_FORGOTTEN_SECONDS = 3600.0


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def store_services(rows: Iterable[ServiceRow], node_ids: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
    """Upsert service values. `node_ids` [n]: database ids by node row. Returns how many rows."""
    readings = [
        ServiceReading(node_id=int(node_ids[row.node_row]), job=row.job, item=row.item, sampled_at=moment(row.sampled_at), values=row.values) for row in rows
    ]
    ServiceReading.objects.bulk_create(
        readings, batch_size=_PART, update_conflicts=True, unique_fields=["node", "job", "item"], update_fields=["sampled_at", "values"]
    )
    return len(readings)


_FORGET_SERVICES = """
DELETE FROM fleet_service_reading AS old USING (
    SELECT node_id, job, max(sampled_at) AS sampled_at FROM fleet_service_reading WHERE item <> '' AND item NOT LIKE '[%%' GROUP BY node_id, job
) AS newest
WHERE old.node_id = newest.node_id AND old.job = newest.job AND old.sampled_at < newest.sampled_at - make_interval(secs => %s)
"""


def forget_ended_services() -> int:
    """Drop what no longer comes of a node's job while the job's other items go on: pods, models and devices that went. Returns how many rows."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_SERVICES, [SERVICE_FORGOTTEN_SECONDS])
        return cursor.rowcount


_ADD_QUALITY = """
INSERT INTO fleet_dataquality AS held (sender_id, site_id, reason, count, first_at, last_at, example)
SELECT * FROM UNNEST(%s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::text[])
    AS news (sender_id, site_id, reason, count, first_at, last_at, example)
WHERE (news.site_id IS NULL OR EXISTS (SELECT 1 FROM fleet_site WHERE fleet_site.id = news.site_id))
    AND (news.sender_id IS NULL OR EXISTS (SELECT 1 FROM fleet_sender WHERE fleet_sender.id = news.sender_id))
ON CONFLICT (sender_id, site_id, reason) DO UPDATE SET
    count = {count}, last_at = GREATEST(held.last_at, EXCLUDED.last_at),
    example = CASE WHEN EXCLUDED.example = '' THEN held.example ELSE EXCLUDED.example END
"""


def add_quality(tallies: dict[Key, Tally]) -> None:
    """Add what was refused to the counters of `DataQuality`."""
    _write_quality(tallies, "held.count + EXCLUDED.count")


def set_missing(counts: dict[tuple[int, int | None], int], *, now: float) -> None:
    """Set how many series of a sender and site no longer come: a state, not a sum. Rows of 0, and those that nobody renewed for long, go."""
    tallies: dict[Key, Tally] = {(sender, site, Refusal.SERIES_MISSING): Tally(count, now, now) for (sender, site), count in counts.items()}
    _write_quality(tallies, "EXCLUDED.count")
    forgotten = Q(count=0) | Q(last_at__lt=moment(now - MISSING_FORGOTTEN_SECONDS))
    DataQuality.objects.filter(forgotten, reason=Refusal.SERIES_MISSING.value).delete()


def _write_quality(tallies: dict[Key, Tally], count: str) -> None:
    if not tallies:
        return
    keys, values = list(tallies), list(tallies.values())
    with connection.cursor() as cursor:
        cursor.execute(
            _ADD_QUALITY.format(count=count),
            [
                [sender for sender, _, _ in keys],
                [site for _, site, _ in keys],
                [reason.value for _, _, reason in keys],
                [tally.count for tally in values],
                [moment(tally.first_at) for tally in values],
                [moment(tally.last_at) for tally in values],
                [tally.example.replace("\x00", "") for tally in values],
            ],
        )


_KEEP_LAST_KNOWN = """
INSERT INTO fleet_lastknownreading (gpu_id, sampled_at, values, slices, written_at)
SELECT gpu_id, sampled_at, values, slices, %s FROM UNNEST(%s::bigint[], %s::timestamptz[], %s::jsonb[], %s::jsonb[])
    AS news (gpu_id, sampled_at, values, slices)
WHERE EXISTS (SELECT 1 FROM fleet_gpu WHERE fleet_gpu.id = news.gpu_id)
ON CONFLICT (gpu_id) DO UPDATE SET sampled_at = EXCLUDED.sampled_at, values = EXCLUDED.values, slices = EXCLUDED.slices, written_at = EXCLUDED.written_at
WHERE fleet_lastknownreading.sampled_at <= EXCLUDED.sampled_at
"""


def last_known_of(state: LiveState, gpu_rows: Iterable[int]) -> list[LastKnownReading]:
    """The last values of these GPUs and their slices, ready to be kept. Hold the state's lock."""
    wanted = [row for row in gpu_rows if state.gpu_active[row] and not np.isnan(state.gpu_sampled_at[row])]
    slices: dict[int, dict[str, dict[str, float]]] = {}
    slice_rows = np.flatnonzero(np.isin(state.slice_gpu_row, wanted))
    for row, its_values in zip(slice_rows.tolist(), state.shown_slice_values(slice_rows).T, strict=True):
        values = _known(tuple(field.name for field in SLICE_FIELDS), its_values)
        if values:
            slices.setdefault(int(state.slice_gpu_row[row]), {})[str(int(state.slice_instance[row]))] = values
    names = tuple(field.name for field in GPU_FIELDS)
    shown = state.shown_values(np.array(wanted, dtype=np.int64))
    return [
        LastKnownReading(
            gpu_id=int(state.gpu_id[row]),
            sampled_at=moment(float(state.gpu_sampled_at[row])),
            values=_known(names, shown[:, number]),
            slices=slices.get(row, {}),
        )
        for number, row in enumerate(wanted)
    ]


def _known(names: tuple[str, ...], values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True) if not np.isnan(value)}


def keep_last_known(readings: list[LastKnownReading], *, now: float) -> None:
    """Write the logged copies; an older one never replaces a newer."""
    for first in range(0, len(readings), _PART):
        part = readings[first : first + _PART]
        with connection.cursor() as cursor:
            cursor.execute(
                _KEEP_LAST_KNOWN,
                [
                    moment(now),
                    [one.gpu_id for one in part],
                    [one.sampled_at for one in part],
                    [Jsonb(one.values) for one in part],
                    [Jsonb(one.slices) for one in part],
                ],
            )
