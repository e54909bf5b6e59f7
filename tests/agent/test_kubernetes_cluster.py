"""The Kubernetes backend through the official client, against an API server that answers as cases C20 to C23 say; and that server against kubectl."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.backends.cluster import ClusterError, ClusterErrorCode, EvictionOutcome, Pod
from agent.backends.kubernetes import KubernetesCluster, open_cluster, read_devices
from agent.commands import CORDON_OWNER
from tests.agent.api_server import ApiServer, node_object, pod_object, serve, status_of
from tests.agent.documents import T0, A
from tests.agent.hardware import Hardware
from tests.agent.orders import Node, cancel_of, order

CASES = Path(__file__).parents[1] / "cases"


def case(name: str, file: str = "expect.json") -> Any:
    return json.loads((next(CASES.glob(f"{name}-*")) / file).read_text())


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with serve(ApiServer()) as found:
        yield found


def cluster_of(api: ApiServer, node: str = "gpu-b-04", **options: str) -> KubernetesCluster:
    api.nodes.setdefault(node, node_object(node))
    return open_cluster({"node": node, "url": api.url, **options})


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[Node]]:
    """Nodes to be closed."""
    found: list[Node] = []
    yield found
    for node in found:
        assert node.cluster is not None
        node.cluster.close()
        node.journal.close()


def test_c22_pods_are_read_as_they_are(api: ApiServer, tmp_path: Path, agents: list[Node]) -> None:
    right = case("C22")
    api.add(*(item | {"kind": "Pod"} for item in case("C22", "pods.json")["items"]))
    cluster = cluster_of(api, "gpu-b-03")
    pods = {f"{pod.namespace}/{pod.name}": pod for pod in cluster.pods()}
    assert pods["kube-system/kube-proxy-gpu-b-03"].is_mirror
    assert pods["gpu-mon/dcgm-exporter-x7k2p"].owner_kind == "DaemonSet"
    assert pods["tenant-cedar/web-0"].is_terminating
    assert pods["tenant-amber/cache-5c6d-zzzzz"].has_local_data
    assert pods["tenant-birch/notebook"].owner_kind == ""
    assert pods["tenant-birch/train-x1y2z"].phase == "Succeeded"
    node = Node(tmp_path, Hardware([A]), cluster)
    agents.append(node)
    node.give(order(1))
    assert node.outcome(1) == ("failed", "needs_confirmation")
    assert len(api.requests("POST", "/eviction")) == right["evictions_sent_before_confirmation"]
    assert "unschedulable" not in api.nodes["gpu-b-03"]["spec"], "not even cordoned"
    for name in right["refuse_unless_confirmed"]:
        assert name in node.latest[1].detail
        del api.pods[name]
    node.give(order(2))
    node.until(T0 + 10)
    evicted = {f"{body['metadata']['namespace']}/{body['metadata']['name']}" for body in api.requests("POST", "/eviction")}
    assert evicted == set(right["evict"])
    assert node.latest[2].blocked == (f"{right['wait_only'][0]}: is ending",)
    del api.pods[right["wait_only"][0]]
    node.until(T0 + 20)
    assert node.outcome(2) == ("done", "")
    assert sorted(api.pods) == right["skip"]


def test_c21_each_answer_of_the_eviction_api_is_told_apart_and_the_drain_ends(api: ApiServer, tmp_path: Path, agents: list[Node]) -> None:
    script, right = case("C21", "eviction_api.json"), case("C21")
    api.evictions = script["pods"]
    for name in script["pods"]:
        namespace, _, pod = name.partition("/")
        api.add(pod_object(pod, namespace=namespace))
    node = Node(tmp_path, Hardware([A]), cluster_of(api))
    agents.append(node)
    node.give(order(1, parameters={"deadline_seconds": script["drain_deadline_s"]}))
    assert "tenant-cedar/batch-0: more than one disruption budget matches it" in node.latest[1].blocked, "told at once"
    del api.pods["tenant-cedar/gone-0"]
    asked_at: dict[str, list[float]] = {}
    while not node.latest[1].state.final:
        before = len(api.log)
        node.now = node.due_at
        node.work()
        for _, path, _ in api.log[before:]:
            if path.endswith("/eviction"):
                asked_at.setdefault(path.split("/")[-2], []).append(node.now - T0)
        assert not any("vision-0" in text and "budget" in text for text in node.latest[1].blocked)
    assert node.latest[1].at - T0 == right["ends_by_s"]
    assert node.outcome(1) == ("failed", right["result"])
    assert node.latest[1].progress["gone"] == 3
    blocked = dict(text.split(": ", 1) for text in node.latest[1].blocked)
    assert blocked == {
        "tenant-amber/llm-a-1": f"disruption budget {right['pods']['tenant-amber/llm-a-1'].split(':')[1]}",
        "tenant-cedar/batch-0": "more than one disruption budget matches it",
    }
    assert asked_at["vision-0"][0] >= right["throttle_wait_s_min"]
    assert len(api.requests("DELETE")) == right["forced_deletes"]
    assert api.nodes["gpu-b-04"]["spec"]["unschedulable"] is True
    assert api.nodes["gpu-b-04"]["metadata"]["annotations"] == {"masthead.io/cordoned-by": CORDON_OWNER}


def test_c23_a_pod_is_gone_when_its_name_is_anothers(api: ApiServer, tmp_path: Path, agents: list[Node]) -> None:
    trace, right = case("C23", "trace-1.json"), case("C23")["trace-1"]
    old, new = trace[0]["answer"][0], trace[-1]["answer"]
    api.add(pod_object("web-0", uid=old["uid"], owner="StatefulSet"))
    api.lingers = {"tenant-amber/web-0"}
    node = Node(tmp_path, Hardware([A]), cluster_of(api))
    agents.append(node)
    node.give(order(1))
    node.until(T0 + 8.9)
    assert node.outcome(1) == ("running", "")
    api.add(pod_object("web-0", uid=new["uid"], node=new["nodeName"], owner="StatefulSet"))
    node.until(T0 + right["done_at_s"] + 2)
    assert node.outcome(1) == ("done", "")
    assert [body["deleteOptions"]["preconditions"] for body in api.requests("POST", "/eviction")] == [{"uid": old["uid"]}]
    assert api.pods["tenant-amber/web-0"]["metadata"]["uid"] == new["uid"]


def test_c23_a_pod_that_has_moved_meanwhile_is_not_evicted_there(api: ApiServer) -> None:
    trace, right = case("C23", "trace-2.json"), case("C23")["trace-2"]
    listed, live = trace[0]["answer"][0], trace[-1]["live"]
    api.add(pod_object("web-1", uid=live["uid"], node=live["nodeName"]))
    cluster = cluster_of(api)
    old = Pod(namespace="tenant-amber", name="web-1", uid=listed["uid"], phase="Running")
    assert cluster.evict(old).outcome is EvictionOutcome.GONE
    assert right["evicted_uid"] is None
    cluster.delete(old)
    assert api.pods["tenant-amber/web-1"]["metadata"]["uid"] == live["uid"]
    assert case("C23")["eviction_precondition_uid"] is True
    cluster.close()


@pytest.mark.parametrize(("scenario", "final"), list(case("C20")["final_unschedulable"].items()))
def test_c20_only_our_own_cordon_is_lifted(api: ApiServer, tmp_path: Path, agents: list[Node], scenario: str, final: bool | str) -> None:
    node = Node(tmp_path, Hardware([A]), cluster_of(api))
    agents.append(node)
    if scenario == "admin-first":
        api.set_unschedulable("gpu-b-04", True)
    if scenario != "console-first":
        api.add(pod_object("job"))
        api.evictions = {"tenant-amber/job": [["always", *_BUDGET]]}
    node.give(order(1, parameters={"deadline_seconds": 400}))
    node.until(T0 + 200)
    if scenario == "command-cancelled":
        node.give(cancel_of(1))
    if scenario == "admin-uncordons-midway":
        api.set_unschedulable("gpu-b-04", False)
    node.until(T0 + 900)
    spec, annotations = api.nodes["gpu-b-04"]["spec"], api.nodes["gpu-b-04"]["metadata"]["annotations"]
    if final == "owner_shown_or_false":
        assert (spec["unschedulable"], annotations["masthead.io/cordoned-by"]) == (True, CORDON_OWNER)
        assert node.latest[1].progress["cordoned_by"] == "the console"
        return
    if scenario == "admin-first":
        assert annotations == {}, "it was never ours"
        assert node.latest[1].progress["cordoned_by"] == "somebody else"
    node.give(order(2, "uncordon", not_after=T0 + 7200))
    assert bool(spec.get("unschedulable")) is final
    assert annotations == {}


def test_a_cordon_that_somebody_took_over_is_theirs(api: ApiServer) -> None:
    cluster = cluster_of(api)
    assert cluster.set_cordon("ours").owner == "ours"
    api.set_unschedulable("gpu-b-04", False)
    assert (cluster.cordon().unschedulable, cluster.cordon().mark) == (False, "ours")
    api.set_unschedulable("gpu-b-04", True)
    assert (cluster.cordon().owner, cluster.cordon().mark) == ("", "ours")
    held = cluster.clear_cordon("ours")
    assert (held.unschedulable, held.owner, held.mark) == (True, "", "")
    assert cluster.clear_cordon("ours").unschedulable
    cluster.close()


def test_somebody_who_writes_at_the_same_time_is_not_overwritten(api: ApiServer) -> None:
    cluster = cluster_of(api)
    path = ("PATCH", "/api/v1/nodes/gpu-b-04")
    conflict = [409, {}, status_of(409, "Conflict", "the object has been modified")]
    api.sabotage[path] = [conflict, conflict]
    assert cluster.set_cordon("ours") == cluster.cordon()
    assert cluster.cordon().owner == "ours"
    api.sabotage[path] = [conflict] * 4
    with pytest.raises(ClusterError) as caught:
        cluster.clear_cordon("ours")
    assert caught.value.code is ClusterErrorCode.CONFLICT
    cluster.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ClusterErrorCode.INVALID),
        (401, ClusterErrorCode.NOT_PERMITTED),
        (403, ClusterErrorCode.NOT_PERMITTED),
        (404, ClusterErrorCode.NOT_FOUND),
        (429, ClusterErrorCode.UNAVAILABLE),
        (500, ClusterErrorCode.UNAVAILABLE),
        (503, ClusterErrorCode.UNAVAILABLE),
    ],
)
def test_errors_have_codes_and_are_not_asked_again_by_the_client_itself(api: ApiServer, status: int, code: ClusterErrorCode) -> None:
    cluster = cluster_of(api)
    api.sabotage[("GET", "/api/v1/pods")] = [[status, {"Retry-After": "60"}, status_of(status, "Reason", "words of the server")]] * 5
    with pytest.raises(ClusterError, match="words of the server") as caught:
        cluster.pods()
    assert caught.value.code is code
    assert len(api.log) == 1
    cluster.close()


def test_answers_that_are_none(api: ApiServer) -> None:
    cluster = cluster_of(api)
    api.sabotage[("GET", "/api/v1/pods")] = [[200, {}, ["no", "object"]]]
    with pytest.raises(ClusterError) as caught:
        cluster.pods()
    assert caught.value.code is ClusterErrorCode.UNAVAILABLE
    nobody = open_cluster({"node": "gpu-b-04", "url": "http://127.0.0.1:9"})
    with pytest.raises(ClusterError, match="cannot be asked") as caught:
        nobody.cordon()
    assert caught.value.code is ClusterErrorCode.UNAVAILABLE
    nobody.close()
    cluster.close()


def test_refused_evictions_that_are_no_answer_of_a_budget(api: ApiServer) -> None:
    cluster = cluster_of(api)
    pod = Pod(namespace="tenant-amber", name="web-0", uid="uid-web-0", phase="Running")
    api.add(pod_object("web-0"))
    path = ("POST", "/api/v1/namespaces/tenant-amber/pods/web-0/eviction")
    terminating = status_of(403, "Forbidden", "namespace is being terminated", causes=[{"reason": "NamespaceTerminating"}])
    api.sabotage[path] = [[403, {}, terminating]]
    assert cluster.evict(pod).outcome is EvictionOutcome.EVICTED
    for status, code in ((403, ClusterErrorCode.NOT_PERMITTED), (500, ClusterErrorCode.UNAVAILABLE), (409, ClusterErrorCode.CONFLICT)):
        api.sabotage[path] = [[status, {}, status_of(status, "Reason", "etcdserver: leader changed")]]
        with pytest.raises(ClusterError) as caught:
            cluster.evict(pod)
        assert caught.value.code is code
    api.sabotage[path] = [[429, {}, "no status"]]
    answer = cluster.evict(pod)
    assert (answer.outcome, answer.retry_after_seconds) == (EvictionOutcome.THROTTLED, 0)
    assert cluster.evict(pod, grace_seconds=5).outcome is EvictionOutcome.EVICTED
    assert api.requests("POST", "/eviction")[-1]["deleteOptions"]["gracePeriodSeconds"] == 5
    assert "gracePeriodSeconds" not in api.requests("POST", "/eviction")[0]["deleteOptions"]
    cluster.close()


def test_long_lists_come_in_pages_and_only_of_this_node(api: ApiServer) -> None:
    api.page = 7
    api.add(*(pod_object(f"p{number}") for number in range(20)), pod_object("elsewhere", node="gpu-b-99"))
    cluster = cluster_of(api)
    assert len(cluster.pods()) == 20
    assert len(api.log) == 3
    cluster.close()


def test_a_kill_deletes_past_budgets_with_the_pods_uid(api: ApiServer) -> None:
    api.add(pod_object("web-0"))
    api.evictions = {"tenant-amber/web-0": [["always", *_BUDGET]]}
    cluster = cluster_of(api)
    pod = cluster.pods()[0]
    assert cluster.evict(pod).outcome is EvictionOutcome.BUDGET
    cluster.delete(pod, grace_seconds=10)
    assert api.pods == {}
    assert api.requests("DELETE")[0]["preconditions"] == {"uid": "uid-web-0"}
    cluster.delete(pod)
    cluster.close()


def test_the_kubelets_record_tells_whose_the_gpus_are(tmp_path: Path, api: ApiServer) -> None:
    record = tmp_path / "kubelet_internal_checkpoint"
    entries = [
        {"PodUID": "uid-web-0", "ContainerName": "main", "ResourceName": "nvidia.com/mig-1g.10gb", "DeviceIDs": {"0": ["MIG-1"], "-1": ["MIG-2"]}},
        {"PodUID": "uid-web-0", "ContainerName": "side", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ["GPU-1::3"]},
        {"PodUID": "uid-web-0", "ContainerName": "net", "ResourceName": "intel.com/sriov", "DeviceIDs": {"0": ["0000:3b:02.0"]}},
    ]
    record.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}))
    api.add(pod_object("web-0"), pod_object("web-1"))
    cluster = cluster_of(api, checkpoint=str(record))
    assert {pod.name: pod.gpus for pod in cluster.pods()} == {"web-0": ("GPU-1", "MIG-1", "MIG-2"), "web-1": ()}
    for bad in ("", "[]", '{"Data": {"PodDeviceEntries": [1]}}', '{"Data": null}'):
        record.write_text(bad)
        assert read_devices(record) == {}
    assert read_devices(tmp_path / "none") == {}
    cluster.close()


def test_options_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for options, words in (
        ({"node": "n", "speed": "fast"}, "cluster.speed"),
        ({"url": "http://127.0.0.1:9"}, "cluster.node"),
        ({"node": "n", "kubeconfig": str(tmp_path / "none")}, "cluster:"),
        ({"node": "n", "url": "http://127.0.0.1:9", "token_file": str(tmp_path / "none")}, "cluster:"),
    ):
        with pytest.raises(ClusterError, match=words) as caught:
            open_cluster(options)
        assert caught.value.code is ClusterErrorCode.INVALID


def test_the_token_is_read_anew_as_the_kubelet_renews_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    cluster = open_cluster({"node": "n", "url": "http://127.0.0.1:9", "token_file": str(token)})
    settings = cluster._api.api_client.configuration
    assert settings.auth_settings()["BearerToken"]["value"] == "Bearer first"
    token.write_text("second")
    assert settings.auth_settings()["BearerToken"]["value"] == "Bearer second"
    cluster.close()


_BUDGET = case("C21", "eviction_api.json")["pods"]["tenant-amber/llm-a-0"][0]


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: script/setup installs it")
def test_kubectl_finds_this_api_server_to_be_one(api: ApiServer, tmp_path: Path) -> None:
    api.add(node_object("gpu-b-04"), pod_object("web-0"), pod_object("exporter", owner="DaemonSet"), pod_object("elsewhere", node="gpu-b-99"))
    api.evictions = {"tenant-amber/web-0": [_BUDGET]}

    def kubectl(*arguments: str) -> str:
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["kubectl", f"--server={api.url}", *arguments], capture_output=True, text=True, timeout=30, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    kubectl("cordon", "gpu-b-04")
    assert api.nodes["gpu-b-04"]["spec"]["unschedulable"] is True
    cluster = cluster_of(api)
    assert cluster.set_cordon("ours").owner == "", "an administrator's cordon stays theirs"
    kubectl("uncordon", "gpu-b-04")
    assert not cluster.cordon().unschedulable
    cluster.set_cordon("ours")
    told = kubectl("drain", "gpu-b-04", "--ignore-daemonsets", "--timeout=20s")
    assert "Cannot evict pod as it would violate the pod's disruption budget" in told
    assert sorted(api.pods) == ["tenant-amber/elsewhere", "tenant-amber/exporter"]
    assert cluster.cordon().owner == "ours", "a drain by hand on our cordon does not take it over"
    kubectl("uncordon", "gpu-b-04")
    kubectl("cordon", "gpu-b-04")
    assert cluster.clear_cordon("ours").unschedulable
    cluster.close()
