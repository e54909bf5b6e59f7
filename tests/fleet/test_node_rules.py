"""Documents tell agents what belongs to the operator and whose pods run on the node; a mapping that changes makes them anew."""

from pathlib import Path

import pytest
from pytest_django import Settings

from agent.protocol import DesiredState, LocalRules
from console.tenancy import assign_namespaces
from fleet.control import desired_state, signing
from fleet.control.node_rules import rules_of
from fleet.models import DesiredDocument, Gpu, Workload
from tenants.models import NamespaceMapping
from tests.builders import T0, make_gpu, make_node, make_phy_gpu, make_tenant
from tests.fleet.command_world import make_agent

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def world(tmp_path: Path, settings: Settings) -> None:
    signing.create_key_file(tmp_path / "signing.pem")
    settings.SIGNING_KEY_FILE = str(tmp_path / "signing.pem")
    settings.OPERATOR_NAMESPACES = ["ran-phy", "kube-system"]
    settings.OPERATOR_SERVICE_ACCOUNTS = ["tools/backup"]


def runs(gpu: Gpu, namespace: str, tenant: str, pod: str = "p", *, phy: bool = False) -> Workload:
    part = gpu.slices.filter(purpose="phy" if phy else "ai").first() if gpu.mig_enabled else None
    return Workload.objects.create(
        gpu=gpu, slice=part, namespace=namespace, pod=pod, sharing="mig" if part else "whole", tenant_key=tenant, started_at=T0, last_seen_at=T0
    )


def owners(rules: LocalRules) -> dict[str, str]:
    return {rule.namespace: rule.tenant for rule in rules.workloads}


def test_operators_and_owners_by_node() -> None:
    gpu, other = make_phy_gpu(), make_gpu()
    runs(gpu, "acme-vision", "acme")
    runs(gpu, "acme-vision", "acme", "q")
    runs(gpu, "globex", "globex")
    runs(gpu, "nobodys", "")
    runs(gpu, "l1", "acme", phy=True)
    runs(gpu, "kube-system", "acme", "stolen")
    rules = rules_of([gpu.node_id, other.node_id])
    assert owners(rules[gpu.node_id]) == {"acme-vision": "acme", "globex": "globex"}
    assert rules[gpu.node_id].operator_namespaces == ("kube-system", "ran-phy")
    assert rules[gpu.node_id].is_operators("tools", "backup")
    assert owners(rules[other.node_id]) == {}


def test_a_mapping_that_changes_is_told_to_the_agents() -> None:
    node = make_agent(make_node())
    runs(make_gpu(node=node), "acme-vision", "")
    desired_state.refresh_documents(now=T0)
    first = DesiredDocument.objects.filter(node=node).order_by("-version")[0]
    assert owners(DesiredState.from_bytes(bytes(first.body)).rules) == {}
    NamespaceMapping.objects.create(tenant=make_tenant("acme"), namespace="acme-vision")
    assert assign_namespaces(["acme-vision"]) == 1
    desired_state.refresh_documents(now=T0)
    second = DesiredDocument.objects.filter(node=node).order_by("-version")[0]
    assert second.version == first.version + 1
    assert owners(DesiredState.from_bytes(bytes(second.body)).rules) == {"acme-vision": "acme"}
    assert desired_state.refresh_documents(now=T0) == 0, "nothing new is no new document"
