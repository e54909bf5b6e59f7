"""As whom a process speaks to PostgreSQL: never as a role to which grants and row security mean nothing."""

from __future__ import annotations

import psycopg
from django.db import connections

CONNECT_SECONDS = 5
_ROLE = """
    SELECT current_user, rolsuper OR rolbypassrls, EXISTS (
        SELECT FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace AND pg_has_role(current_user, relowner, 'USAGE'))
    FROM pg_roles WHERE rolname = current_user
"""


def role_refusal() -> str:
    """Why the processes must not run as the role of MASTHEAD_DATABASE_URL, with the fix; "" when they may.

    Also "" while PostgreSQL does not answer: that is no reason not to start, every process waits for it. A connection of its own,
    since ASGI servers load their application inside a running event loop.
    """
    params = {**connections["default"].get_connection_params(), "connect_timeout": CONNECT_SECONDS}
    try:
        with psycopg.connect(**params) as held:
            row = held.execute(_ROLE).fetchone()
    except psycopg.OperationalError:
        return ""
    role, is_unbound, is_owner = tuple(row) if row else ("", False, False)
    if not (is_unbound or is_owner):
        return ""
    what = "is a superuser or bypasses row security" if is_unbound else "owns the tables"
    return f"MASTHEAD_DATABASE_URL: the role {role!r} {what}. Name the application's role (MASTHEAD_APP_ROLE) there; the owner only runs setup_database."
