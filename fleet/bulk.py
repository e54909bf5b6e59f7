"""Many rows in one statement: UPDATE … FROM unnest and COPY. Django's `bulk_update` manages a thousand rows a second, which is too slow here."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, models
from psycopg import sql

BATCH = 5000


def update_rows(model: type[models.Model], fields: Sequence[str], objects: Sequence[models.Model]) -> int:
    """Write these fields of these (already changed) objects, one statement per 5,000 rows; returns the rows updated.

    History triggers see each statement once. The caller holds the transaction.
    """
    pk: Any = model._meta.pk
    columns: list[Any] = [model._meta.get_field(name) for name in fields]
    updated = 0
    with connection.cursor() as cursor:
        for first in range(0, len(objects), BATCH):
            batch = objects[first : first + BATCH]
            parts = [pk, *columns]
            statement = sql.SQL("UPDATE {table} AS t SET {sets} FROM unnest({arrays}) AS v({names}) WHERE t.{pk} = v.{pk}").format(
                table=sql.Identifier(model._meta.db_table),
                sets=sql.SQL(", ").join(
                    sql.SQL("{name} = v.{name}{cast}").format(name=sql.Identifier(field.column), cast=sql.SQL("::jsonb" if _is_json(field) else ""))
                    for field in columns
                ),
                arrays=sql.SQL(", ").join(sql.SQL(f"%s::{_array_type(field)}[]") for field in parts),
                names=sql.SQL(", ").join(sql.Identifier(field.column) for field in parts),
                pk=sql.Identifier(pk.column),
            )
            cursor.execute(statement.as_string(cursor.cursor), [[_value(field, each) for each in batch] for field in parts])
            updated += cursor.rowcount
    return updated


def copy_rows(model: type[models.Model], fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """COPY rows (values in the order of `fields`, JSON as Python values) into the model's table; returns how many."""
    columns: list[Any] = [model._meta.get_field(name) for name in fields]
    statement = sql.SQL("COPY {table} ({names}) FROM STDIN").format(
        table=sql.Identifier(model._meta.db_table), names=sql.SQL(", ").join(sql.Identifier(field.column) for field in columns)
    )
    json_at = [number for number, field in enumerate(columns) if _is_json(field)]
    count = 0
    with connection.cursor() as cursor, cursor.cursor.copy(statement) as copy:
        for row in rows:
            values = list(row)
            for number in json_at:
                values[number] = None if values[number] is None else _json(values[number])
            copy.write_row(values)
            count += 1
    return count


def _is_json(field: Any) -> bool:
    return isinstance(field, models.JSONField)


def _array_type(field: Any) -> str:
    if _is_json(field):
        return "text"
    kind = str(field.db_type(connection) if not field.remote_field else field.target_field.rel_db_type(connection))
    return {"bigserial": "bigint", "serial": "integer", "smallserial": "smallint"}.get(kind, kind)


def _value(field: Any, instance: models.Model) -> Any:
    value = getattr(instance, field.attname)
    if _is_json(field):
        return None if value is None else _json(value)
    return field.get_db_prep_save(value, connection)


def _json(value: Any) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False, allow_nan=False)
