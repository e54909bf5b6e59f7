"""Acts become entries in the transaction of what they record, and the application role can only add to them."""

import psycopg
import pytest
import structlog
from django.conf import settings
from django.db import ProgrammingError, connection, transaction

from fleet.control.audit import Act, record, record_many
from fleet.management.commands.setup_database import APPEND_ONLY, grant_rights
from fleet.models import AuditEntry, AuditKind, AuditSeal, ObjectKind
from tests.builders import T0, make_site
from tests.fleet.audit_support import act, as_owner

pytestmark = pytest.mark.django_db


def test_an_act_says_who_what_on_what_why_and_from_where() -> None:
    with structlog.contextvars.bound_contextvars(token="mh_12345678", request_id="r-1", source_address="192.0.2.7"):
        entry = act(key="S-1", reason=" heat ", detail={"window": 3}, before={"name": "Old"}, after={"name": "New"})
    entry.refresh_from_db()
    assert (entry.actor, entry.through, entry.action, entry.kind, entry.object_key, entry.reason, entry.outcome) == (
        "ann",
        "token:mh_12345678",
        "site.note",
        "site",
        "S-1",
        "heat",
        "done",
    )
    assert entry.detail == {"window": 3, "before": {"name": "Old"}, "after": {"name": "New"}}
    assert (entry.request_id, entry.source_address) == ("r-1", "192.0.2.7")
    assert entry.transaction > 0


def test_what_the_caller_says_stands_before_the_request() -> None:
    with structlog.contextvars.bound_contextvars(token="mh_12345678", request_id="r-1", source_address="192.0.2.7"):
        entry = act(through="agent:7", request_id="r-2", source_address="2001:db8::1")
    assert (entry.through, entry.request_id, entry.source_address) == ("agent:7", "r-2", "2001:db8::1")


def test_outside_a_request_nothing_is_made_up() -> None:
    entry = act()
    assert (entry.through, entry.request_id, entry.source_address, entry.detail) == ("", "", None, {})


def test_many_acts_at_once() -> None:
    assert record_many(Act(actor="ann", action="agent.token_issued", at=T0, kind="node", key=str(number)) for number in range(2500)) == 2500
    assert AuditEntry.objects.count() == 2500
    assert AuditEntry.objects.values("transaction").distinct().count() == 1


def test_an_outcome_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="splendid"):
        record(actor="ann", action="x", now=T0, outcome="splendid")
    assert not AuditEntry.objects.exists()


def test_neither_act_nor_entry_stands_alone() -> None:
    with transaction.atomic():
        make_site("S-1")
        act(key="S-1")
        transaction.set_rollback(True)
    assert not AuditEntry.objects.exists()


def test_every_kind_of_object_can_be_acted_on() -> None:
    assert set(ObjectKind.values) < set(AuditKind.values)
    assert max(len(value) for value in AuditKind.values) <= (AuditEntry._meta.get_field("kind").max_length or 0)


@pytest.mark.parametrize("table", ["fleet_auditentry", "fleet_auditseal"])
def test_the_application_can_add_and_read_and_nothing_else(table: str) -> None:
    act()
    AuditSeal.objects.create(number=1, sealed_at=T0, after_id=0, from_transaction=0, entry_ids=[], fingerprints=b"", previous=b"", digest=b"")
    for statement in (
        f"UPDATE {table} SET {'reason' if table.endswith('entry') else 'digest'} = ''",
        f"DELETE FROM {table}",
        f"ALTER TABLE {table} DISABLE TRIGGER ALL",
    ):
        with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    assert (AuditEntry.objects.count(), AuditSeal.objects.count()) == (1, 1)


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_set_up_grants_neither_change_nor_truncation(table: str) -> None:
    """Test databases grant TRUNCATE so that they can be emptied; what set-up grants elsewhere is looked at in a transaction that is undone."""
    with as_owner() as owner:
        tables = [row[0] for row in owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        with owner.cursor() as cursor:
            grant_rights(cursor, settings.APP_ROLE, tables)
        held = {
            right: owner.execute("SELECT has_table_privilege(%s, %s, %s)", [settings.APP_ROLE, table, right]).fetchone()
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "TRIGGER", "REFERENCES")
        }
        owner.rollback()
    assert [right for right, row in held.items() if row and row[0]] == ["SELECT", "INSERT"]


def test_the_application_does_not_own_the_tables() -> None:
    with connection.cursor() as cursor, pytest.raises((ProgrammingError, psycopg.Error)):
        cursor.execute("DROP TABLE fleet_auditseal")
