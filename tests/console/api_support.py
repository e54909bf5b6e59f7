"""What tests of the API share: a call with a session or a token, and the body read as strict JSON."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.models import User
from console.tokens import issue_token


def call(user: User | None, method: str, path: str, body: Any = None, *, scopes: Any = None, fresh: Any = False, **headers: str) -> Any:
    """With a token of these scopes when they are given, else with the session (`fresh`: just signed in). `body` is JSON, or raw when it is text or bytes."""
    client = Client()
    if user and scopes is None:
        client.force_login(user)
        if fresh:
            freshen(client, user)
    elif user:
        now = timezone.now()
        _, secret = issue_token(user=user, name="t", scopes=scopes or [], expires_at=now + timedelta(days=1), now=now)
        headers["Authorization"] = f"Bearer {secret}"
    raw = body if isinstance(body, str | bytes) else "" if body is None else json.dumps(body)
    return client.generic(method, f"/api/v1/{path}", raw, content_type="application/json", headers=headers)


def strict(answer: Any) -> Any:
    """The body, read as strict JSON."""
    return json.loads(answer.content, parse_constant=lambda word: pytest.fail(f"{word} in the body"))


def freshen(client: Client, user: User) -> None:
    """As after a sign-in by its form: the session remembers when the password was given."""
    session = client.session
    session["account_authentication_methods"] = [{"method": "password", "at": time.time()}]
    session["account_authentication_methods_user"] = str(user.pk)
    session.save()
