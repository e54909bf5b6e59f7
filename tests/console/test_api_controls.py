"""Controls, enrolment and key changes through the API: rights, scope, idempotency, refusals by name."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.models import User
from fleet.control.signing import create_key_file
from fleet.models import AgentIdentity, AuditEntry, DesiredDocument, EnrolmentToken, Gpu, KeyChangeRequest, Policy
from tests.builders import make_gpu, make_node, make_phy_gpu, make_region, make_site, make_user


@pytest.fixture(autouse=True)
def signing_key(tmp_path: Path, settings: Settings) -> None:
    create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def post(user: User, path: str, body: Any, *, key: str | None = None) -> Any:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    headers = {"Idempotency-Key": key} if key else {}
    raw = body if isinstance(body, str) else json.dumps(body)
    return client.post(f"/api/v1/{path}", raw, content_type="application/json", headers=headers)


def get(user: User, path: str) -> Any:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client.get(f"/api/v1/{path}")


def clock(**change: Any) -> dict[str, Any]:
    return {"min_mhz": 900, "max_mhz": 1100, "ends_at": (timezone.now() + timedelta(hours=1)).isoformat(), "reason": "heat"} | change


@pytest.mark.django_db
def test_a_clock_range_is_set_once_per_key() -> None:
    gpu, user = make_gpu(), make_user(role="operator")
    body = clock()
    first, again = post(user, f"gpus/{gpu.uuid}/clock-range", body, key="k1"), post(user, f"gpus/{gpu.uuid}/clock-range", body, key="k1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = post(user, f"gpus/{gpu.uuid}/clock-range", body | {"max_mhz": 1200}, key="k1")
    assert (other.status_code, other["Content-Type"]) == (422, "application/problem+json")
    assert (Policy.objects.count(), DesiredDocument.objects.count(), AuditEntry.objects.filter(action="control.set").count()) == (1, 1, 1)
    shown = get(user, f"gpus/{gpu.uuid}/clock-range").json()
    assert (shown["in_force"]["parameters"], shown["observed"], shown["refused_because"]) == ({"min_mhz": 900, "max_mhz": 1100}, None, "")


@pytest.mark.django_db
def test_withdraw() -> None:
    gpu, user = make_gpu(), make_user(role="operator")
    made = post(user, f"gpus/{gpu.uuid}/clock-range", clock(), key="k").json()
    assert post(user, f"controls/{made['id']}/withdraw/", {}).status_code == 400
    done = post(user, f"controls/{made['id']}/withdraw/", {"reason": "cool again"})
    assert (done.status_code, done.json()["withdrawn_by"]) == (200, user.username)
    assert get(user, "controls/?in_force=true").json()["count"] == 0


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"min_mhz": "nan"}, "min_mhz"),
        ({"min_mhz": 900.5}, "min_mhz"),
        ({"max_mhz": 1e30}, "max_mhz"),
        ({"max_mhz": 99999}, "max_mhz"),
        ({"min_mhz": 1200}, "min_mhz"),
        ({"min_mhz": True}, "min_mhz"),
        ({"ends_at": "yesterday"}, "ends_at"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at"),
        ({"reason": " "}, "reason"),
        ({"force": True}, "force"),
    ],
)
def test_bad_values_are_named_and_nothing_is_stored(change: dict[str, Any], field: str) -> None:
    answer = post(make_user(role="operator"), f"gpus/{make_gpu().uuid}/clock-range", clock(**change), key="k")
    assert answer.status_code == 400
    assert field in answer.json()["detail"]
    assert not Policy.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_c38_in_a_control(word: str) -> None:
    raw = json.dumps(clock()).replace("900", word, 1)
    answer = post(make_user(role="operator"), f"gpus/{make_gpu().uuid}/clock-range", raw, key="k")
    assert answer.status_code == 400
    assert "min_mhz" in answer.json()["detail"]


@pytest.mark.django_db
def test_phy_is_refused_with_the_reason() -> None:
    gpu = make_phy_gpu()
    answer = post(make_user(role="administrator"), f"gpus/{gpu.uuid}/clock-range", clock(), key="k")
    assert answer.status_code == 409
    assert "carries PHY at positions 0-2" in answer.json()["detail"]
    assert not Policy.objects.exists()


@pytest.mark.django_db
def test_a_key_is_required() -> None:
    answer = post(make_user(role="operator"), f"gpus/{make_gpu().uuid}/clock-range", clock())
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["detail"]


@pytest.mark.django_db
def test_without_a_signing_key_nothing_is_stored(settings: Settings) -> None:
    settings.SIGNING_KEY_FILE = ""
    answer = post(make_user(role="operator"), f"gpus/{make_gpu().uuid}/clock-range", clock(), key="k")
    assert answer.status_code == 503
    assert not Policy.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db
def test_viewers_and_strangers() -> None:
    gpu = make_gpu()
    refused = post(make_user(role="viewer"), f"gpus/{gpu.uuid}/clock-range", clock(), key="k")
    assert (refused.status_code, "operate" in refused.json()["detail"]) == (403, True)
    stranger = make_user(role="operator", region=make_region())
    foreign, missing = post(stranger, f"gpus/{gpu.uuid}/clock-range", clock(), key="k"), post(stranger, "gpus/GPU-none/clock-range", clock(), key="k")
    assert foreign.status_code == missing.status_code == 404
    assert foreign.json() | {"instance": ""} == missing.json() | {"instance": ""}
    made = post(make_user(role="operator"), f"gpus/{gpu.uuid}/clock-range", clock(), key="k").json()
    assert post(stranger, f"controls/{made['id']}/withdraw/", {"reason": "x"}).status_code == 404
    assert get(stranger, "controls/").json()["count"] == 0


@pytest.mark.django_db(transaction=True)
def test_two_at_once_make_one(settings: Settings) -> None:
    gpu, user = make_gpu(), make_user(role="operator")
    body, answers, gate = clock(), [], threading.Barrier(4)

    def go() -> None:
        gate.wait()
        answers.append(post(user, f"gpus/{gpu.uuid}/clock-range", body, key="same"))
        connection.close()

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Policy.objects.count() == DesiredDocument.objects.count() == 1


# --- enrolment


@pytest.mark.django_db
def test_bundles_are_shown_once_and_all_or_none() -> None:
    region = make_region()
    nodes = [make_node(site=make_site(region=region)) for _ in range(3)]
    other = make_node()
    user = make_user(role="operator", region=region)
    refused = post(user, "nodes/enrolment-bundles", {"nodes": [nodes[0].pk, other.pk]})
    assert refused.status_code == 400
    assert "nodes" in refused.json()["detail"]
    assert not EnrolmentToken.objects.exists()
    issued = post(user, "nodes/enrolment-bundles", {"nodes": [node.pk for node in nodes], "valid_days": 2})
    assert issued.status_code == 201
    assert len({one["bundle"] for one in issued.json()["bundles"]}) == 3
    assert EnrolmentToken.objects.count() == 3
    assert all(one["bundle"] not in str(AuditEntry.objects.values_list("detail", flat=True)) for one in issued.json()["bundles"])
    assert post(make_user(role="viewer"), "nodes/enrolment-bundles", {"nodes": [nodes[0].pk]}).status_code == 403
    assert post(user, "nodes/enrolment-bundles", {"nodes": []}).status_code == 400


@pytest.mark.django_db
def test_a_key_change_is_decided_once() -> None:
    node, user, now = make_node(), make_user(role="operator"), timezone.now()
    AgentIdentity.objects.create(node=node, public_key=b"a" * 32, enrolled_at=now)
    asked = KeyChangeRequest.objects.create(node=node, public_key=b"b" * 32, requested_at=now)
    assert get(user, "key-changes/").json()["results"][0]["host_name"] == node.host_name
    assert post(make_user(role="viewer"), f"key-changes/{asked.pk}/decide/", {"approve": True, "reason": "x"}).status_code == 403
    assert post(make_user(role="operator", region=make_region()), f"key-changes/{asked.pk}/decide/", {"approve": True, "reason": "x"}).status_code == 404
    done = post(user, f"key-changes/{asked.pk}/decide/", {"approve": True, "reason": "new disk"})
    assert (done.status_code, done.json()["approved"]) == (200, True)
    assert bytes(AgentIdentity.objects.get(node=node, revoked_at__isnull=True).public_key) == b"b" * 32
    assert post(user, f"key-changes/{asked.pk}/decide/", {"approve": False, "reason": "x"}).status_code == 409
    revoked = post(user, f"nodes/{node.pk}/revoke-agent", {"reason": "stolen"})
    assert revoked.json() == {"revoked": True}
    assert not AgentIdentity.objects.filter(revoked_at__isnull=True).exists()


@pytest.mark.django_db
def test_a_retired_gpu_is_not_a_target() -> None:
    gpu = make_gpu(presence=Gpu.Presence.RETIRED, retired_at=timezone.now())
    answer = post(make_user(role="operator"), f"gpus/{gpu.uuid}/clock-range", clock(), key="k")
    assert answer.status_code == 409
    assert "target not present" in answer.json()["detail"]
