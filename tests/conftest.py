"""Fixtures that every test may use."""

import os
from collections.abc import Iterator

import hypothesis
import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from pytest_django import Settings
from pytest_django.plugin import DjangoDbBlocker

from script.servers import APP_ROLE, OWNER_ROLE

# A busy machine is no failure of the code under test.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that drive a browser or several processes run one after the other, in one worker."""
    if item.get_closest_marker("browser") or item.get_closest_marker("processes"):
        item.add_marker(pytest.mark.xdist_group("heavy"))


@pytest.fixture(scope="session")
def django_db_setup(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Create the test database as the owner, migrate it, and let every test run as the application role."""
    config = settings.DATABASES["default"]
    name = f"test_masthead_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    admin = f"postgresql://{OWNER_ROLE}@{config['HOST']}:{config['PORT']}/postgres"
    with psycopg.connect(admin, autocommit=True) as owner:
        owner.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        owner.execute(f'CREATE DATABASE "{name}"')
    with django_db_blocker.unblock():
        connection.close()
        connection.settings_dict.update(NAME=name, USER=OWNER_ROLE)
        call_command("setup_database", allow_truncate=True, verbosity=0)
        connection.close()
        connection.settings_dict.update(NAME=name, USER=APP_ROLE)
    yield
    with django_db_blocker.unblock():
        connection.close()
    # Worker threads of asynchronous tests leave connections behind; only their own role may end them.
    with psycopg.connect(f"postgresql://{APP_ROLE}@{config['HOST']}:{config['PORT']}/postgres", autocommit=True) as app:
        app.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename = current_user", [name])
    with psycopg.connect(admin, autocommit=True) as owner:
        owner.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(autouse=True)
def quick_passwords(settings: Settings) -> None:
    """scrypt is slow by design; a test makes a handful of users."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
