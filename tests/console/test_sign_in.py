"""Sign-in, lock-out, sign-out, password; sessions end where they should; error pages carry a problem id."""

import re
from datetime import timedelta
from typing import Any

import pytest
import redis
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks

from console.models import User
from console.sessions import live_sessions, revoke_sessions
from fleet.stream import ACCESS_KEY
from tests.builders import make_user
from tests.console.pages import signed_in, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_failed_attempts_yet() -> None:
    cache.clear()


def sign_in(client: Client, name: str, password: str) -> Any:
    return client.post("/accounts/login/", {"login": name, "password": password})


def told_to_check() -> list[bytes]:
    """User ids that open sockets were told about, oldest first."""
    entries: Any = redis.Redis.from_url(settings.REDIS_URL).xrange(ACCESS_KEY)
    return [entry[b"u"] for _, entry in entries]


def test_pages_send_a_stranger_to_the_sign_in_and_back() -> None:
    make_user("olga", role="viewer")
    answer = Client().get("/sites?state=down")
    assert answer.status_code == 302
    assert answer["Location"] == "/accounts/login/?next=/sites%3Fstate%3Ddown"
    client = Client()
    there = client.post(answer["Location"], {"login": "olga", "password": "olgaolga", "next": "/sites?state=down"})
    assert there["Location"] == "/sites?state=down"


def test_a_wrong_password_says_so_and_does_not_say_whether_the_name_exists() -> None:
    make_user("olga", role="viewer")
    wrong, unknown = (sign_in(Client(), name, "nonsense") for name in ("olga", "nobody"))
    assert "wrong" in text_of(wrong)

    def without_clock(text: str) -> str:
        return re.sub(r"[0-9-]{10}T[0-9:.]+\+00:00", "now", text)

    assert without_clock(text_of(wrong)).replace("olga", "").split("csrf")[0] == without_clock(text_of(unknown)).replace("nobody", "").split("csrf")[0]


def test_five_wrong_passwords_lock_the_name_for_a_while_even_for_the_right_one() -> None:
    make_user("olga", role="viewer")
    for _ in range(5):
        sign_in(Client(), "olga", "nonsense")
    locked = sign_in(Client(), "olga", "olgaolga")
    assert locked.status_code == 200
    assert "locked" in text_of(locked)


def test_a_switched_off_account_cannot_sign_in() -> None:
    make_user("olga", role="viewer", is_active=False)
    client = Client()
    sign_in(client, "olga", "olgaolga")
    assert client.get("/sites").status_code == 302


@pytest.mark.parametrize("path", ["/accounts/signup/", "/accounts/email/", "/accounts/password/reset/", "/accounts/sessions/"])
def test_allauth_pages_that_are_not_ours_do_not_exist(path: str) -> None:
    assert Client().get(path).status_code == 404


def test_signing_out_needs_a_post_and_tells_open_sockets(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> None:
    user = make_user("olga", role="viewer")
    client = signed_in(user)
    assert client.get("/accounts/logout/").status_code == 200
    assert client.get("/settings").status_code == 200
    with django_capture_on_commit_callbacks(execute=True):
        assert client.post("/accounts/logout/").status_code == 302
    assert client.get("/settings").status_code == 302
    assert str(user.pk).encode() in told_to_check()


def test_a_foreign_origin_and_a_missing_token_are_refused() -> None:
    user = make_user("olga", role="viewer")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    answer = client.post("/settings", {"theme": "dark"}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert "Nothing was changed" in text_of(answer)
    user.refresh_from_db()
    assert user.theme == "system"


def test_a_new_password_ends_the_other_sessions(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> None:
    user = make_user("olga", role="viewer")
    here, there = signed_in(user), signed_in(user)
    for client in (here, there):
        assert client.get("/settings").status_code == 200
    with django_capture_on_commit_callbacks(execute=True):
        answer = here.post("/accounts/password/", {"oldpassword": "olgaolga", "password1": "correct horse battery", "password2": "correct horse battery"})
    assert answer["Location"] == "/settings/sessions"
    assert here.get("/settings").status_code == 200
    assert there.get("/settings").status_code == 302
    assert str(user.pk).encode() in told_to_check()


def test_sessions_are_listed_and_one_or_all_others_can_be_ended() -> None:
    user, other = make_user("olga", role="viewer"), make_user("odd", role="viewer")
    clients = [signed_in(user) for _ in range(3)]
    foreign = signed_in(other)
    for client in [*clients, foreign]:
        client.get("/settings", headers={"User-Agent": "Firefox"})
    assert len(live_sessions(user, now=timezone.now())) == 3
    assert text_of(clients[0].get("/settings/sessions")).count("Firefox") == 2  # this one now has the test client's own agent
    foreign_id = UserSession.objects.get(user=other).pk
    clients[0].post("/settings/sessions/revoke", {"session": foreign_id})
    assert foreign.get("/settings").status_code == 200
    second = UserSession.objects.get(session_key=clients[1].session.session_key)
    clients[0].post("/settings/sessions/revoke", {"session": second.pk})
    assert [client.get("/settings").status_code for client in clients] == [200, 302, 200]
    clients[0].post("/settings/sessions/revoke", {"others": "1"})
    assert [client.get("/settings").status_code for client in clients] == [200, 302, 302]


def test_expired_sessions_are_not_listed() -> None:
    user = make_user("olga", role="viewer")
    signed_in(user).get("/settings")
    assert live_sessions(user, now=timezone.now() + timedelta(days=2)) == []


def test_revoking_marks_the_user_for_sockets_that_missed_the_message() -> None:
    user, now = make_user("olga", role="viewer"), timezone.now()
    signed_in(user).get("/settings")
    assert revoke_sessions(user, now=now) == 1
    assert User.objects.get(pk=user.pk).access_changed_at == now
    assert revoke_sessions(user, now=now) == 0


def test_error_pages_carry_the_problem_id_and_the_api_gets_problem_json() -> None:
    client = signed_in(make_user("olga", role="viewer"))
    page = client.get("/no-such-page")
    assert page.status_code == 404
    assert page.headers["X-Request-ID"] in text_of(page) if "X-Request-ID" in page.headers else "Problem id" in text_of(page)
    problem = client.get("/api/no-such-thing")
    assert problem.status_code == 404
    assert problem.headers["Content-Type"].startswith("application/problem+json")
    assert problem.json()["status"] == 404


def test_pages_forbid_inline_script_and_foreign_frames() -> None:
    policy = Client().get("/accounts/login/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
