"""What tests of pages share: the cast, a signed-in client, rows with health and values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from console.models import User
from fleet.models import Gpu, GpuHealth, GpuReading, HealthState, NodeHealth, Region, Site, SiteHealth, SliceReading
from tests.builders import make_gpu, make_node, make_phy_gpu, make_region, make_site, make_tenant, make_user


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


class Cast:
    """An operator of region `west`, a viewer of it, a lead and an administrator of the fleet, a stranger from region `east`, and a tenant's user."""

    def __init__(self) -> None:
        self.west, self.east = make_region("west"), make_region("east")
        self.operator = make_user("olga", role="operator", region=self.west)
        self.viewer = make_user("vera", role="viewer", region=self.west)
        self.administrator = make_user("adam", role="administrator")
        self.stranger = make_user("stan", role="lead", region=self.east)
        self.tenant_user = make_user("tina", tenant=make_tenant("acme"))

    def client(self, name: str) -> Client:
        return signed_in(getattr(self, name))


def a_site(code: str, region: Region, *, state: str = HealthState.OK, now: datetime | None = None, **health: Any) -> Site:
    """A site with one node of one PHY GPU and one whole GPU, all with health and fresh values."""
    moment = now or timezone.now()
    site = make_site(code, region=region)
    SiteHealth.objects.create(
        site=site, state=state, since=moment - timedelta(hours=2), cause=health.pop("cause", "reporting"), why=health.pop("why", "All reports."),
        **{"last_contact_at": moment, "gpus_reporting": 2, "gpus_expected": 2, "power_watts": 812.0, "gpu_utilization_ratio": 0.42, **health},
    )  # fmt: skip
    node = make_node(f"host-{code.lower()}", site=site)
    NodeHealth.objects.create(node=node, state=state, since=moment, cause="reporting", why="Reports.")
    with_values(make_phy_gpu(node=node), now=moment)
    with_values(make_gpu(node=node, index=1, sku="l40s-48gb"), now=moment)
    return site


def with_values(gpu: Gpu, *, now: datetime, state: str = HealthState.OK, **values: Any) -> Gpu:
    GpuHealth.objects.create(gpu=gpu, state=state, since=now - timedelta(hours=1), cause="reporting", why="Reports.")
    GpuReading.objects.create(
        gpu=gpu, sampled_at=now, **{"gpu_temperature_celsius": 61.0, "sm_clock_hertz": 1.395e9, "power_watts": 406.0, "utilization_ratio": 0.78, **values}
    )
    for row in gpu.slices.all():
        SliceReading.objects.create(gpu=gpu, gpu_instance_id=row.gpu_instance_id, sampled_at=now, engine_active_ratio=0.5, memory_used_bytes=2.0**30)
    return gpu


def text_of(answer: Any) -> str:
    """The body with white space folded, as one reads it."""
    return " ".join(answer.content.decode().split())
