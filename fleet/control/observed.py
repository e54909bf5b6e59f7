"""What agents observe of their controls: stored in batches, an older observation never over a newer one; and desired against observed for pages."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.db.models import Max
from psycopg.types.json import Jsonb

from agent.protocol import Observation, ObservedState
from fleet.control.limits import NODE_WIDE
from fleet.models import AgentConnection, DesiredDocument, Gpu, Node, ObjectKind, ObservedControl, Policy
from fleet.stream import publish_notices

# Only the node itself ("") and GPUs that the inventory has on it, and only versions that were issued to it: the rest is not this node's to say.
_UPSERT = """
    INSERT INTO fleet_observedcontrol AS held (node_id, gpu_uuid, control, version, state, observed, detail, at, sequence, received_at)
    SELECT seen.node_id, seen.gpu_uuid, seen.control, seen.version, seen.state, seen.observed, seen.detail, seen.at, seen.sequence, %(now)s
    FROM unnest(%(node_id)s::bigint[], %(gpu_uuid)s::text[], %(control)s::text[], %(version)s::bigint[], %(state)s::text[], %(observed)s::jsonb[],
        %(detail)s::text[], %(at)s::timestamptz[], %(sequence)s::bigint[])
        AS seen (node_id, gpu_uuid, control, version, state, observed, detail, at, sequence)
    LEFT JOIN fleet_gpu gpu ON gpu.uuid = seen.gpu_uuid AND gpu.node_id = seen.node_id
    WHERE (gpu.id IS NOT NULL OR seen.gpu_uuid = '') AND seen.version <= (SELECT max(version) FROM fleet_desireddocument WHERE node_id = seen.node_id)
    ON CONFLICT (node_id, gpu_uuid, control) DO UPDATE SET version = excluded.version, state = excluded.state, observed = excluded.observed,
        detail = excluded.detail, at = excluded.at, sequence = excluded.sequence, received_at = excluded.received_at
    WHERE held.version <= excluded.version AND held.sequence < excluded.sequence
    RETURNING node_id, gpu_uuid, control, state, detail
"""
# A sequence is a time in milliseconds at most so far ahead of ours; further ahead it would shut out everything that follows.
LATEST_SEQUENCE_AHEAD_SECONDS = 400 * 86_400.0


def record_observations(observations: Iterable[tuple[int, Observation]], *, now: datetime) -> int:
    """Store pairs of (node id, observation), the newest of each control and GPU or node, and tell the live pages. Returns how many rows changed."""
    newest: dict[tuple[int, str, str], Observation] = {}
    latest = int((now.timestamp() + LATEST_SEQUENCE_AHEAD_SECONDS) * 1000)
    for node_id, observation in observations:
        key = (node_id, observation.gpu_uuid, observation.control)
        if observation.sequence <= latest and (key not in newest or newest[key].sequence < observation.sequence):
            newest[key] = observation
    if not newest:
        return 0
    rows = sorted(newest.items(), key=lambda item: item[0])
    found = [observation for _, observation in rows]
    held = ObservedControl.objects.filter(node_id__in={key[0] for key, _ in rows}, gpu_uuid__in={key[1] for key, _ in rows})
    said = {(row.node_id, row.gpu_uuid, row.control): (row.state, row.detail) for row in held}
    with connection.cursor() as cursor:
        cursor.execute(
            _UPSERT,
            {
                "now": now,
                "node_id": [key[0] for key, _ in rows],
                "gpu_uuid": [observation.gpu_uuid for observation in found],
                "control": [observation.control for observation in found],
                "version": [observation.version for observation in found],
                "state": [observation.state.value for observation in found],
                "observed": [Jsonb(observation.observed) for observation in found],
                "detail": [observation.detail for observation in found],
                "at": [datetime.fromtimestamp(observation.at, UTC) for observation in found],
                "sequence": [observation.sequence for observation in found],
            },
        )
        stored = {(node_id, gpu_uuid, control): (state, detail) for node_id, gpu_uuid, control, state, detail in cursor.fetchall()}
    _tell_pages({key: news for key, news in stored.items() if said.get(key) != news})
    return len(stored)


def _tell_pages(news: Mapping[tuple[int, str, str], tuple[str, str]]) -> None:
    """Only what is new: an agent repeats each observation once a minute."""
    if not news:
        return
    places = {
        node_id: (site, region_id)
        for node_id, site, region_id in Node.objects.filter(pk__in={node_id for node_id, _, _ in news}).values_list("pk", "site__code", "site__region_id")
    }
    publish_notices(
        {
            "type": "control",
            "site": places[node_id][0],
            "region_id": places[node_id][1],
            "kind": "gpu" if gpu_uuid else "node",
            "key": gpu_uuid or str(node_id),
            "control": control,
            "state": state,
            "detail": detail,
        }
        for (node_id, gpu_uuid, control), (state, detail) in news.items()
        if node_id in places
    )


@dataclass(frozen=True)
class ControlView:
    """Desired against observed of one control on one GPU, for a page or the API.

    `state`: pending (the agent has not answered the newest document yet), applied, drifted, failed, refused, ended, or scheduled.
    `policy` is the one in force (None: nothing is desired now); `observed` is None before the first report.
    `refusal` says why the agent did not take the newest document ("" when it did, or has not answered).
    """

    control: str
    gpu_uuid: str
    policy: Policy | None
    state: str
    observed: ObservedControl | None
    agent_connected: bool
    refusal: str = ""

    @property
    def drifted(self) -> bool:
        return self.state == ObservedControl.State.DRIFTED

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.policy.parameters) if self.policy else {}


def controls_of(gpus: Iterable[Gpu], *, now: datetime) -> dict[str, list[ControlView]]:
    """For each GPU UUID its controls: those in force (the narrowest policy), and those that were and whose end is newest. Four queries."""
    found = list(gpus)
    uuids = [gpu.uuid for gpu in found]
    node_ids = {gpu.node_id for gpu in found}
    contacts = {contact.node_id: contact for contact in AgentConnection.objects.filter(node_id__in=node_ids).only("connected", "refusal")}
    versions = dict(DesiredDocument.objects.filter(node_id__in=node_ids).values_list("node_id").annotate(newest=Max("version")))
    policies: dict[tuple[str, str], Policy] = {}
    for policy in Policy.objects.in_force(now).filter(scope_kind=ObjectKind.GPU, scope_key__in=uuids).select_related("created_by").order_by("created_at", "pk"):
        policies[(policy.scope_key, policy.control)] = policy
    observed = {(row.node_id, row.gpu_uuid, row.control): row for row in ObservedControl.objects.filter(gpu_uuid__in=uuids)}
    views: dict[str, list[ControlView]] = defaultdict(list)
    for gpu in found:
        names = {control for gpu_uuid, control in policies if gpu_uuid == gpu.uuid}
        names |= {control for node_id, gpu_uuid, control in observed if (node_id, gpu_uuid) == (gpu.node_id, gpu.uuid)}
        for control in sorted(names):
            held = policies.get((gpu.uuid, control))
            seen = observed.get((gpu.node_id, gpu.uuid, control))
            state = _state(held, seen, versions.get(gpu.node_id, 0))
            contact = contacts.get(gpu.node_id)
            view = ControlView(control, gpu.uuid, held, state, seen, bool(contact and contact.connected), contact.refusal if contact else "")
            views[gpu.uuid].append(view)
    return dict(views)


def controls_of_node(node: Node, *, now: datetime) -> list[ControlView]:
    """The node's own controls (cordon): those in force on the node itself, and those whose end is newest. Four queries."""
    contact = AgentConnection.objects.filter(node=node).only("connected", "refusal").first()
    newest = DesiredDocument.objects.filter(node=node).aggregate(newest=Max("version"))["newest"] or 0
    in_force = Policy.objects.in_force(now).filter(scope_kind=ObjectKind.NODE, scope_key=str(node.pk), control__in=NODE_WIDE)
    policies = {policy.control: policy for policy in in_force.select_related("created_by").order_by("created_at", "pk")}
    observed = {row.control: row for row in ObservedControl.objects.filter(node=node, gpu_uuid="")}
    return [
        ControlView(
            control,
            "",
            policies.get(control),
            _state(policies.get(control), observed.get(control), newest),
            observed.get(control),
            bool(contact and contact.connected),
            contact.refusal if contact else "",
        )
        for control in sorted({*policies, *observed})
    ]


def _state(policy: Policy | None, seen: ObservedControl | None, newest_version: int) -> str:
    if policy is None:
        # Over for us. The agent's word counts: it may not have heard of a withdrawal yet.
        if seen is None or seen.state == ObservedControl.State.ENDED:
            return ObservedState.ENDED.value
        return "pending"
    if seen is None or seen.version < newest_version or seen.state == ObservedControl.State.ENDED:
        return "pending"
    return str(seen.state)
