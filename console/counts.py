"""How many rows match: exact while that is cheap, beyond it an estimate that says so. For pages and the API alike."""

from __future__ import annotations

import json
from typing import Any

from django.db import connection
from django.db.models import QuerySet

EXACT_TO = 10_000


def bounded_count(queryset: QuerySet[Any]) -> tuple[int, bool]:
    """(count, is it estimated): exact up to `EXACT_TO`, beyond that the planner's estimate, never below what was counted."""
    bounded = queryset.order_by().values("pk")[: EXACT_TO + 1]
    exact = bounded.count()
    if exact <= EXACT_TO:
        return exact, False
    sql, parameters = queryset.order_by().values("pk").query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        row = cursor.fetchone()
    plan = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return max(exact, int(plan[0]["Plan"]["Plan Rows"])), True
