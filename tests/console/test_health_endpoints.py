"""`/healthz`, `/readyz` and `/metrics`."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.cache import ForgivingRedisCache
from console.tokens import issue_token
from fleet.models import DataQuality, HealthState, SiteHealth
from script.servers import free_port
from tests.builders import T0, make_site, make_user

pytestmark = pytest.mark.django_db


def _bearer(*scopes: str) -> dict[str, str]:
    now = timezone.now()
    _, secret = issue_token(user=make_user(role="viewer"), name="t", scopes=scopes, expires_at=now + timedelta(days=1), now=now)
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
def test_the_process_lives(client: Client, path: str) -> None:
    assert client.get(path).content == b"ok\n"


def test_ready_says_each_part(client: Client) -> None:
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]) == (200, {"database": "ok", "migrations": "ok", "redis": "ok"})


def test_not_ready_without_redis(client: Client, settings: Settings) -> None:
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["redis"]) == (503, "does not answer")


def test_metrics_need_their_scope(client: Client) -> None:
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer mh_nobody"}).status_code == 401
    assert client.get("/metrics", headers=_bearer("read:sites")).status_code == 403


def test_metrics_of_the_fleet(client: Client) -> None:
    SiteHealth.objects.create(site=make_site(), state=HealthState.UNKNOWN, since=T0)
    make_site()  # has never reported
    DataQuality.objects.create(reason="blank", count=7, first_at=T0, last_at=T0)
    text = client.get("/metrics", headers=_bearer("read:metrics")).content.decode()
    assert 'masthead_sites{state="unknown"} 2.0' in text
    assert 'masthead_sites{state="ok"} 0.0' in text
    assert 'masthead_samples_refused_total{reason="blank"} 7.0' in text
    assert "masthead_telemetry_lag_seconds" not in text  # no sample yet: absent, not 0
    assert "masthead_queue_length" in text


def test_metrics_without_redis(client: Client, settings: Settings) -> None:
    headers = _bearer("read:metrics")
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    text = client.get("/metrics", headers=headers).content.decode()
    assert "masthead_redis_up 0.0" in text
    assert "masthead_queue_length" not in text


def test_a_cache_that_is_away_is_an_empty_one(settings: Settings) -> None:
    cache = ForgivingRedisCache(f"redis://127.0.0.1:{free_port()}/0", {})
    assert cache.get("key", 7) == 7
    assert cache.get_many(["key"]) == {}
    assert cache.add("key", 1) is True
    assert cache.delete("key") is False
    cache.set("key", 1)
    assert cache.set_many({"key": 1}) == []


def test_sign_in_works_without_redis(client: Client, settings: Settings) -> None:
    settings.CACHES = {"default": {"BACKEND": "console.cache.ForgivingRedisCache", "LOCATION": f"redis://127.0.0.1:{free_port()}/0"}}
    make_user("ann", role="viewer")
    answer = client.post("/accounts/login/", {"login": "ann", "password": "annann"})
    assert (answer.status_code, answer["Location"]) == (302, "/")
