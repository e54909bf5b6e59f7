"""The demo's seed: the whole of a made-up fleet through the product's own functions, and nothing new the second time."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command
from pytest_django import Settings

from agent.protocol import Bundle
from agent.simulator.config import PortsConfig
from agent.simulator.fleet_plan import FleetPlan, plan_fleet
from console.access import Right, access_of
from console.models import User
from fleet.control import signing
from fleet.models import EnrolmentToken, Gpu, Job, Node, Region, Sender, Site
from fleet.telemetry.senders import verify_token
from script.stack.inventory_file import inventory_rows, place_names
from tenants.models import NamespaceMapping
from tests.builders import T0

pytestmark = pytest.mark.django_db(transaction=True)
PASSWORDS = {name: f"{name}-and-a-password" for name in ("viewer", "operator", "lead", "administrator", "acme", "globex")}


@pytest.fixture
def plan() -> FleetPlan:
    return plan_fleet(areas=1, regions=2, sites=3)


@pytest.fixture
def files(plan: FleetPlan, tmp_path: Path, settings: Settings) -> dict[str, Path]:
    key = tmp_path / "key.pem"
    signing.create_key_file(key)
    settings.SIGNING_KEY_FILE = str(key)
    found = {name: tmp_path / name for name in ("inventory", "accounts", "sender-token", "bundles")}
    found["inventory"].write_text(json.dumps({"rows": inventory_rows(plan, PortsConfig()), "names": place_names(plan)}))
    found["accounts"].write_text(json.dumps(PASSWORDS))
    return found


def _seed(files: dict[str, Path]) -> None:
    call_command("seed_demo", *(f"--{name}={path}" for name, path in files.items()), verbosity=0)


def _bundles(files: dict[str, Path]) -> dict[str, Any]:
    return dict(json.loads(files["bundles"].read_text()))


def test_everything_is_there(plan: FleetPlan, files: dict[str, Path]) -> None:
    _seed(files)
    assert set(Site.objects.values_list("code", flat=True)) == {site.code for site in plan.sites}
    assert set(Gpu.objects.values_list("uuid", flat=True)) == {gpu.uuid for node in plan.nodes for gpu in node.gpus}
    assert dict(Region.objects.values_list("slug", "name")) == {region.slug: region.name for region in plan.regions}
    carrying = {gpu.uuid for gpu in Gpu.objects.prefetch_related("protected_placements") if gpu.carries_phy}
    assert carrying == {gpu.uuid for node in plan.nodes for gpu in node.gpus if gpu.carries_phy}
    node = Node.objects.get(host_name=plan.nodes[0].host_name)
    assert node.exporter_address == f"{plan.nodes[0].address}:9400"


def test_each_account_may_do_what_its_role_says(files: dict[str, Path]) -> None:
    _seed(files)
    for name, password in PASSWORDS.items():
        assert authenticate(None, username=name, password=password)
    rights = {name: access_of(User.objects.get(username=name)) for name in PASSWORDS}
    assert rights["viewer"].may(Right.VIEW)
    assert not rights["viewer"].may(Right.OPERATE)
    assert rights["operator"].may(Right.OPERATE)
    assert not rights["operator"].may(Right.APPROVE)
    assert rights["lead"].may(Right.APPROVE)
    assert rights["administrator"].may(Right.ADMINISTER)
    assert not rights["acme"].is_operator_side
    assert rights["acme"].tenant_keys == {"acme"}
    assert NamespaceMapping.objects.get(namespace="tenant-globex").tenant.key == "globex"


def test_the_sender_and_every_agent_get_what_they_need(plan: FleetPlan, files: dict[str, Path]) -> None:
    _seed(files)
    sender = verify_token(files["sender-token"].read_text(), now=T0)
    assert sender
    assert sender.regions.count() == len(plan.regions)
    assert set(_bundles(files)["texts"]) == {node.host_name for node in plan.nodes}
    assert Bundle.decode(_bundles(files)["texts"][plan.nodes[0].host_name]).console_key == signing.public_key()
    assert {files[name].stat().st_mode & 0o777 for name in ("sender-token", "bundles")} == {0o600}


def test_a_second_start_finds_all_of_it_again(files: dict[str, Path]) -> None:
    _seed(files)
    before = [files[name].read_text() for name in ("sender-token", "bundles")]
    counts = [model._default_manager.count() for model in (Job, EnrolmentToken, Sender, User)]
    _seed(files)
    assert [files[name].read_text() for name in ("sender-token", "bundles")] == before
    assert [model._default_manager.count() for model in (Job, EnrolmentToken, Sender, User)] == counts


def test_new_addresses_and_lost_files_are_mended(plan: FleetPlan, files: dict[str, Path], settings: Settings) -> None:
    _seed(files)
    token = files["sender-token"].read_text()
    files["sender-token"].unlink()
    settings.GATEWAY_URL = "ws://127.0.0.1:9999/agent"
    files["inventory"].write_text(json.dumps({"rows": inventory_rows(plan, PortsConfig(dcgm=9555)), "names": place_names(plan)}))
    _seed(files)
    assert verify_token(files["sender-token"].read_text(), now=T0)
    assert files["sender-token"].read_text() != token
    assert _bundles(files)["gateway_url"] == settings.GATEWAY_URL
    assert Node.objects.get(host_name=plan.nodes[0].host_name).exporter_address == f"{plan.nodes[0].address}:9555"
