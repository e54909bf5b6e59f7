"""What tests of the audit share: entries, and the owner's hand that tampers with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from django.db import connection

from fleet.control.audit import record
from fleet.models import AuditEntry
from script.servers import OWNER_ROLE
from tests.builders import T0


def act(number: int = 0, **changes: Any) -> AuditEntry:
    return record(**{"actor": "ann", "action": "site.note", "kind": "site", "key": f"S-{number}", "now": T0 + timedelta(seconds=number), **changes})


def acts(count: int) -> list[AuditEntry]:
    return [act(number) for number in range(count)]


@contextmanager
def as_owner() -> Iterator[psycopg.Connection[Any]]:
    """A connection of the database's owner, whom no grant stops. Commits at the end."""
    held = connection.settings_dict
    with psycopg.connect(f"postgresql://{OWNER_ROLE}@{held['HOST']}:{held['PORT']}/{held['NAME']}") as owner:
        yield owner


def tamper(statement: str, *values: Any) -> None:
    with as_owner() as owner:
        changed = owner.execute(statement, values).rowcount
        assert changed, statement
