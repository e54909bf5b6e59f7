"""`/nodes/<id>`: conditions, GPUs, workloads, topology, the agent's contact."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from fleet.models import AgentConnection, AgentIdentity, KeyChangeRequest, Node, ServiceReading, Workload
from tests.console.pages import Cast, a_site, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def node(cast: Cast) -> Node:
    node = a_site("WEST-1", cast.west).nodes.get()
    node.topology = {
        "devices": ["GPU0", "GPU1", "NIC0"],
        "links": {"GPU0": {"GPU1": "NV18", "NIC0": "PIX"}, "GPU1": {"GPU0": "NV18", "NIC0": "SYS"}, "NIC0": {"GPU0": "PIX", "GPU1": "SYS"}},
        "numa": {"GPU0": 0, "GPU1": 1},
        "nics": {"NIC0": "mlx5_0"},
    }
    node.driver_version = "580.82.07"
    node.save()
    return node


def test_what_the_page_shows(cast: Cast, node: Node) -> None:
    now = timezone.now()
    gpu = node.gpus.get(index=0)
    Workload.objects.create(
        gpu=gpu, slice=gpu.slices.get(start=4), namespace="acme-prod", pod="yolo-1", sharing="mig", tenant_key="acme", started_at=now, last_seen_at=now
    )
    ServiceReading.objects.create(node=node, job="triton", item="yolo", sampled_at=now, values={"requests_total": 12345678.0, "queue_seconds": None})
    page = text_of(cast.client("viewer").get(f"/nodes/{node.pk}"))
    for words in ("580.82.07", "NV18", "mlx5_0", "yolo-1", "Acme", "1g.10gb@4", "never connected", "not enrolled", "12.3 M", "not reported"):
        assert words in page, words


def test_contact_and_enrolment_of_the_agent(cast: Cast, node: Node) -> None:
    now = timezone.now()
    AgentConnection.objects.create(node=node, connected=True, connected_at=now - timedelta(hours=2), heartbeat_at=now)
    AgentIdentity.objects.create(node=node, public_key=b"k" * 32, enrolled_at=now)
    KeyChangeRequest.objects.create(node=node, public_key=b"n" * 32, requested_at=now)
    page = text_of(cast.client("operator").get(f"/nodes/{node.pk}"))
    assert "connected since" in page
    assert "enrolled" in page
    assert "Another key asks to speak for this node" in page
    assert "/settings/agents" in page


def test_a_topology_that_is_odd_breaks_nothing(cast: Cast, node: Node) -> None:
    for odd in ({}, {"devices": ["GPU0"]}, {"devices": ["GPU0", "GPU1"], "links": {"GPU0": {}}}):
        Node.objects.filter(pk=node.pk).update(topology=odd)
        assert cast.client("viewer").get(f"/nodes/{node.pk}").status_code == 200


def test_strangers(cast: Cast, node: Node) -> None:
    assert cast.client("stranger").get(f"/nodes/{node.pk}").status_code == 404
    assert cast.client("tenant_user").get(f"/nodes/{node.pk}").status_code == 404
    assert cast.client("operator").get("/nodes/999999").status_code == 404
    assert Client().get(f"/nodes/{node.pk}").status_code == 302


def test_filters_of_the_agents(cast: Cast, node: Node) -> None:
    client = cast.client("operator")
    AgentConnection.objects.create(node=node, connected=True, connected_at=timezone.now())
    for query, count in (
        ("connected=yes", 1),
        ("connected=no", 0),
        ("enrolled=no", 1),
        ("enrolled=yes", 0),
        ("retired=no", 1),
        ("site=WEST-1", 1),
        ("site=EAST-1", 0),
        ("driver=580.82.07", 1),
    ):
        assert len(client.get(f"/nodes?{query}").context["list"].rows) == count, query
