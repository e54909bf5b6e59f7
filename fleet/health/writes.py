"""Health as rows: the statements that store what an evaluation changed. Each takes many rows at once; the caller holds the transaction.

Storing the same changes again changes nothing, since a commit whose answer was lost is tried again. Objects deleted meanwhile are left out.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from fleet.health.changes import FindingChange, Kind, VerdictChange, XidEventChange, newest_findings
from fleet.health.memory import SiteCells
from fleet.telemetry.live_state import LiveState

_HEALTH = {
    Kind.GPU: ("fleet_gpuhealth", "gpu_id", "fleet_gpu", {"last_xid": "integer", "last_xid_at": "float8"}),
    Kind.NODE: ("fleet_nodehealth", "node_id", "fleet_node", {"heartbeat_at": "float8", "exporter_up": "boolean", "exporter_up_at": "float8"}),
    Kind.SITE: ("fleet_sitehealth", "site_id", "fleet_site", {}),
}
_SITE_DEFAULTS = "nodes_reporting, gpus_reporting, gpus_expected"


def _columns(rows: Iterable[Sequence[Any]], count: int) -> list[list[Any]]:
    """Rows as one list per column, also when there are no rows. NaN becomes null."""
    columns: list[list[Any]] = [[] for _ in range(count)]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(None if isinstance(value, float) and math.isnan(value) else value)
    return columns


def _execute(statement: str, columns: list[list[Any]]) -> int:
    if not columns[0]:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(statement, columns)
        return cursor.rowcount


def write_verdicts(changes: Sequence[VerdictChange]) -> None:
    """The newest verdict of each object, and every transition."""
    newest = {(change.object.kind, change.object.id): change for change in changes}
    for kind, (table, pk, parent, facts) in _HEALTH.items():
        rows = [change for (its_kind, _), change in newest.items() if its_kind is kind]
        names = "".join(f", {name}" for name in facts)
        arrays = "".join(f", %s::{type_}[]" for type_ in facts.values())
        read = "".join(f", to_timestamp(u.{name})" if type_ == "float8" else f", u.{name}" for name, type_ in facts.items())
        update = "".join(f", {name} = EXCLUDED.{name}" for name in facts)
        zeros = (f", {_SITE_DEFAULTS}", ", 0, 0, 0") if kind is Kind.SITE else ("", "")
        statement = f"""
            INSERT INTO {table} ({pk}, state, since, cause, why{names}{zeros[0]})
            SELECT u.id, u.state, to_timestamp(u.since), u.cause, u.why{read}{zeros[1]}
            FROM unnest(%s::bigint[], %s::text[], %s::float8[], %s::text[], %s::text[]{arrays}) AS u(id, state, since, cause, why{names})
            JOIN {parent} p ON p.id = u.id
            ON CONFLICT ({pk}) DO UPDATE SET state = EXCLUDED.state, since = EXCLUDED.since, cause = EXCLUDED.cause, why = EXCLUDED.why{update}
        """  # noqa: S608 - names are ours
        verdicts = ((c.object.id, c.verdict.state.value, c.verdict.since, c.verdict.cause, c.verdict.why, *(c.facts.get(name) for name in facts)) for c in rows)
        _execute(statement, _columns(verdicts, 5 + len(facts)))
    moved = [change for change in changes if change.is_transition]
    _execute(
        """
        INSERT INTO fleet_healthtransition (kind, object_key, site_id, from_state, to_state, cause, why, at)
        SELECT u.kind, u.object_key, u.site_id, u.from_state, u.to_state, u.cause, u.why, to_timestamp(u.at)
        FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::float8[])
            WITH ORDINALITY AS u(kind, object_key, site_id, from_state, to_state, cause, why, at, number)
        WHERE NOT EXISTS (
            SELECT FROM fleet_healthtransition t
            WHERE t.kind = u.kind AND t.object_key = u.object_key AND t.at = to_timestamp(u.at) AND t.to_state = u.to_state AND t.from_state = u.from_state
        )
        ORDER BY u.number
        """,
        _columns(
            (
                (
                    change.object.kind.value,
                    change.object.key,
                    change.object.site_id,
                    (change.before.value if change.before is not None else "unknown"),
                    change.verdict.state.value,
                    change.verdict.cause,
                    change.verdict.why,
                    change.verdict.since,
                )
                for change in moved
            ),
            8,
        ),
    )


def write_findings(changes: Sequence[FindingChange]) -> None:
    """Open, renew and end findings. What was opened and ended since the last commit becomes a row that is over."""
    folded = newest_findings(list(changes))
    over = [change for change in folded if change.until is not None]
    _end(over)
    _insert([change for change in over if change.opened])
    standing = [change for change in folded if change.until is None]
    _renew([change for change in standing if not change.opened])
    _insert([change for change in standing if change.opened])


def _evidence(change: FindingChange) -> str:
    condition = change.condition
    kept = {"effect": condition.state.value, "recover_seconds": condition.recover_seconds}
    return json.dumps({**condition.evidence, "health": kept}, allow_nan=False, default=str)


def _finding_rows(changes: Iterable[FindingChange]) -> Iterable[tuple[Any, ...]]:
    for change in changes:
        condition = change.condition
        yield (
            change.object.kind.value,
            change.object.key,
            change.object.site_id,
            condition.code,
            condition.severity.value,
            condition.why[:300],
            condition.advised[:300],
            _evidence(change),
            condition.since,
            max(change.last_at, condition.since),
            condition.count,
            change.until,
            change.because[:120],
        )


_FINDING_ARRAYS = """unnest(
    %s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::jsonb[], %s::float8[], %s::float8[], %s::integer[], %s::float8[], %s::text[]
) AS u(kind, object_key, site_id, code, severity, summary, advised, evidence, since, last_at, count, until, because)"""


def _insert(changes: Sequence[FindingChange]) -> None:
    _execute(
        f"""
        INSERT INTO fleet_finding
            (kind, object_key, site_id, code, severity, summary, advised_action, evidence, since, last_at, count, until, ended_because)
        SELECT u.kind, u.object_key, s.id, u.code, u.severity, u.summary, u.advised, u.evidence, to_timestamp(u.since), to_timestamp(u.last_at), u.count,
            CASE WHEN u.until IS NOT NULL THEN to_timestamp(greatest(u.until, u.since)) END, u.because
        FROM {_FINDING_ARRAYS} LEFT JOIN fleet_site s ON s.id = u.site_id
        WHERE NOT EXISTS (
            SELECT FROM fleet_finding f
            WHERE f.kind = u.kind AND f.object_key = u.object_key AND f.code = u.code AND f.since = to_timestamp(u.since) AND f.until IS NOT NULL
                AND u.until IS NOT NULL
        )
        ON CONFLICT (kind, object_key, code) WHERE until IS NULL DO UPDATE SET
            severity = EXCLUDED.severity, summary = EXCLUDED.summary, advised_action = EXCLUDED.advised_action, evidence = EXCLUDED.evidence,
            last_at = greatest(fleet_finding.last_at, EXCLUDED.last_at), count = greatest(fleet_finding.count, EXCLUDED.count)
        """,  # noqa: S608
        _columns(_finding_rows(changes), 13),
    )


def _renew(changes: Sequence[FindingChange]) -> None:
    """Renew open findings only: one that an operator ended meanwhile stays ended."""
    _execute(
        f"""
        UPDATE fleet_finding f SET severity = u.severity, summary = u.summary, advised_action = u.advised, evidence = u.evidence,
            last_at = greatest(f.last_at, to_timestamp(u.last_at)), count = greatest(f.count, u.count)
        FROM {_FINDING_ARRAYS}
        WHERE f.kind = u.kind AND f.object_key = u.object_key AND f.code = u.code AND f.until IS NULL
        """,  # noqa: S608
        _columns(_finding_rows(changes), 13),
    )


def _end(changes: Sequence[FindingChange]) -> None:
    _execute(
        f"""
        UPDATE fleet_finding f SET until = greatest(f.since, to_timestamp(u.until)), ended_because = u.because, last_at = greatest(f.last_at, to_timestamp(u.last_at))
        FROM {_FINDING_ARRAYS}
        WHERE f.kind = u.kind AND f.object_key = u.object_key AND f.code = u.code AND f.until IS NULL
        """,  # noqa: S608
        _columns(_finding_rows(changes), 13),
    )


def write_xids(changes: Sequence[XidEventChange]) -> None:
    """Bursts as they stand now."""
    newest = {(change.gpu_id, change.xid, change.first_at): change for change in changes}
    _execute(
        """
        INSERT INTO fleet_xidevent (gpu_id, gpu_instance_id, xid, first_at, last_at, count, source, message)
        SELECT u.gpu_id, u.instance, u.xid, to_timestamp(u.first_at), to_timestamp(u.last_at), u.count, u.source, ''
        FROM unnest(%s::bigint[], %s::integer[], %s::integer[], %s::float8[], %s::float8[], %s::integer[], %s::text[])
            AS u(gpu_id, instance, xid, first_at, last_at, count, source)
        JOIN fleet_gpu g ON g.id = u.gpu_id
        ON CONFLICT (gpu_id, xid, first_at) DO UPDATE SET
            last_at = greatest(fleet_xidevent.last_at, EXCLUDED.last_at), count = greatest(fleet_xidevent.count, EXCLUDED.count)
        """,
        _columns(
            ((each.gpu_id, each.gpu_instance_id, each.xid, each.first_at, each.last_at, each.count, each.source) for each in newest.values()),
            7,
        ),
    )


def write_site_cells(live: LiveState, cells: SiteCells, rows: Sequence[int]) -> None:
    """The roll-up of these sites (rows of `live`), where a health row exists."""
    _execute(
        """
        UPDATE fleet_sitehealth h SET last_contact_at = to_timestamp(u.contact), out_of_contact_since = to_timestamp(u.silent), nodes_reporting = u.nodes,
            gpus_reporting = u.gpus, gpus_expected = u.expected, power_watts = u.power, gpu_utilization_ratio = u.utilization
        FROM unnest(%s::bigint[], %s::float8[], %s::float8[], %s::integer[], %s::integer[], %s::integer[], %s::float8[], %s::float8[])
            AS u(id, contact, silent, nodes, gpus, expected, power, utilization)
        WHERE h.site_id = u.id
        """,
        _columns(
            zip(
                live.site_id[rows].tolist(),
                cells.contact[rows].tolist(),
                cells.silent_since[rows].tolist(),
                cells.nodes_reporting[rows].tolist(),
                cells.gpus_reporting[rows].tolist(),
                cells.gpus_expected[rows].tolist(),
                cells.power_watts[rows].tolist(),
                cells.utilization_ratio[rows].tolist(),
                strict=True,
            ),
            8,
        ),
    )


def write_node_contact(live: LiveState, rows: Sequence[int]) -> None:
    """Heartbeat and exporter of these nodes, where a health row exists."""
    _execute(
        """
        UPDATE fleet_nodehealth h SET heartbeat_at = to_timestamp(u.heartbeat), exporter_up = u.up = 1, exporter_up_at = to_timestamp(u.up_at)
        FROM unnest(%s::bigint[], %s::float8[], %s::float8[], %s::float8[]) AS u(id, heartbeat, up, up_at)
        WHERE h.node_id = u.id
        """,
        _columns(
            zip(live.node_id[rows].tolist(), live.node_heartbeat[rows].tolist(), live.node_up[rows].tolist(), live.node_up_time[rows].tolist(), strict=True), 4
        ),
    )


_GONE = (
    # kind, health table, its key, parent table, object key, is gone, why
    (
        "gpu",
        "fleet_gpuhealth",
        "gpu_id",
        "fleet_gpu",
        "p.uuid",
        "p.presence = 'retired'",
        "CASE WHEN p.replaced_by_id IS NULL THEN 'GPU retired' ELSE 'GPU replaced' END",
    ),
    ("node", "fleet_nodehealth", "node_id", "fleet_node", "p.id::text", "p.retired_at IS NOT NULL", "'Node retired'"),
)


def retire_gone(now: datetime) -> int:
    """GPUs and nodes that were retired become unknown, and what was open about them ends. Returns how many changed their state."""
    changed = 0
    with connection.cursor() as cursor:
        for kind, table, pk, parent, key, gone, because in _GONE:
            cursor.execute(
                f"""
                WITH left_now AS (
                    UPDATE {table} h SET state = 'unknown', cause = 'retired', why = {because}, since = greatest(old.since, coalesce(p.retired_at, %s))
                    FROM {parent} p JOIN {table} old ON old.{pk} = p.id
                    WHERE h.{pk} = p.id AND {gone} AND old.cause <> 'retired'
                    RETURNING {key} AS object_key, old.state AS from_state, h.since, h.why
                )
                INSERT INTO fleet_healthtransition (kind, object_key, site_id, from_state, to_state, cause, why, at)
                SELECT %s, object_key, NULL, from_state, 'unknown', 'retired', why, since FROM left_now WHERE from_state <> 'unknown'
                """,  # noqa: S608 - names are ours
                [now, kind],
            )
            changed += cursor.rowcount
            cursor.execute(
                f"""
                UPDATE fleet_finding f SET until = greatest(f.since, %s), ended_because = {because}
                FROM {parent} p WHERE f.kind = %s AND f.until IS NULL AND f.object_key = {key} AND {gone}
                """,  # noqa: S608
                [now, kind],
            )
    return changed


def as_datetime(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def health_of_evidence(evidence: Mapping[str, Any]) -> tuple[str, float | None]:
    """(effect on the state, recovery seconds) that `_evidence` put there; a degradation with the default hold when it says nothing."""
    kept = evidence.get("health") or {}
    return kept.get("effect", "degraded"), kept.get("recover_seconds")
