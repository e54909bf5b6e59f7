"""Desired state: layered policies to one signed, versioned document per node.

Policies hold on a scope from the whole fleet down to one GPU; the narrower wins, and among equals the later one. Every layer is in the
document, so that an agent out of contact falls back by itself when the narrowest ends. A GPU that carries PHY gets no control of the
whole GPU. A control of the node has "" for its GPU.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import redis
import structlog
from django.db import connection, transaction
from django.db.models import Q

from agent.protocol import Control, DesiredState, Layer, Place, ProtectedSpan, ProtocolError, sign_document
from fleet.control import signing
from fleet.control.limits import BESIDE_PHY, NODE_WIDE
from fleet.control.node_rules import rules_of
from fleet.inventory import protection
from fleet.inventory.mig import WHOLE
from fleet.models import AgentIdentity, DesiredDocument, Gpu, Node, ObjectKind, Policy, ProtectedPlacement
from fleet.stream import connect

log = structlog.get_logger(__name__)

WAKE_KEY = "gateway:wake"
WAKE_MAXLEN = 10_000
# Narrower scopes have the higher rank.
RANK = {ObjectKind.FLEET: 0, ObjectKind.AREA: 1, ObjectKind.REGION: 2, ObjectKind.SITE: 3, ObjectKind.NODE: 4, ObjectKind.GPU: 5}
# An ended policy is looked at once more for so long, should the worker have been away at its end.
LATE = timedelta(days=7)
# Nodes with a control in force, and nodes whose newest document is older than the end of one.
_DUE = """
    SELECT DISTINCT gpu.node_id FROM fleet_policy policy JOIN fleet_gpu gpu ON policy.scope_kind = 'gpu' AND gpu.uuid = policy.scope_key
    WHERE policy.withdrawn_at IS NULL AND (
        policy.ends_at IS NULL OR policy.ends_at > %(now)s
        OR (policy.ends_at > %(late)s AND policy.ends_at > (SELECT max(created_at) FROM fleet_desireddocument WHERE node_id = gpu.node_id))
    )
"""
# Taken with the documents in one transaction: should the worker die, they wait for the next.
_STALE = """
    DELETE FROM fleet_staledocument
    WHERE id IN (SELECT id FROM fleet_staledocument ORDER BY id LIMIT %(most)s FOR UPDATE SKIP LOCKED) RETURNING node_id
"""
# An agent without any document knows neither where it stands nor what is PHY: no switch can hold on its node.
_NEW = """
    SELECT identity.node_id FROM fleet_agentidentity identity WHERE identity.revoked_at IS NULL
    AND NOT EXISTS (SELECT FROM fleet_desireddocument document WHERE document.node_id = identity.node_id) ORDER BY identity.node_id LIMIT %(most)s
"""
_PART, _PARTS = 1000, 10


def _key_of(place: Place, kind: str) -> str:
    """The key under which policies of that kind of scope cover the node."""
    keys: dict[str, str] = {
        ObjectKind.FLEET: "",
        ObjectKind.AREA: place.area,
        ObjectKind.REGION: place.region,
        ObjectKind.SITE: place.site,
        ObjectKind.NODE: place.node,
    }
    return keys[kind]


def compose(node_ids: Iterable[int], *, now: datetime) -> dict[int, DesiredState]:
    """The desired state of each node, without version (0) and time (0). The same number of queries for one node and for many."""
    ids = list(node_ids)
    places = {
        pk: Place(area=area, region=region, site=site, node=str(pk), time_zone=str(time_zone))
        for pk, area, region, site, time_zone in Node.objects.filter(pk__in=ids).values_list(
            "pk", "site__region__area__slug", "site__region__slug", "site__code", "site__time_zone"
        )
    }
    gpus: dict[int, list[str]] = defaultdict(list)
    spans: dict[int, list[ProtectedSpan]] = defaultdict(list)
    held = Gpu.objects.filter(node_id__in=ids).exclude(presence=Gpu.Presence.RETIRED).annotate(lacks_phy=protection.LACKS_PHY).order_by("uuid")
    for node_id, gpu_uuid, lacks_phy in held.values_list("node_id", "uuid", "lacks_phy"):
        gpus[node_id].append(gpu_uuid)
        if lacks_phy:
            spans[node_id].append(ProtectedSpan(gpu_uuid=gpu_uuid, start=WHOLE.start, size=WHOLE.size))
    protected = ProtectedPlacement.objects.filter(gpu__node_id__in=ids).exclude(gpu__presence=Gpu.Presence.RETIRED).order_by("gpu__uuid", "start")
    for node_id, gpu_uuid, start, size in protected.values_list("gpu__node_id", "gpu__uuid", "start", "size"):
        spans[node_id].append(ProtectedSpan(gpu_uuid=gpu_uuid, start=start, size=size))
    for found in spans.values():
        found.sort(key=lambda span: (span.gpu_uuid, span.start))
    rules = rules_of(places)
    policies = _policies_by_scope(places.values(), [gpu_uuid for found in gpus.values() for gpu_uuid in found], now)
    return {
        node_id: DesiredState(
            target_kind=ObjectKind.NODE.value,
            target_key=str(node_id),
            version=0,
            issued_at=0.0,
            not_after=_not_after(controls),
            controls=controls,
            protected=tuple(spans[node_id]),
            place=place,
            rules=rules[node_id],
        )
        for node_id, place in places.items()
        for controls in [_controls(place, gpus[node_id], {span.gpu_uuid for span in spans[node_id]}, policies)]
    }


def _policies_by_scope(places: Iterable[Place], gpu_uuids: list[str], now: datetime) -> Mapping[tuple[str, str], list[Policy]]:
    found = list(places)
    covered = Q(scope_kind=ObjectKind.FLEET) | Q(scope_kind=ObjectKind.GPU, scope_key__in=gpu_uuids)
    for kind in (ObjectKind.AREA, ObjectKind.REGION, ObjectKind.SITE, ObjectKind.NODE):
        covered |= Q(scope_kind=kind, scope_key__in={_key_of(place, kind) for place in found})
    by_scope: dict[tuple[str, str], list[Policy]] = defaultdict(list)
    for policy in Policy.objects.filter(covered, withdrawn_at__isnull=True).filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now)):
        by_scope[(policy.scope_kind, policy.scope_key)].append(policy)
    return by_scope


def _controls(place: Place, gpu_uuids: list[str], carry_phy: set[str], policies: Mapping[tuple[str, str], list[Policy]]) -> tuple[Control, ...]:
    """Those of the node first, then those of each GPU. A GPU that carries PHY has only controls that leave the radio's placements as they are."""
    scopes = [(kind.value, _key_of(place, kind)) for kind in RANK if kind != ObjectKind.GPU]
    covering = [policy for scope in scopes for policy in policies.get(scope, ())]
    controls = _stacks("", [policy for policy in covering if policy.control in NODE_WIDE])
    for gpu_uuid in gpu_uuids:
        found = [policy for policy in [*covering, *policies.get((ObjectKind.GPU.value, gpu_uuid), ())] if policy.control not in NODE_WIDE]
        if gpu_uuid in carry_phy:
            found = [policy for policy in found if policy.control in BESIDE_PHY]
        controls += _stacks(gpu_uuid, found)
    return tuple(controls)


def _stacks(gpu_uuid: str, policies: Iterable[Policy]) -> list[Control]:
    """One stack of layers per control, the narrowest scope first, among equals the later."""
    by_control: dict[str, list[Policy]] = defaultdict(list)
    for policy in policies:
        by_control[policy.control].append(policy)
    controls: list[Control] = []
    for control, found in sorted(by_control.items()):
        found.sort(key=lambda policy: (RANK[ObjectKind(policy.scope_kind)], policy.created_at, policy.pk), reverse=True)
        controls.append(Control(control=control, gpu_uuid=gpu_uuid, layers=tuple(_layer(policy) for policy in found[:20])))
    return controls


def _layer(policy: Policy) -> Layer:
    return Layer(
        parameters=dict(policy.parameters),
        starts_at=policy.starts_at.timestamp(),
        ends_at=policy.ends_at.timestamp() if policy.ends_at else None,
        policy=policy.pk,
        scope=f"{policy.scope_kind} {policy.scope_key}".strip(),
    )


def _not_after(controls: tuple[Control, ...]) -> float | None:
    """A document whose every setting ends says nothing after the last end; one without settings, or with a lasting one, never grows old."""
    ends = [layer.ends_at for control in controls for layer in control.layers]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def issue_documents(node_ids: Iterable[int], *, now: datetime) -> list[DesiredDocument]:
    """Compose, sign and store a new version for every node whose desired state changed; wake the gateways on commit.

    Runs in the caller's transaction, so that a policy and its documents are stored together or not at all.
    Raises `signing.SigningUnavailable` when there is something to sign and no key.
    """
    ids = sorted(set(node_ids))
    with transaction.atomic():
        # One composer per node at a time, so that versions follow what they are made of.
        locked = list(Node.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk").values_list("pk", flat=True))
        newest = newest_documents(locked)
        enrolled = set(AgentIdentity.objects.filter(node_id__in=locked, revoked_at__isnull=True).values_list("node_id", flat=True))
        documents: list[DesiredDocument] = []
        for node_id, state in compose(locked, now=now).items():
            before = newest.get(node_id)
            if before is None and not state.controls and not state.protected and node_id not in enrolled:
                continue
            if before is not None and _content(bytes(before.body)) == state:
                continue
            version = before.version + 1 if before else 1
            signed = sign_document(replace(state, version=version, issued_at=now.timestamp()), signing.signing_key())
            documents.append(
                DesiredDocument(node_id=node_id, version=version, body=signed.body, signature=signed.signature, key_id=signed.key_id, created_at=now)
            )
        DesiredDocument.objects.bulk_create(documents, batch_size=1000)
        if documents:
            woken = [document.node_id for document in documents]
            transaction.on_commit(lambda: wake(woken))
        return documents


def newest_documents(node_ids: Iterable[int]) -> dict[int, DesiredDocument]:
    """The newest document of each node that has one."""
    ids = list(node_ids)
    return {document.node_id: document for document in DesiredDocument.objects.filter(node_id__in=ids).order_by("node_id", "-version").distinct("node_id")}


def _content(body: bytes) -> DesiredState | None:
    """What a stored document says, comparable with `compose`; None when an older release wrote it in another format."""
    try:
        return replace(DesiredState.from_bytes(body), version=0, issued_at=0.0)
    except ProtocolError:
        return None


def refresh_documents(*, now: datetime) -> int:
    """Issue documents that time or the inventory made necessary: an ended policy is taken out, placements kept for PHY are as they are held by now,
    and a node whose agent was enrolled has its first.

    Agents undo ended settings by themselves; this keeps what we hold equal to what they do. Returns how many were issued.
    """
    protection.protect_bare()
    with connection.cursor() as cursor:
        cursor.execute(_DUE, {"now": now, "late": now - LATE})
        due = [node_id for (node_id,) in cursor.fetchall()]
        cursor.execute(_NEW, {"most": _PART})
        due += [node_id for (node_id,) in cursor.fetchall()]
    issued = len(issue_documents(due, now=now)) if due else 0
    for _ in range(_PARTS):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_STALE, {"most": _PART})
            stale = [node_id for (node_id,) in cursor.fetchall()]
            issued += len(issue_documents(stale, now=now)) if stale else 0
        if len(stale) < _PART:
            break
    return issued


def wake(node_ids: Iterable[int]) -> None:
    """Tell the gateways that something waits for these nodes. Redis being away loses nothing: they also look by themselves."""
    try:
        pipe = connect().pipeline(transaction=False)
        for node_id in node_ids:
            pipe.xadd(WAKE_KEY, {"n": str(node_id)}, maxlen=WAKE_MAXLEN, approximate=True)
        pipe.execute()
    except (redis.RedisError, OSError) as error:
        log.warning("gateway_wake_dropped", error=str(error))
