"""Power cap, MIG layout and cordon on their pages: bounds shown and held to, PHY refused with the reason, ended by its button; strangers see nothing."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from console.models import User
from fleet.control import signing
from fleet.models import Policy
from tests.builders import make_gpu, make_phy_gpu, make_region, make_tenant, make_user
from tests.fleet.command_world import make_agent

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_a_power_cap_with_its_bounds() -> None:
    gpu, client = make_gpu(node=make_agent()), signed_in(make_user("olga", role="operator"))
    path = f"/gpus/{gpu.uuid}/hold/power_cap"
    assert "200..700 W" in text(client.get(path))
    body = {"reason": "heat", "ends_at": "", "idempotency_key": "k"}
    refused = client.post(path, {**body, "watts": "701"})
    assert (refused.status_code, Policy.objects.count()) == (422, 0)
    assert "701 W is not within 200..700 W" in text(refused)
    assert client.post(path, {**body, "watts": "350.5"})["Location"] == f"/gpus/{gpu.uuid}"
    policy = Policy.objects.get()
    assert (policy.control, policy.parameters, policy.ends_at) == ("power_cap", {"watts": 350.5}, None)
    page = text(client.get(f"/gpus/{gpu.uuid}"))
    assert "Power cap 350.5 W" in page
    client.post(f"/gpus/{gpu.uuid}/controls/{policy.pk}/withdraw", {})
    policy.refresh_from_db()
    assert policy.withdrawn_at


def test_a_gpu_with_phy_offers_layouts_beside_it_and_no_cap() -> None:
    gpu, client = make_phy_gpu(node=make_agent()), signed_in(make_user(role="operator"))
    assert "carries PHY" in text(client.get(f"/gpus/{gpu.uuid}/hold/power_cap"))
    assert client.post(f"/gpus/{gpu.uuid}/hold/power_cap", {"watts": 300, "reason": "x", "idempotency_key": "k"}).status_code == 409
    path = f"/gpus/{gpu.uuid}/hold/mig_layout"
    layouts = [value for value, _ in client.get(path).context["form"].fields["layout"].choices]
    assert layouts
    assert all(layout.startswith("1g.10gb@0,1g.10gb@1,1g.10gb@2,") for layout in layouts)
    assert client.post(path, {"layout": "3g.40gb@0", "reason": "x", "idempotency_key": "k"}).status_code == 422
    assert client.post(path, {"layout": layouts[0], "reason": "x", "idempotency_key": "k"}).status_code == 302


def test_a_cordon_is_seen_on_the_node_and_ended_there() -> None:
    node, client = make_agent(), signed_in(make_user(role="operator"))
    assert client.post(f"/nodes/{node.pk}/hold/cordon", {"reason": "smell", "ends_at": "", "idempotency_key": "k"})["Location"] == f"/nodes/{node.pk}"
    page = text(client.get(f"/nodes/{node.pk}"))
    assert "waits for the agent" in page
    policy = Policy.objects.get()
    assert f"/nodes/{node.pk}/controls/{policy.pk}/withdraw" in page
    client.post(f"/nodes/{node.pk}/controls/{policy.pk}/withdraw", {"reason": "mended"})
    policy.refresh_from_db()
    assert policy.withdrawn_at


def test_strangers() -> None:
    node = make_agent()
    gpu = make_gpu(node=node)
    paths = [f"/gpus/{gpu.uuid}/hold/power_cap", f"/gpus/{gpu.uuid}/hold/mig_layout", f"/nodes/{node.pk}/hold/cordon"]
    body = {"reason": "x", "watts": 300, "idempotency_key": "k"}
    for user, status in (
        (make_user(tenant=make_tenant()), 404),
        (make_user(role="lead", region=make_region()), 404),
        (make_user(role="viewer"), 403),
    ):
        client = signed_in(user)
        assert {client.get(path).status_code for path in paths} == {status}
        assert {client.post(path, body).status_code for path in paths} == {status}
    assert {signed_in(make_user(role="operator")).get(path).status_code for path in (f"/gpus/{gpu.uuid}/hold/clock", f"/nodes/{node.pk}/hold/reboot")} == {404}
    assert Policy.objects.count() == 0
