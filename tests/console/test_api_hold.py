"""Power caps, MIG layouts and cordons by the API: bounds of the very board, PHY left alone, undone by withdrawing; foreign things do not exist."""

from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from agent.protocol import DesiredState
from console.models import User
from fleet.control import signing
from fleet.models import DesiredDocument, Gpu, Node, ObservedControl, Policy
from tests.builders import T0, make_gpu, make_phy_gpu, make_region, make_user
from tests.console.api_support import call, strict
from tests.fleet.command_world import make_agent

pytestmark = pytest.mark.django_db
LAYOUT = "1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.10gb@3,3g.40gb@4"


@pytest.fixture(autouse=True)
def key(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")


def hold(user: User, target: Gpu | Node, control: str, parameters: Any, *, key: str = "k", scopes: Any = None, **more: Any) -> Any:
    path = f"gpus/{target.uuid}/controls/" if isinstance(target, Gpu) else f"nodes/{target.pk}/controls/"
    body = {"control": control, "parameters": parameters, "reason": "heat", **more}
    return call(user, "POST", path, body, scopes=scopes, **{"Idempotency-Key": key})


def signed(node_id: int) -> dict[tuple[str, str], dict[str, Any]]:
    body = DesiredDocument.objects.filter(node_id=node_id).order_by("-version")[0].body
    return {(one.control, one.gpu_uuid): dict(one.layers[0].parameters) for one in DesiredState.from_bytes(bytes(body)).controls}


def test_a_power_cap_is_signed_shown_and_withdrawn() -> None:
    gpu, user = make_gpu(node=make_agent()), make_user("olga", role="operator")
    done = hold(user, gpu, "power_cap", {"watts": 350.5})
    assert done.status_code == 201, done.content
    assert signed(gpu.node_id) == {("power_cap", gpu.uuid): {"watts": 350.5}}
    assert strict(hold(user, gpu, "power_cap", {"watts": 350.5}))["id"] == strict(done)["id"]
    (shown,) = strict(call(user, "GET", f"gpus/{gpu.uuid}/controls/"))
    assert (shown["control"], shown["state"]) == ("power_cap", "pending")
    assert call(user, "POST", f"controls/{strict(done)['id']}/withdraw/", {"reason": "cool"}).status_code == 200
    assert signed(gpu.node_id) == {}


@pytest.mark.parametrize("watts", [199, 701, 350000, 0, -5, True, "350", None])
def test_a_cap_that_the_board_cannot_have_is_named_with_its_range(watts: Any) -> None:
    """Case C24."""
    answer = hold(make_user(role="operator"), make_gpu(node=make_agent()), "power_cap", {"watts": watts})
    assert answer.status_code == 400
    assert "watts" in strict(answer)["detail"]
    assert Policy.objects.count() == 0


def test_what_the_agent_read_of_the_board_goes_before_the_catalogue() -> None:
    gpu = make_gpu(node=make_agent())
    ObservedControl.objects.create(
        node=gpu.node, gpu_uuid=gpu.uuid, control="power_cap", version=1, state="ended", observed={"min_watts": 300, "max_watts": 500}, at=T0, received_at=T0
    )
    user = make_user(role="operator")
    assert "300..500 W" in strict(hold(user, gpu, "power_cap", {"watts": 250}))["detail"]
    assert hold(user, gpu, "power_cap", {"watts": 500}).status_code == 201


def test_a_gpu_with_phy_takes_a_layout_that_leaves_it_and_no_cap() -> None:
    gpu, user = make_phy_gpu(node=make_agent()), make_user(role="operator")
    refused = hold(user, gpu, "power_cap", {"watts": 400})
    assert (refused.status_code, "carries PHY" in strict(refused)["detail"]) == (409, True)
    assert "PHY" in strict(hold(user, gpu, "mig_layout", {"layout": "3g.40gb@0,3g.40gb@4"}, key="a"))["detail"]
    assert hold(user, gpu, "mig_layout", {"layout": "off"}, key="b").status_code == 400
    done = hold(user, gpu, "mig_layout", {"layout": LAYOUT}, key="c")
    assert done.status_code == 201, done.content
    assert signed(gpu.node_id) == {("mig_layout", gpu.uuid): {"layout": LAYOUT}}


def test_a_cordon_of_a_node() -> None:
    node, user = make_agent(), make_user(role="operator")
    done = hold(user, node, "cordon", {"cordoned": True})
    assert done.status_code == 201, done.content
    assert signed(node.pk) == {("cordon", ""): {"cordoned": True}}
    (shown,) = strict(call(user, "GET", f"nodes/{node.pk}/controls/"))
    assert (shown["control"], shown["state"], shown["in_force"]["created_by"]) == ("cordon", "pending", user.username)
    call(user, "POST", f"controls/{strict(done)['id']}/withdraw/", {"reason": "mended"})
    assert signed(node.pk) == {}


@pytest.mark.parametrize(
    ("control", "parameters"),
    [("explode", {}), ("cordon", {"cordoned": True}), ("power_cap", []), ("power_cap", {"watts": 300, "volts": 1}), ("mig_layout", {"layout": "4g.40gb@4"})],
)
def test_what_cannot_be_held_on_a_gpu(control: str, parameters: Any) -> None:
    answer = hold(make_user(role="operator"), make_gpu(node=make_agent(), mig_enabled=True), control, parameters)
    assert (answer.status_code, Policy.objects.count()) == (400, 0)


def test_who_may() -> None:
    north = make_region("north")
    gpu = make_gpu(node=make_agent())
    assert hold(make_user(role="operator", region=north), gpu, "power_cap", {"watts": 400}).status_code == 404
    assert hold(make_user(role="viewer"), gpu, "power_cap", {"watts": 400}).status_code == 403
    operator = make_user(role="operator")
    assert hold(operator, gpu, "power_cap", {"watts": 400}, scopes=["read:*", "write:gpus"]).status_code == 403
    assert hold(operator, gpu, "power_cap", {"watts": 400}, scopes=["read:*", "write:gpus", "write:controls"]).status_code == 201
    late = hold(operator, gpu, "power_cap", {"watts": 400}, key="z", ends_at=timezone.now().replace(year=2020).isoformat())
    assert (late.status_code, "ends_at" in strict(late)["detail"]) == (400, True)
