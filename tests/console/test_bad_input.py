"""What no form or address of ours holds is refused in words on every page, never answered with a fault."""

import pytest
from django.utils import timezone

from fleet.models import AgentIdentity
from tests.console.pages import Cast, a_site

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.mark.parametrize("path", ["/sites/%00", "/gpus/GPU-%00", "/charts/gpus/%00/power", "/charts/sites/%00/power", "/gpus/%00/clock-range"])
def test_a_nul_in_an_address_finds_nothing(cast: Cast, path: str) -> None:
    client = cast.client("administrator")
    answer = client.post(path) if path.endswith("clock-range") else client.get(path)
    assert answer.status_code == 404


def test_a_nul_in_a_reason_changes_nothing(cast: Cast) -> None:
    node = a_site("WEST-1", cast.west).nodes.get()
    AgentIdentity.objects.create(node=node, public_key=bytes(32), enrolled_at=timezone.now())
    answer = cast.client("operator").post(f"/nodes/{node.pk}/agent/revoke", {"reason": "a\x00b"})
    assert answer.status_code == 400
    assert AgentIdentity.objects.filter(node=node, revoked_at__isnull=True).exists()


@pytest.mark.parametrize("body", [r'{"\ud800": 1}', r'{"name": "\udfff"}', r'{"list_columns": {"\ud800": []}}'])
def test_half_a_surrogate_pair_is_no_text(cast: Cast, body: str) -> None:
    answer = cast.client("viewer").patch("/api/v1/profile", body, content_type="application/json", headers={"If-Match": "*"})
    assert answer.status_code == 400
    assert "surrogate" in answer.json()["detail"]
