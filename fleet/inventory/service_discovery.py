"""The fleet's exporters as Prometheus' HTTP service discovery lists them: read from the inventory at each call, so that a failure is never hidden.

A list is complete or it is not given: whoever answers for it must turn any error of the database into "not now", never into a short list.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.models import Node, Region, Sender

# The scrape job's name -> the address of that exporter at a node.
JOBS: Mapping[str, str] = {
    "dcgm": "exporter_address",
    "triton": "triton_address",
    "vllm": "vllm_address",
    "node": "node_exporter_address",
}


class NotListed(LookupError):
    """There is no such job, or no such region in the sender's scope; the text says which."""


@dataclass(frozen=True)
class TargetList:
    """The body of the answer, and a tag that changes with it."""

    body: bytes
    etag: str
    targets: int


def list_targets(sender: Sender, job: str, region: str = "") -> TargetList:
    """Every exporter of `job` in the sender's regions (in one of them when `region` is a slug). Raises `NotListed`, and `django.db.Error` when unreadable.

    One group per node: its address with the labels `region`, `site` (code) and `node` (host name). Two statements whatever the size.
    """
    if job not in JOBS:
        raise NotListed(f"There is no job {job[:40]!r}; there are {', '.join(JOBS)}.")
    address = JOBS[job]
    slugs = {pk: slug for pk, slug in Region.objects.filter(senders=sender).values_list("pk", "slug") if region in ("", slug)}
    if region and not slugs:
        raise NotListed(f"There is no region {region[:40]!r} for this token.")
    nodes = (
        Node.objects.filter(site__region_id__in=slugs, retired_at__isnull=True)
        .exclude(**{address: ""})
        .order_by("pk")
        .values_list("host_name", address, "site__code", "site__region_id")
    )
    groups = [{"targets": [target], "labels": {"region": slugs[region_id], "site": code, "node": host}} for host, target, code, region_id in nodes]
    body = json.dumps(groups, separators=(",", ":")).encode()
    return TargetList(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', len(groups))
