"""The application role can do its work and no more."""

import pytest
from django.db import ProgrammingError, connection
from django.utils import timezone

from fleet.models import AuditEntry

pytestmark = pytest.mark.django_db


def test_application_role_is_plain() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolname, rolsuper, rolbypassrls, rolcreatedb FROM pg_roles WHERE rolname = current_user")
        assert cursor.fetchone() == ("masthead_app", False, False, False)
        cursor.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tableowner = current_user")
        assert cursor.fetchone() == (0,)


@pytest.mark.parametrize("statement", ["UPDATE fleet_auditentry SET actor = 'x'", "DELETE FROM fleet_auditentry", "DELETE FROM fleet_siteevent"])
def test_audit_and_history_are_append_only(statement: str) -> None:
    AuditEntry.objects.create(at=timezone.now(), actor="ann", action="test")
    with connection.cursor() as cursor, pytest.raises(ProgrammingError, match="permission denied"):
        cursor.execute(statement)


def test_readings_are_unlogged() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r' ORDER BY relname")
        assert [row[0] for row in cursor.fetchall()] == ["fleet_gpu_reading", "fleet_service_reading", "fleet_slice_reading"]
