"""Drain and evict: what they touch, what they wait for, what blocks them; ended by a cancel, an uncordon by hand or a deadline, never by force."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.backends.cluster import ClusterError, ClusterErrorCode, Eviction, EvictionOutcome, Pod
from agent.commands import CORDON_OWNER
from agent.phy import Phy
from agent.protocol import InventoryReport, ProtectedSpan, SliceFacts
from tests.agent.documents import T0, A
from tests.agent.hardware import Hardware
from tests.agent.node_cluster import NodeCluster, pod
from tests.agent.orders import Node, cancel_of, order, phy

CASES = Path(__file__).parents[1] / "cases"
BUDGET = Eviction(EvictionOutcome.BUDGET, "llm-a")


def expected(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((next(CASES.glob(f"{case}-*")) / "expect.json").read_text())
    return found


@pytest.fixture
def cluster() -> NodeCluster:
    return NodeCluster()


@pytest.fixture
def node(tmp_path: Path, cluster: NodeCluster) -> Iterator[Node]:
    found = Node(tmp_path, Hardware([A]), cluster)
    yield found
    found.journal.close()


class Sliced(Hardware):
    """A GPU in MIG mode: positions 0 to 2 are the radio's."""

    def inventory(self, now: float) -> InventoryReport:
        slices = (SliceFacts(7, 0, "1g.10gb", 2, 1, "MIG-protected"), SliceFacts(8, 0, "1g.10gb", 3, 1, "MIG-free"))
        report = super().inventory(now)
        return replace(report, gpus=tuple(replace(gpu, mig_enabled=True, slices=slices) for gpu in report.gpus))


def test_it_cordons_first_in_our_name_and_evicts_the_lowest_priority_first(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod("high", priority=900), pod("low", priority=-5), pod("mid", priority=10)]
    node.give(order(1))
    node.until(T0 + 20)
    assert cluster.acts == [("cordon", CORDON_OWNER), ("evict", "low"), ("evict", "mid"), ("evict", "high")]
    assert node.outcome(1) == ("done", "")
    assert node.latest[1].progress == {"total": 3, "gone": 3, "left": 0, "ending": 0, "phy_left_alone": 0, "cordoned": True, "cordoned_by": "the console"}


def c22_pods() -> list[Pod]:
    """As the Kubernetes backend reads them (tests/agent/test_kubernetes_cluster.py)."""
    found = []
    for item in json.loads((CASES / "C22-drain-pod-filter" / "pods.json").read_text())["items"]:
        meta, spec = item["metadata"], item["spec"]
        found.append(
            pod(
                meta["name"],
                namespace=meta["namespace"],
                uid=meta["uid"],
                owner_kind=next((owner["kind"] for owner in meta.get("ownerReferences", [])), ""),
                phase=item["status"]["phase"],
                is_mirror="kubernetes.io/config.mirror" in meta.get("annotations", {}),
                is_terminating="deletionTimestamp" in meta,
                has_local_data=any("emptyDir" in volume for volume in spec["volumes"]),
            )
        )
    return found


def test_c22_what_would_lose_something_is_named_before_anything_is_touched(node: Node, cluster: NodeCluster) -> None:
    right = expected("C22")
    cluster.running = c22_pods()
    node.give(order(1))
    assert node.outcome(1) == ("failed", "needs_confirmation")
    detail = node.latest[1].detail
    assert all(name in detail for name in right["refuse_unless_confirmed"])
    assert len(cluster.asked) == right["evictions_sent_before_confirmation"]
    assert cluster.acts == []
    node.give(order(2, parameters={"allow_local_data": True}), order(3, parameters={"allow_unmanaged": True}))
    assert node.outcome(2) == node.outcome(3) == ("failed", "needs_confirmation"), "each has its own confirmation"
    assert "notebook" in node.latest[2].detail
    assert "cache-5c6d-zzzzz" not in node.latest[2].detail


def test_c22_mirror_and_daemon_set_pods_are_skipped_and_ending_ones_are_waited_for(node: Node, cluster: NodeCluster) -> None:
    right = expected("C22")
    cluster.running = [found for found in c22_pods() if f"{found.namespace}/{found.name}" not in right["refuse_unless_confirmed"]]
    node.give(order(1))
    node.until(T0 + 20)
    assert [f"tenant-{name}" for name in ("amber/llm-a-7d9f-abcde", "birch/train-x1y2z")] == right["evict"]
    assert sorted(cluster.evicted) == ["llm-a-7d9f-abcde", "train-x1y2z"]
    assert node.outcome(1) == ("running", "")
    assert node.latest[1].blocked == (f"{right['wait_only'][0]}: is ending",)
    cluster.running = [found for found in cluster.running if found.name != "web-0"]
    node.until(T0 + 30)
    assert node.outcome(1) == ("done", "")
    assert sorted(f"{found.namespace}/{found.name}" for found in cluster.running) == right["skip"]


def test_a_pod_that_needs_a_confirmation_and_comes_later_is_named_and_left(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod("web-0")]
    cluster.lingers = {"web-0"}
    node.give(order(1))
    cluster.running = [pod("late", has_local_data=True)]
    node.until(T0 + 30)
    assert node.outcome(1) == ("failed", "partial")
    assert node.latest[1].blocked == ("tenant-amber/late: its emptyDir data would be lost (allow_local_data)",)
    assert cluster.evicted == ["web-0"]


def test_the_radios_pods_stay_whatever_their_labels_say(tmp_path: Path) -> None:
    cluster = NodeCluster(
        [
            pod("l1-0", namespace="ran-phy", labels={"tier": "ai"}),
            pod("l1-1", namespace="shared", service_account="du"),
            pod("l1-2", namespace="shared", gpus=("MIG-protected",)),
            pod("fake", namespace="tenant-amber", labels={"phy": "true", "app": "cuphy"}, gpus=("MIG-free",)),
            pod("vision", namespace="tenant-birch"),
        ]
    )
    node = Node(tmp_path, Sliced([A]), cluster, phy=phy(ProtectedSpan(A, 0, 3), namespaces=("ran-phy",), accounts=("shared/du",)))
    node.give(order(1))
    node.until(T0 + 10)
    assert node.outcome(1) == ("done", "")
    assert sorted(cluster.evicted) == ["fake", "vision"]
    assert node.latest[1].progress["phy_left_alone"] == 3
    for target, name, namespace in ((2, "l1-0", "ran-phy"), (3, "l1-1", "shared"), (4, "l1-2", "shared")):
        node.give(order(target, "evict", parameters={"namespace": namespace, "pod": name, "uid": f"uid-{name}"}))
        assert node.outcome(target) == ("failed", "phy")
    assert sorted(cluster.evicted) == ["fake", "vision"]
    node.journal.close()


def test_without_a_document_nobody_knows_what_is_the_radios(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod("vision")]
    node.phy = Phy.of(None)
    node.give(order(1), order(2, "evict", parameters={"namespace": "tenant-amber", "pod": "vision", "uid": "uid-vision"}), order(3, "diagnostics"))
    node.until(T0 + 29)
    assert node.outcome(1) == node.outcome(2) == ("accepted", ""), "a new agent's first document may be on its way"
    assert node.outcome(3) == ("done", "")
    node.until(T0 + 31)
    assert node.outcome(1) == node.outcome(2) == ("failed", "phy")
    assert cluster.acts == []
    node.phy = Phy.of(None)
    node.give(order(4))
    node.phy = phy()
    node.until(T0 + 40)
    assert node.outcome(4) == ("done", "")


def test_a_cancelled_drain_ends_cancelled_evicts_nothing_more_and_leads_to_nothing(node: Node, cluster: NodeCluster) -> None:
    """Case C27, with the next step of the plan waiting behind it."""
    right = expected("C27")
    cluster.running = [pod("job", namespace="tenant-birch")]
    cluster.answers = {"job": [BUDGET]}
    node.give(order(1))
    node.until(T0 + 240)
    node.give(cancel_of(1))
    assert node.latest[1].state == right["drain"]
    assert "stays cordoned by the console" in node.latest[1].detail
    asked = len(cluster.asked)
    cluster.answers = {}
    node.until(T0 + 4000)
    node.restart()
    node.until(T0 + 8000)
    assert len(cluster.asked) == asked
    assert len(cluster.evicted) == right["evictions"]
    assert node.latest[1].state == "cancelled"


def test_c27_the_same_when_somebody_uncordons_by_hand(node: Node, cluster: NodeCluster) -> None:
    right = expected("C27")
    cluster.running = [pod("job", namespace="tenant-birch")]
    cluster.answers = {"job": [BUDGET]}
    node.give(order(1))
    node.until(T0 + 240)
    cluster.admin_uncordons()
    node.until(T0 + 250)
    assert node.latest[1].state == right["drain"]
    assert node.latest[1].progress["cordoned"] is False
    assert "Somebody uncordoned" in node.latest[1].detail
    assert cluster.evicted == []
    assert (cluster.unschedulable, cluster.mark) == (False, ""), "we do not cordon again, and claim no cordon"


@pytest.mark.parametrize(("case", "final"), list(expected("C20")["final_unschedulable"].items()))
def test_c20_a_cordon_is_its_owners(node: Node, cluster: NodeCluster, case: str, final: bool | str) -> None:
    if case == "admin-first":
        cluster.unschedulable = True
    if case in ("upgrade-fails", "command-cancelled", "admin-uncordons-midway"):
        cluster.running, cluster.answers = [pod("job")], {"job": [BUDGET]}
    node.give(order(1, parameters={"deadline_seconds": 400}))
    node.until(T0 + 200)
    if case == "command-cancelled":
        node.give(cancel_of(1))
    if case == "admin-uncordons-midway":
        cluster.admin_uncordons()
    node.until(T0 + 900)
    if case in ("admin-first", "console-first", "admin-uncordons-midway"):
        node.give(order(2, "uncordon", not_after=T0 + 7200))
        assert cluster.unschedulable is final
        assert node.outcome(2) == (("failed", "blocked") if case == "admin-first" else ("done", ""))
        return
    assert (cluster.unschedulable, cluster.mark) == (True, CORDON_OWNER), f"{final}: the node itself says whose it is"
    assert node.latest[1].progress["cordoned_by"] == "the console"
    assert node.latest[1].state == ("cancelled" if case == "command-cancelled" else "failed")
    node.give(order(2, "uncordon", not_after=T0 + 7200))
    assert (node.outcome(2), cluster.unschedulable) == (("done", ""), False)


def test_c28_delivered_twice_it_drains_once_and_answers_with_the_stored_result(node: Node, cluster: NodeCluster) -> None:
    right = expected("C28")
    cluster.running = [pod("free"), pod("held")]
    cluster.answers = {"held": [BUDGET]}
    drain = order(1, parameters={"deadline_seconds": 4300}, not_after=T0 + 9000)
    executions: set[float] = set()
    for at in (1, 3601, 3602, 7300):
        node.until(T0 + at)
        if at == 3602:
            node.restart()
        node.give(drain)
        entry = node.executor._journal.find(1)
        assert entry is not None
        assert entry.begun_at is not None
        executions.add(entry.begun_at)
    assert len(executions) == right["executions"]
    assert node.latest[1].code == right["result_for_all"]
    assert node.latest[1].at == pytest.approx(T0 + 4301)
    assert node.latest[1].blocked == ("tenant-amber/held: disruption budget llm-a",)
    assert cluster.evicted == ["free"]


def test_an_api_server_that_is_away_is_asked_again_until_the_deadline(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod("vision")]
    cluster.lingers = {"vision"}
    node.give(order(1, parameters={"deadline_seconds": 60}))
    cluster.error = ClusterError(ClusterErrorCode.UNAVAILABLE, "connection refused")
    node.until(T0 + 30)
    assert node.outcome(1) == ("running", "")
    cluster.error = None
    cluster.running = []
    node.until(T0 + 40)
    assert node.outcome(1) == ("done", "")
    cluster.error = ClusterError(ClusterErrorCode.UNAVAILABLE, "connection refused")
    node.give(order(2))
    node.until(T0 + 99)
    assert node.outcome(2) == ("accepted", "")
    node.until(T0 + 106)
    assert node.outcome(2) == ("failed", "cluster")
    assert "connection refused" in node.latest[2].detail


def test_without_kubernetes_a_drain_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path, Hardware([A]), None)
    node.give(order(1))
    assert node.outcome(1) == ("failed", "cluster")
    node.journal.close()


def test_an_eviction_means_one_pod_and_no_other_of_its_name(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod("web-0", uid="new")]
    wanted: dict[str, int | float | str | bool | None] = {"namespace": "tenant-amber", "pod": "web-0", "uid": "old"}
    node.give(order(1, "evict", parameters=wanted))
    assert node.outcome(1) == ("failed", "not_present")
    node.give(order(2, "evict", parameters=wanted | {"uid": "new", "mig_uuid": "MIG-d5ac507a-e4e7-5f4d-b0a5-bc41984b79ac"}))
    assert node.outcome(2) == ("failed", "not_present"), "the slice of the first layout is gone (C19)"
    cluster.answers = {"web-0": [BUDGET, Eviction(EvictionOutcome.THROTTLED, retry_after_seconds=7), Eviction(EvictionOutcome.EVICTED)]}
    node.give(order(3, "evict", parameters=wanted | {"uid": "new"}))
    assert node.latest[3].blocked == ("tenant-amber/web-0: disruption budget llm-a",)
    node.until(T0 + 5)
    assert node.latest[3].blocked == (), "being asked to wait is no budget"
    node.until(T0 + 11.9)
    assert cluster.evicted == []
    node.until(T0 + 15)
    assert (cluster.evicted, node.outcome(3)) == (["web-0"], ("done", ""))
    cluster.running = [pod("proxy", uid="m", is_mirror=True), pod("notebook", uid="n", owner_kind="")]
    node.give(order(4, "evict", parameters=wanted | {"uid": "m"}), order(5, "evict", parameters=wanted | {"uid": "n"}))
    assert (node.outcome(4), node.outcome(5)) == (("failed", "blocked"), ("failed", "needs_confirmation"))
    node.give(order(6, "evict", parameters=wanted | {"uid": "n", "allow_unmanaged": True}))
    assert node.outcome(6) == ("running", "")
    node.until(T0 + 30)
    assert node.outcome(6) == ("done", "")


def test_an_eviction_that_a_budget_forbids_ends_at_its_deadline_and_at_a_cancel(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod("a"), pod("b")]
    cluster.answers = {"a": [BUDGET], "b": [BUDGET]}
    for target, name in ((1, "a"), (2, "b")):
        node.give(order(target, "evict", parameters={"namespace": "tenant-amber", "pod": name, "uid": f"uid-{name}", "deadline_seconds": 30}))
    node.until(T0 + 10)
    node.give(cancel_of(2))
    assert node.outcome(2) == ("cancelled", "cancelled")
    node.until(T0 + 31)
    assert node.outcome(1) == ("failed", "blocked")
    assert cluster.evicted == []


def test_many_blocked_pods_are_named_as_far_as_they_fit(node: Node, cluster: NodeCluster) -> None:
    cluster.running = [pod(f"p{number:03d}" + "x" * 240) for number in range(60)]
    cluster.answers = {found.name: [BUDGET] for found in cluster.running}
    node.give(order(1))
    assert len(node.latest[1].blocked) == 20
    assert node.latest[1].blocked[-1] == "and 41 more"
    assert all(len(text) <= 200 for text in node.latest[1].blocked)
