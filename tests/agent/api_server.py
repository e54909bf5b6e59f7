"""An API server of Kubernetes on loopback that behaves as the cases say: nodes with versions and managers, pods, evictions with scripted answers.

It knows just enough of discovery for `kubectl cordon`, `drain` and `uncordon`. It is no mock of our code: the real clients speak to it over HTTP.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

# [status, headers, body], or ["always", status, headers, body].
Answer = list[Any]
CREATED: Answer = [201, {}, {"kind": "Status", "apiVersion": "v1", "status": "Success"}]
POLICY_VERSIONS = ("v1", "v1beta1")


def status_of(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "details": details,
        "code": code,
    }


def node_object(name: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "annotations": {}, "labels": {}, "managedFields": []},
        "spec": {},
        "status": {},
    }


def pod_object(name: str, *, namespace: str = "tenant-amber", uid: str = "", node: str = "gpu-b-04", owner: str = "ReplicaSet", **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "uid": uid or f"uid-{name}", "resourceVersion": "1"}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": owner, "name": name, "uid": "o", "controller": True}]
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}], "volumes": []} | more.pop("spec", {})
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata | more.pop("metadata", {}), "spec": spec, "status": {"phase": "Running"} | more}


@dataclass
class ApiServer:
    """`evictions` are scripted answers by namespace/name; without one an eviction succeeds and the pod goes, or is terminating if it `lingers`.

    `sabotage` answers a request (method, path) in its place once each. `log` holds (method, path, body) of all requests.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    evictions: dict[str, list[Answer]] = field(default_factory=dict)
    lingers: set[str] = field(default_factory=set)
    sabotage: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    log: list[tuple[str, str, Any]] = field(default_factory=list)
    page: int = 500
    url: str = ""

    def add(self, *objects: dict[str, Any]) -> None:
        for found in objects:
            if found["kind"] == "Node":
                self.nodes[found["metadata"]["name"]] = found
            else:
                self.pods[f"{found['metadata']['namespace']}/{found['metadata']['name']}"] = found

    def requests(self, method: str, ending: str = "") -> list[Any]:
        """Bodies of requests so far."""
        return [body for found, path, body in self.log if found == method and path.endswith(ending)]

    def set_unschedulable(self, name: str, value: bool, manager: str = "kubectl-cordon") -> None:
        """Somebody else cordons or uncordons."""
        self._patch(self.nodes[name], {"spec": {"unschedulable": value or None}}, manager)

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        self.log.append((method, path, body))
        if script := self.sabotage.get((method, path)):
            return script.pop(0)
        parts = path.strip("/").split("/")
        match (method, parts):
            case ("GET", ["api"]):
                return [200, {}, {"kind": "APIVersions", "versions": ["v1"]}]
            case ("GET", ["apis"]):
                return [200, {}, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [self._group()]}]
            case ("GET", ["api", "v1"]):
                return [200, {}, {"kind": "APIResourceList", "groupVersion": "v1", "resources": _CORE}]
            case ("GET", ["apis", "policy", version]) if version in POLICY_VERSIONS:
                return [200, {}, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"policy/{version}", "resources": []}]
            case ("GET", ["apis", "apps", "v1", "namespaces", _, "daemonsets", name]):
                return [200, {}, {"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": {"name": name}}]
            case ("GET", ["api", "v1", "nodes"]):
                return self._list("Node", list(self.nodes.values()), query)
            case ("GET", ["api", "v1", "nodes", name]):
                return self._get(self.nodes, name, "nodes")
            case ("PATCH", ["api", "v1", "nodes", name]):
                return self._patch_node(name, query, body)
            case ("GET", ["api", "v1", "pods"]):
                return self._list("Pod", list(self.pods.values()), query)
            case ("GET", ["api", "v1", "namespaces", namespace, "pods", name]):
                return self._get(self.pods, f"{namespace}/{name}", "pods")
            case ("DELETE", ["api", "v1", "namespaces", namespace, "pods", name]):
                return self._remove(f"{namespace}/{name}", body or {}, scripted=False)
            case ("POST", ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]):
                return self._remove(f"{namespace}/{name}", (body or {}).get("deleteOptions") or {}, scripted=True)
        return [404, {}, status_of(404, "NotFound", f"no {path}")]

    @staticmethod
    def _group() -> dict[str, Any]:
        versions = [{"groupVersion": f"policy/{version}", "version": version} for version in POLICY_VERSIONS]
        return {"name": "policy", "versions": versions, "preferredVersion": versions[0]}

    def _list(self, kind: str, items: list[dict[str, Any]], query: dict[str, list[str]]) -> Answer:
        for selector in query.get("fieldSelector", [""])[0].split(","):
            field_path, _, value = selector.partition("=")
            if field_path == "spec.nodeName":
                items = [item for item in items if item["spec"].get("nodeName") == value]
            elif field_path == "metadata.name":
                items = [item for item in items if item["metadata"]["name"] == value]
        start = int(query.get("continue", ["0"])[0])
        metadata = {"resourceVersion": "9"} | ({"continue": str(start + self.page)} if start + self.page < len(items) else {})
        return [200, {}, {"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata, "items": items[start : start + self.page]}]

    @staticmethod
    def _get(objects: dict[str, dict[str, Any]], key: str, resource: str) -> Answer:
        if key not in objects:
            return [404, {}, status_of(404, "NotFound", f'{resource} "{key}" not found')]
        return [200, {}, objects[key]]

    def _patch_node(self, name: str, query: dict[str, list[str]], patch: dict[str, Any]) -> Answer:
        node = self.nodes[name]
        expected = patch.get("metadata", {}).get("resourceVersion")
        if expected is not None and expected != node["metadata"]["resourceVersion"]:
            return [409, {}, status_of(409, "Conflict", f'Operation cannot be fulfilled on nodes "{name}": the object has been modified')]
        if "dryRun" not in query:
            self._patch(node, patch, query.get("fieldManager", ["kubectl-cordon"])[0])
        return [200, {}, node]

    def _patch(self, node: dict[str, Any], patch: dict[str, Any], manager: str) -> None:
        before = node["spec"].get("unschedulable")
        _merge(node, patch)
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        if node["spec"].get("unschedulable") != before:
            owners = [{"manager": manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}] if node["spec"].get("unschedulable") else []
            node["metadata"]["managedFields"] = owners

    def _remove(self, key: str, options: dict[str, Any], *, scripted: bool) -> Answer:
        if scripted and (script := self.evictions.get(key)):
            answer = script[0][1:] if script[0][0] == "always" else script.pop(0)
            if answer[0] >= 300:
                return list(answer)
        pod = self.pods.get(key)
        if pod is None:
            return [404, {}, status_of(404, "NotFound", f'pods "{key}" not found')]
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, pod["metadata"]["uid"]):
            live = pod["metadata"]["uid"]
            message = f"the UID in the precondition ({wanted}) does not match the UID in record ({live})."
            return [409, {}, status_of(409, "Conflict", f'Operation cannot be fulfilled on pods "{key}": {message}')]
        if key in self.lingers:
            pod["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"
        else:
            del self.pods[key]
        return CREATED


_VERBS = ["get", "list", "patch", "delete", "create"]
_CORE: list[dict[str, Any]] = [
    {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "verbs": _VERBS, "shortNames": ["no"]},
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": _VERBS, "shortNames": ["po"]},
    {"name": "pods/eviction", "singularName": "", "namespaced": True, "group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]},
]


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """RFC 7396."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(name, {}), value)
        else:
            target[name] = value


@contextmanager
def serve(api: ApiServer) -> Iterator[ApiServer]:
    """Serves on a port of its own until the block ends."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body leave in one piece: two would wait for each other's acknowledgement.
        wbufsize = -1

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                status, headers, body = copy.deepcopy(api.answer(self.command, parts.path, parse_qs(parts.query), json.loads(data) if data else None))
            payload = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(payload)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
