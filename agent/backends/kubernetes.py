"""This agent's node in Kubernetes, through the official client. Install `masthead-agent[kubernetes]`.

Options of the `[cluster]` table:
- `node`: the node's name in Kubernetes (left out: the environment's NODE_NAME)
- `kubeconfig`: path of a kubeconfig; left out: the service account of the agent's own pod
- `url`, `token_file`, `ca_file`: an API server named directly, instead of both
- `checkpoint`: the kubelet's record of devices (default /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint), which tells the GPUs of pods

The client is told to retry nothing: waiting, and telling a budget from throttling, is the caller's work.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from agent.backends.cluster import ClusterError, ClusterErrorCode, Cordon, Eviction, EvictionOutcome, Pod

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 15.0
PAGE = 500
OWNER_ANNOTATION = "masthead.io/cordoned-by"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
FIELD_MANAGER = "masthead-agent"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_PATCH_TRIES = 4
_BUDGET_NAME = re.compile(r"disruption budget ([a-z0-9][-.a-z0-9]*)")
_CODES = {
    400: ClusterErrorCode.INVALID,
    401: ClusterErrorCode.NOT_PERMITTED,
    403: ClusterErrorCode.NOT_PERMITTED,
    404: ClusterErrorCode.NOT_FOUND,
    409: ClusterErrorCode.CONFLICT,
    422: ClusterErrorCode.INVALID,
}


class KubernetesCluster:
    def __init__(self, api: client.CoreV1Api, node: str, *, checkpoint: Path = Path(CHECKPOINT)) -> None:
        self._api = api
        self._node = node
        self._checkpoint = checkpoint

    # The node.

    def cordon(self) -> Cordon:
        return _cordon(self._read_node())

    def set_cordon(self, owner: str) -> Cordon:
        def change(node: dict[str, Any]) -> dict[str, Any] | None:
            return None if _cordon(node).unschedulable else {"spec": {"unschedulable": True}, "metadata": {"annotations": {OWNER_ANNOTATION: owner}}}

        return self._change_node(change)

    def clear_cordon(self, owner: str) -> Cordon:
        def change(node: dict[str, Any]) -> dict[str, Any] | None:
            found = _cordon(node)
            if found.mark != owner:
                return None
            unmark: dict[str, Any] = {"metadata": {"annotations": {OWNER_ANNOTATION: None}}}
            return unmark | {"spec": {"unschedulable": None}} if found.owner == owner else unmark

        return self._change_node(change)

    def _read_node(self) -> dict[str, Any]:
        return self._ask(self._api.read_node, self._node)

    def _change_node(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Cordon:
        """Read, judge, write only if nobody wrote meanwhile; again when somebody did."""
        for attempt in range(_PATCH_TRIES):
            node = self._read_node()
            patch = change(node)
            if patch is None:
                return _cordon(node)
            patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"]
            try:
                written = self._ask(self._api.patch_node, self._node, patch, field_manager=FIELD_MANAGER, _content_type="application/merge-patch+json")
            except ClusterError as error:
                if error.code is ClusterErrorCode.CONFLICT and attempt + 1 < _PATCH_TRIES:
                    continue
                raise
            return _cordon(written)
        raise ClusterError(ClusterErrorCode.CONFLICT, f"node {self._node} is being changed by others")

    # Its pods.

    def pods(self) -> tuple[Pod, ...]:
        devices = read_devices(self._checkpoint)
        found: list[Pod] = []
        token: str | None = None
        while True:
            page = self._ask(
                self._api.list_pod_for_all_namespaces, field_selector=f"spec.nodeName={self._node}", limit=PAGE, **({"_continue": token} if token else {})
            )
            found += [_pod(item, devices) for item in page["items"]]
            token = page.get("metadata", {}).get("continue")
            if not token:
                return tuple(found)

    def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> Eviction:
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod.name, namespace=pod.namespace), delete_options=_delete_options(pod, grace_seconds))
        try:
            with _translated():
                self._api.create_namespaced_pod_eviction(pod.name, pod.namespace, body, _preload_content=False, _request_timeout=_TIMEOUT)
        except _Refused as refused:
            return self._judge(pod, refused)
        return Eviction(EvictionOutcome.EVICTED)

    def _judge(self, pod: Pod, refused: _Refused) -> Eviction:
        """What a refusal of the Eviction API means. Raises ClusterError where it is none of its own answers."""
        if refused.status == 404 or (refused.status == 409 and not self._is_there(pod)):
            return Eviction(EvictionOutcome.GONE)
        if refused.status == 429:
            if refused.has_cause("DisruptionBudget") or "disruption budget" in refused.message:
                return Eviction(EvictionOutcome.BUDGET, refused.budget())
            return Eviction(EvictionOutcome.THROTTLED, refused.message, refused.retry_after_seconds())
        if refused.status == 500 and "more than one PodDisruptionBudget" in refused.message:
            return Eviction(EvictionOutcome.MISCONFIGURED, refused.message)
        if refused.status == 403 and refused.has_cause("NamespaceTerminating"):
            # Its namespace is being deleted and the pod with it: there is nothing to ask for, only to wait.
            return Eviction(EvictionOutcome.EVICTED, refused.message)
        raise refused.error()

    def delete(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        try:
            with _translated():
                self._api.delete_namespaced_pod(
                    pod.name, pod.namespace, body=_delete_options(pod, grace_seconds), _preload_content=False, _request_timeout=_TIMEOUT
                )
        except _Refused as refused:
            if refused.status == 404 or (refused.status == 409 and not self._is_there(pod)):
                return
            raise refused.error() from refused

    def _is_there(self, pod: Pod) -> bool:
        """Whether the name is still this very pod's."""
        try:
            live = self._ask(self._api.read_namespaced_pod, pod.name, pod.namespace)
        except ClusterError as error:
            if error.code is ClusterErrorCode.NOT_FOUND:
                return False
            raise
        return bool(live["metadata"]["uid"] == pod.uid)

    def close(self) -> None:
        self._api.api_client.rest_client.pool_manager.clear()

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        """The answer's object, as JSON: what an API server of another version adds or leaves out does no harm."""
        try:
            with _translated():
                response = call(*arguments, _preload_content=False, _request_timeout=_TIMEOUT, **options)
                answer = json.loads(response.data)
        except _Refused as refused:
            raise refused.error() from refused
        except ValueError as error:
            raise ClusterError(ClusterErrorCode.UNAVAILABLE, f"the API server's answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ClusterError(ClusterErrorCode.UNAVAILABLE, "the API server's answer is not an object")
        return answer


_TIMEOUT = (CONNECT_SECONDS, ANSWER_SECONDS)


class _Refused(Exception):
    """The API server's answer with an error status, read as far as it can be."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        try:
            found = json.loads(body or "{}")
        except ValueError:
            found = {}
        self.status = status
        self._headers = headers
        self._body: dict[str, Any] = found if isinstance(found, dict) else {}
        self.message = str(self._body.get("message") or f"HTTP {status}")[:300]
        super().__init__(self.message)

    def _details(self) -> dict[str, Any]:
        details = self._body.get("details")
        return details if isinstance(details, dict) else {}

    def _causes(self) -> list[dict[str, Any]]:
        return [cause for cause in self._details().get("causes") or () if isinstance(cause, dict)]

    def has_cause(self, reason: str) -> bool:
        return any(cause.get("reason") == reason for cause in self._causes())

    def budget(self) -> str:
        """The budget's name, "" when the answer does not tell."""
        found = (_BUDGET_NAME.search(str(cause.get("message"))) for cause in self._causes() if cause.get("reason") == "DisruptionBudget")
        return next((match[1] for match in found if match), "")

    def retry_after_seconds(self) -> float:
        """0 when it asks for no time."""
        for value in (self._headers.get("Retry-After"), self._details().get("retryAfterSeconds")):
            try:
                return max(0.0, float(str(value)))
            except ValueError:
                continue
        return 0.0

    def error(self) -> ClusterError:
        return ClusterError(_CODES.get(self.status, ClusterErrorCode.UNAVAILABLE), self.message)


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the client as _Refused or ClusterError."""
    try:
        yield
    except ApiException as error:
        if not error.status:
            raise ClusterError(ClusterErrorCode.UNAVAILABLE, f"the API server cannot be asked: {error.reason}"[:300]) from error
        body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
        raise _Refused(int(error.status), error.headers or {}, body) from error
    except (urllib3.exceptions.HTTPError, OSError, config.ConfigException) as error:
        raise ClusterError(ClusterErrorCode.UNAVAILABLE, f"the API server cannot be asked: {error}"[:300]) from error


def _delete_options(pod: Pod, grace_seconds: int | None) -> client.V1DeleteOptions:
    return client.V1DeleteOptions(grace_period_seconds=grace_seconds, preconditions=client.V1Preconditions(uid=pod.uid))


def _cordon(node: Mapping[str, Any]) -> Cordon:
    unschedulable = bool(node.get("spec", {}).get("unschedulable"))
    mark = str((node["metadata"].get("annotations") or {}).get(OWNER_ANNOTATION, ""))
    managers = {
        entry.get("manager") for entry in node["metadata"].get("managedFields") or () if "f:unschedulable" in (entry.get("fieldsV1") or {}).get("f:spec", {})
    }
    # The mark survives an uncordon by hand; a cordon that somebody set after it is theirs.
    taken_over = bool(managers) and FIELD_MANAGER not in managers
    return Cordon(unschedulable=unschedulable, owner=mark if unschedulable and not taken_over else "", mark=mark)


def _pod(item: Mapping[str, Any], devices: Mapping[str, tuple[str, ...]]) -> Pod:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owners = metadata.get("ownerReferences") or ()
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase") or "Unknown",
        service_account=spec.get("serviceAccountName") or "",
        owner_kind=next((owner["kind"] for owner in owners if owner.get("controller")), ""),
        priority=int(spec.get("priority") or 0),
        is_mirror=MIRROR_ANNOTATION in (metadata.get("annotations") or {}),
        is_terminating=metadata.get("deletionTimestamp") is not None,
        has_local_data=any("emptyDir" in volume for volume in spec.get("volumes") or ()),
        grace_seconds=30 if spec.get("terminationGracePeriodSeconds") is None else int(spec["terminationGracePeriodSeconds"]),
        labels=dict(metadata.get("labels") or {}),
        gpus=devices.get(metadata["uid"], ()),
        started_at=_seconds(status.get("startTime")),
    )


def _seconds(text: str | None) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def read_devices(path: Path) -> dict[str, tuple[str, ...]]:
    """UUIDs of GPUs and slices by pod UID, from the kubelet's record; empty when it cannot be read.

    A shared GPU is recorded as `UUID::number`.
    """
    try:
        entries = json.loads(path.read_text())["Data"]["PodDeviceEntries"]
        found: dict[str, set[str]] = {}
        for entry in entries or ():
            ids = entry["DeviceIDs"]
            listed = [one for group in ids.values() for one in group] if isinstance(ids, dict) else list(ids or ())
            if str(entry["ResourceName"]).startswith("nvidia.com/"):
                found.setdefault(str(entry["PodUID"]), set()).update(str(one).split("::")[0] for one in listed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {uid: tuple(sorted(devices)) for uid, devices in found.items()}


def open_cluster(options: dict[str, str]) -> KubernetesCluster:
    """Raises ClusterError when an option is missing or unknown, or there is no way to an API server."""
    if unknown := sorted(set(options) - {"node", "kubeconfig", "url", "token_file", "ca_file", "checkpoint"}):
        raise ClusterError(ClusterErrorCode.INVALID, f"cluster.{unknown[0]}: unknown option")
    if not (node := options.get("node") or os.environ.get("NODE_NAME", "")):
        raise ClusterError(ClusterErrorCode.INVALID, "cluster.node: the node's name in Kubernetes is missing, and NODE_NAME is not set")
    settings = client.Configuration()
    try:
        if url := options.get("url"):
            settings.host = url.rstrip("/")
            settings.ssl_ca_cert = options.get("ca_file") or None
            if token_file := options.get("token_file"):
                _use_token_file(settings, Path(token_file))
        elif kubeconfig := options.get("kubeconfig"):
            config.load_kube_config(config_file=kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ClusterError(ClusterErrorCode.INVALID, f"cluster: {error}") from error
    settings.retries = urllib3.Retry(total=0, respect_retry_after_header=False)
    return KubernetesCluster(client.CoreV1Api(client.ApiClient(settings)), node, checkpoint=Path(options.get("checkpoint", CHECKPOINT)))


def _use_token_file(settings: client.Configuration, path: Path) -> None:
    """Read again before each request: the kubelet renews it."""

    def refresh(current: client.Configuration) -> None:
        current.api_key["authorization"] = f"Bearer {path.read_text().strip()}"

    refresh(settings)
    settings.refresh_api_key_hook = refresh  # type: ignore[assignment]
