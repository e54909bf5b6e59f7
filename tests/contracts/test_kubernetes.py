"""The shipped manifests are well formed, call commands that exist and give away no more than the agent needs."""

from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).resolve().parent.parent.parent / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [document for path in sorted(MANIFESTS.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())]
AGENT: dict[str, Any] = next(document for document in DOCUMENTS if document["kind"] == "DaemonSet")["spec"]["template"]["spec"]


def test_each_document_says_what_it_is() -> None:
    for document in DOCUMENTS:
        assert document["apiVersion"]
        assert document["metadata"]["name"]


def test_volumes_that_are_mounted_are_declared() -> None:
    declared = {volume["name"] for volume in AGENT["volumes"]}
    for container in (*AGENT["initContainers"], *AGENT["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= declared


def test_the_agent_gets_one_capability_and_of_the_cluster_what_it_uses() -> None:
    assert AGENT["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert AGENT["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert AGENT["automountServiceAccountToken"] is False
    assert "hostNetwork" not in AGENT
    mounts = [{mount["name"] for mount in AGENT[kind][0]["volumeMounts"]} for kind in ("initContainers", "containers")]
    assert [("cluster-access" in found) for found in mounts] == [False, True]
    (role,) = (document for document in DOCUMENTS if document["kind"] == "ClusterRole")
    assert {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]} == {
        "nodes": ["get", "patch"],
        "pods": ["get", "list", "delete"],
        "pods/eviction": ["create"],
    }
