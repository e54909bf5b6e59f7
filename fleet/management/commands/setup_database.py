"""`manage.py setup_database`: migrate as the owner, then grant the application role what it may do and no more."""

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction
from psycopg import sql

# The application may add to these tables and read them, and nothing else.
APPEND_ONLY = ("fleet_auditentry", "fleet_auditseal", "fleet_healthtransition")
EVENT_SUFFIX = "event"


class Command(BaseCommand):
    help = "Migrate the database and grant the application role its rights. Run as the database's owner."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--allow-truncate", action="store_true", help="Also grant TRUNCATE on all tables (test databases only).")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=options["verbosity"])
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT rolsuper OR rolbypassrls OR pg_has_role(rolname, current_user, 'MEMBER') FROM pg_roles WHERE rolname = %s", [settings.APP_ROLE]
            )
            row = cursor.fetchone()
            if row is None:
                raise CommandError(f"MASTHEAD_APP_ROLE: the role {settings.APP_ROLE!r} does not exist. CREATE ROLE {settings.APP_ROLE} LOGIN PASSWORD '…';")
            if row[0]:
                raise CommandError(
                    f"MASTHEAD_APP_ROLE: {settings.APP_ROLE!r} is a superuser, bypasses row security, or is a member of the owner. Use a plain role."
                )
            # At once: between the grant of everything and what is taken back, nobody may change what is append-only.
            with transaction.atomic():
                grant_rights(cursor, settings.APP_ROLE, connection.introspection.table_names(cursor), allow_truncate=options["allow_truncate"])
        self.stdout.write("The database is set up.")


def grant_rights(cursor: Any, role_name: str, tables: Iterable[str], *, allow_truncate: bool = False) -> None:
    """Give the role what it may do with these tables. What is append-only it may read and add to, and nothing else."""
    role = sql.Identifier(role_name)
    cursor.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
    cursor.execute(sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}").format(role))
    cursor.execute(sql.SQL("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {}").format(role))
    for table in tables:
        cursor.execute(sql.SQL("REVOKE TRUNCATE ON {} FROM {}").format(sql.Identifier(table), role))
        if table in APPEND_ONLY or (table.endswith(EVENT_SUFFIX) and table not in ("fleet_xidevent", "fleet_localevent")):
            cursor.execute(sql.SQL("REVOKE UPDATE, DELETE ON {} FROM {}").format(sql.Identifier(table), role))
        if allow_truncate:
            cursor.execute(sql.SQL("GRANT TRUNCATE ON {} TO {}").format(sql.Identifier(table), role))
