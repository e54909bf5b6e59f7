"""Unsafe combinations of settings are refused, and the refusal names the variable and the fix."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from pytest_django import Settings

from console.checks import check_secret_key, check_settings, refuse_unsafe_settings
from fleet.database_role import role_refusal
from script.servers import ADMIN_ROLE, OWNER_ROLE

SAFE = {
    "DEBUG": False,
    "INSECURE_HTTP": False,
    "ALLOWED_HOSTS": ["masthead.example"],
    "ORIGINS": ["https://masthead.example"],
    "GATEWAY_URL": "wss://gateway.masthead.example/agent",
    "SIGNING_KEY_FILE": "",
    "SECRET_KEY": "kI8v2Qd7mXw4Zt1bNc6Rf3Yh9Js5Lg0PaEuToVeWiBxDnCyAqMrSzK",
}


def _set(settings: Settings, changes: dict[str, Any]) -> None:
    for name, value in {**SAFE, **changes}.items():
        setattr(settings, name, value)


def test_safe_settings_start(settings: Settings) -> None:
    _set(settings, {})
    refuse_unsafe_settings()


def test_a_demo_on_loopback_starts(settings: Settings) -> None:
    _set(settings, {"INSECURE_HTTP": True, "ALLOWED_HOSTS": ["127.0.0.1"], "ORIGINS": ["http://127.0.0.1:8000"], "GATEWAY_URL": "ws://127.0.0.1:1/agent"})
    refuse_unsafe_settings()


@pytest.mark.parametrize(
    ("changes", "variable", "code"),
    [
        ({"ALLOWED_HOSTS": ["*"]}, "MASTHEAD_ALLOWED_HOSTS", "masthead.E001"),
        ({"ALLOWED_HOSTS": [".example"]}, "MASTHEAD_ALLOWED_HOSTS", "masthead.E001"),
        ({"DEBUG": True}, "MASTHEAD_DEBUG", "masthead.E002"),
        ({"INSECURE_HTTP": True}, "MASTHEAD_INSECURE_HTTP", "masthead.E003"),
        ({"ORIGINS": ["https://*.example"]}, "MASTHEAD_ORIGINS", "masthead.E004"),
        ({"ORIGINS": ["https://masthead.example/path"]}, "MASTHEAD_ORIGINS", "masthead.E004"),
        ({"ORIGINS": []}, "MASTHEAD_ORIGINS", "masthead.E004"),
        ({"ORIGINS": ["http://masthead.example"]}, "MASTHEAD_ORIGINS", "masthead.E005"),
        ({"GATEWAY_URL": "https://gateway.example"}, "MASTHEAD_GATEWAY_URL", "masthead.E006"),
        ({"GATEWAY_URL": "ws://gateway.example/agent"}, "MASTHEAD_GATEWAY_URL", "masthead.E007"),
        ({"SIGNING_KEY_FILE": "/nowhere/key.pem"}, "MASTHEAD_SIGNING_KEY_FILE", "masthead.E008"),
    ],
)
def test_refused(settings: Settings, changes: dict[str, Any], variable: str, code: str) -> None:
    _set(settings, changes)
    found = [message for message in check_settings() if message.id == code]
    assert found
    assert variable in found[0].msg
    assert found[0].hint
    with pytest.raises(ImproperlyConfigured, match=variable):
        refuse_unsafe_settings()


def test_a_key_that_others_may_read_is_refused(settings: Settings, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("x")
    key.chmod(0o640)
    _set(settings, {"SIGNING_KEY_FILE": str(key)})
    assert [message.id for message in check_settings()] == ["masthead.E009"]
    key.chmod(0o600)
    assert check_settings() == []


@pytest.mark.parametrize("secret", ["short", "a" * 60])
def test_a_weak_secret_is_refused(settings: Settings, secret: str) -> None:
    _set(settings, {"SECRET_KEY": secret})
    assert [message.id for message in check_secret_key()] == ["masthead.E010"]


@pytest.mark.parametrize(
    "command",
    [
        ["uvicorn", "console.asgi:application", "--port=1"],
        ["celery", "-A", "console.celery", "worker", "--pool=solo"],
    ],
)
def test_the_process_itself_does_not_start(command: list[str]) -> None:
    environment = os.environ | {"MASTHEAD_SECRET_KEY": "short"}
    done = subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "MASTHEAD_SECRET_KEY is short or simple" in done.stdout + done.stderr


def _url(*, role: str | None = None, port: int | None = None) -> str:
    held = connection.settings_dict
    return f"postgresql://{role or held['USER']}@{held['HOST']}:{port or held['PORT']}/{held['NAME']}"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "command",
    [
        ["uvicorn", "console.asgi:application", "--port=1"],
        ["uvicorn", "fleet.gateway:application", "--port=1"],
        ["celery", "-A", "console.celery", "worker", "--pool=solo"],
        ["django", "telemetry", "--port=1"],
        ["django", "beat"],
    ],
    ids=["web", "gateway", "worker", "telemetry", "beat"],
)
def test_no_process_runs_as_the_owner_of_the_tables(command: list[str]) -> None:
    strong = "kI8v2Qd7mXw4Zt1bNc6Rf3Yh9Js5Lg0PaEuToVeWiBxDnCyAqMrSzK"
    environment = os.environ | {"MASTHEAD_SECRET_KEY": strong, "MASTHEAD_DATABASE_URL": _url(role=OWNER_ROLE), "DJANGO_SETTINGS_MODULE": "console.settings"}
    done = subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=90)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"MASTHEAD_DATABASE_URL: the role '{OWNER_ROLE}' owns the tables" in said, said[-2000:]
    assert "MASTHEAD_APP_ROLE" in said


@pytest.mark.django_db
def test_the_applications_role_may_and_a_database_that_is_away_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert role_refusal() == ""
    monkeypatch.setitem(connection.settings_dict, "PORT", "9")
    assert role_refusal() == ""


@pytest.mark.django_db
def test_a_superuser_is_refused(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    _set(settings, {})
    monkeypatch.setitem(connection.settings_dict, "USER", ADMIN_ROLE)
    assert "superuser" in role_refusal()
    with pytest.raises(ImproperlyConfigured, match="MASTHEAD_DATABASE_URL"):
        refuse_unsafe_settings()
