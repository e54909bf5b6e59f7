"""Workloads belong to the tenant that their namespace is mapped to; one site's mapping wins over everywhere's."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.tasks import assign_new_workloads, assign_tenants
from console.tenancy import assign_namespaces
from console.tenancy import assign_tenants as assign
from fleet.models import Site, Workload
from tenants.models import NamespaceMapping, Tenant
from tests.builders import T0, make_gpu, make_node, make_site, make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def amber() -> Tenant:
    return make_tenant("amber")


@pytest.fixture
def birch() -> Tenant:
    return make_tenant("birch")


def make_workload(namespace: str, *, site: Site | None = None, **fields: Any) -> Workload:
    gpu = make_gpu(node=make_node(site=site or make_site()))
    return Workload.objects.create(gpu=gpu, namespace=namespace, pod="p", sharing="whole", started_at=T0, last_seen_at=T0, **fields)


def key(workload: Workload) -> str:
    return Workload.objects.get(pk=workload.pk).tenant_key


def test_a_namespace_is_one_tenants(amber: Tenant) -> None:
    NamespaceMapping.objects.create(tenant=amber, namespace="llm")
    mine, nobodys = make_workload("llm"), make_workload("monitoring")
    assign_new_workloads()
    assert (key(mine), key(nobodys)) == ("amber", "")
    assert assign() == 0


def test_the_mapping_of_one_site_wins(amber: Tenant, birch: Tenant) -> None:
    site = make_site()
    NamespaceMapping.objects.create(tenant=amber, namespace="llm")
    NamespaceMapping.objects.create(tenant=birch, namespace="llm", site=site)
    here, elsewhere = make_workload("llm", site=site), make_workload("llm")
    assign_tenants()
    assert (key(here), key(elsewhere)) == ("birch", "amber")


def test_a_changed_mapping_moves_what_runs_and_leaves_what_ended(amber: Tenant, birch: Tenant) -> None:
    running, ended = make_workload("llm", tenant_key="amber"), make_workload("llm", tenant_key="amber", ended_at=T0)
    mapping = NamespaceMapping.objects.create(tenant=birch, namespace="llm")
    assign_new_workloads()
    assert key(running) == "amber"
    assert assign_namespaces(["llm"]) == 1
    assert (key(running), key(ended)) == ("birch", "amber")
    mapping.delete()
    assert assign_namespaces(["other"]) == 0
    assert assign_namespaces(["llm"]) == 1
    assert key(running) == ""


def test_the_same_number_of_statements_for_3_and_for_60(amber: Tenant) -> None:
    counts = []
    for namespace, number in (("few", 3), ("many", 60)):
        NamespaceMapping.objects.create(tenant=amber, namespace=namespace)
        for _ in range(number):
            make_workload(namespace)
        with CaptureQueriesContext(connection) as queries:
            assert assign() == number
        counts.append(len(queries))
    assert counts[0] == counts[1]
