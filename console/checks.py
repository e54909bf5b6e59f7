"""Settings that must not stand together. Each finding names the variable and the fix.

Registered as Django checks, so every management command refuses to start; `refuse_unsafe_settings` does the same for the ASGI processes, beat and the worker,
which Django does not check by itself, and looks at the role in the database as well.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from fleet.control.audit_receiver import read_address
from fleet.database_role import role_refusal

_LOOPBACK = {"localhost", "127.0.0.1", "::1", "[::1]", "testserver"}
_ORIGIN = re.compile(r"https?://[^/*\s]+")


def _is_loopback(host: str | None) -> bool:
    return host in _LOOPBACK


def _host_errors() -> Iterator[Error]:
    public = [host for host in settings.ALLOWED_HOSTS if not _is_loopback(host)]
    if any(host == "*" or host.startswith(".") for host in settings.ALLOWED_HOSTS):
        yield Error("MASTHEAD_ALLOWED_HOSTS takes any host name.", hint="List the exact names: MASTHEAD_ALLOWED_HOSTS=masthead.example.com", id="masthead.E001")
    if settings.DEBUG and public:
        yield Error(
            f"MASTHEAD_DEBUG is true while the console answers to {', '.join(public)}: error pages would show its settings.",
            hint="Set MASTHEAD_DEBUG=false, or leave only localhost in MASTHEAD_ALLOWED_HOSTS.",
            id="masthead.E002",
        )
    if settings.INSECURE_HTTP and public:
        yield Error(
            f"MASTHEAD_INSECURE_HTTP is true while the console answers to {', '.join(public)}: passwords would cross the network readable.",
            hint="Set MASTHEAD_INSECURE_HTTP=false and serve https (MASTHEAD_BEHIND_PROXY=true behind a proxy that ends TLS).",
            id="masthead.E003",
        )


def _origin_errors() -> Iterator[Error]:
    for origin in settings.ORIGINS:
        if not _ORIGIN.fullmatch(origin):
            yield Error(f"MASTHEAD_ORIGINS: {origin!r} is not an exact origin.", hint="Write scheme://host or scheme://host:port.", id="masthead.E004")
        elif not settings.INSECURE_HTTP and urlsplit(origin).scheme == "http" and not _is_loopback(urlsplit(origin).hostname):
            yield Error(f"MASTHEAD_ORIGINS: {origin} is plain http while the console asks for https.", hint="Write https:// in the origin.", id="masthead.E005")
    if not settings.ORIGINS:
        yield Error("MASTHEAD_ORIGINS is empty: no page could open its live socket.", hint="Name the console's own address.", id="masthead.E004")


def _gateway_errors() -> Iterator[Error]:
    url = urlsplit(settings.GATEWAY_URL)
    if url.scheme not in {"ws", "wss"} or not url.hostname:
        yield Error(
            f"MASTHEAD_GATEWAY_URL: {settings.GATEWAY_URL!r} is not a ws:// or wss:// address.", hint="wss://gateway.example.com/agent", id="masthead.E006"
        )
    elif url.scheme == "ws" and not _is_loopback(url.hostname):
        yield Error(
            f"MASTHEAD_GATEWAY_URL: agents would dial {url.hostname} without TLS.", hint="Write wss:// and end TLS before the gateway.", id="masthead.E007"
        )


def _signing_key_errors() -> Iterator[Error]:
    if not settings.SIGNING_KEY_FILE:
        return
    path = Path(settings.SIGNING_KEY_FILE)
    try:
        mode = path.stat().st_mode
        path.open("rb").close()
    except OSError as error:
        yield Error(
            f"MASTHEAD_SIGNING_KEY_FILE: cannot read {path}: {error.strerror}.",
            hint="openssl genpkey -algorithm ed25519 -out FILE && chmod 600 FILE; leave the variable unset for the gateway.",
            id="masthead.E008",
        )
        return
    if mode & 0o077:
        yield Error(f"MASTHEAD_SIGNING_KEY_FILE: others may read {path} (mode {mode & 0o777:o}).", hint=f"chmod 600 {path}", id="masthead.E009")


def _receiver_errors() -> Iterator[Error]:
    if not settings.AUDIT_SYSLOG:
        return
    try:
        read_address(settings.AUDIT_SYSLOG)
    except ValueError as error:
        yield Error(f"MASTHEAD_AUDIT_SYSLOG: {error}.", hint="For example tcp://siem.example.com:601", id="masthead.E012")


@register(Tags.security)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    return [*_host_errors(), *_origin_errors(), *_gateway_errors(), *_signing_key_errors(), *_receiver_errors()]


@register(Tags.security, deploy=True)
def check_secret_key(**kwargs: Any) -> list[CheckMessage]:
    if len(settings.SECRET_KEY) >= 50 and len(set(settings.SECRET_KEY)) >= 5:
        return []
    return [
        Error(
            "MASTHEAD_SECRET_KEY is short or simple: sessions could be forged.",
            hint="Make one: python3 -c 'import secrets; print(secrets.token_urlsafe(64))'",
            id="masthead.E010",
        )
    ]


@register(Tags.database)
def check_database_role(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """No process, not even the migrating owner, may run as a role to which row security and grants mean nothing."""
    errors: list[CheckMessage] = []
    for alias in databases or []:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_user FROM pg_roles WHERE rolname = current_user AND (rolsuper OR rolbypassrls)")
            row = cursor.fetchone()
        if row:
            errors.append(
                Error(
                    f"MASTHEAD_DATABASE_URL: the role {row[0]!r} is a superuser or bypasses row security.",
                    hint="Use two plain roles: an owner for setup_database, and the application's.",
                    id="masthead.E011",
                )
            )
    return errors


def refuse_unsafe_settings() -> None:
    """Raise `ImproperlyConfigured` with every problem and its fix, or return."""
    found = [f"{message.msg} {message.hint}" for message in (*check_settings(), *check_secret_key())]
    if refusal := role_refusal():
        found.append(refusal)
    if found:
        raise ImproperlyConfigured("Refusing to start:\n" + "\n".join(f"- {one}" for one in found))
