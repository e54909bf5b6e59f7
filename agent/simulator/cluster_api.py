"""The part of the control address that plays the API server of each node, and what ends with the whole node or GPU: reset and reboot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from agent.simulator.cluster import Budget, BudgetError
from agent.simulator.fields import ConfigError, Fields
from agent.simulator.hardware import Hardware


class ClusterApi:
    def __init__(self, hardware: Hardware, clock: Callable[[], float], tell_changes: Callable[[], None]) -> None:
        self._hardware = hardware
        self._clock = clock
        self._tell_changes = tell_changes
        self.routes = [
            web.get("/nodes/{host}/cordon", self._cordon),
            web.put("/nodes/{host}/cordon", self._set_cordon),
            web.delete("/nodes/{host}/cordon", self._clear_cordon),
            web.get("/nodes/{host}/pods", self._pods),
            web.post("/nodes/{host}/evictions", self._evict),
            web.post("/nodes/{host}/deletions", self._delete),
            web.put("/nodes/{host}/budgets/{namespace}", self._set_budget),
            web.delete("/nodes/{host}/budgets/{namespace}", self._clear_budget),
            web.post("/nodes/{host}/reboot", self._reboot),
            web.post("/nodes/{host}/gpus/{uuid}/reset", self._reset),
            web.get("/nodes/{host}/gpus/{uuid}/reset", self._evidence),
        ]

    def _host(self, request: web.Request, *, api: bool = True) -> str:
        """The node's name, when its API server can be asked (`api`). Raises HardwareError."""
        host = request.match_info["host"]
        self._hardware.advance(self._clock())
        if api:
            self._hardware.check_api(host)
        else:
            self._hardware.node(host)
        return host

    async def _cordon(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._hardware.cluster.cordon(self._host(request))))

    async def _set_cordon(self, request: web.Request) -> web.Response:
        fields = Fields(await _body(request), "")
        owner = fields.text("owner")
        fields.finish()
        return web.json_response(asdict(self._hardware.cluster.set_cordon(self._host(request), owner, self._clock())))

    async def _clear_cordon(self, request: web.Request) -> web.Response:
        owner = request.query.get("owner", "")
        return web.json_response(asdict(self._hardware.cluster.clear_cordon(self._host(request), owner, self._clock())))

    async def _pods(self, request: web.Request) -> web.Response:
        return web.json_response({"pods": [asdict(pod) for pod in self._hardware.cluster.pods(self._host(request))]})

    async def _evict(self, request: web.Request) -> web.Response:
        arguments = _pod_arguments(await _body(request))
        try:
            self._hardware.cluster.evict(self._host(request), **arguments, now=self._clock())
        except BudgetError as error:
            return web.json_response({"code": "budget", "error": error.name}, status=429)
        return web.json_response({})

    async def _delete(self, request: web.Request) -> web.Response:
        arguments = _pod_arguments(await _body(request))
        self._hardware.cluster.delete(self._host(request), **arguments, now=self._clock())
        return web.json_response({})

    async def _set_budget(self, request: web.Request) -> web.Response:
        fields = Fields(await _body(request), "")
        budget = Budget(name=fields.text("name", empty=False), allowed=fields.integer("allowed", low=0, high=1000))
        fields.finish()
        self._hardware.cluster.set_budget(self._host(request, api=False), request.match_info["namespace"], budget, self._clock())
        return web.json_response({})

    async def _clear_budget(self, request: web.Request) -> web.Response:
        self._hardware.cluster.set_budget(self._host(request, api=False), request.match_info["namespace"], None, self._clock())
        return web.json_response({})

    async def _reboot(self, request: web.Request) -> web.Response:
        self._hardware.reboot(request.match_info["host"], self._clock())
        self._tell_changes()
        return web.json_response({})

    async def _reset(self, request: web.Request) -> web.Response:
        self._hardware.reset_gpu(request.match_info["host"], request.match_info["uuid"], self._clock())
        self._tell_changes()
        return web.json_response({})

    async def _evidence(self, request: web.Request) -> web.Response:
        return web.json_response({"evidence": self._hardware.reset_evidence(request.match_info["host"], request.match_info["uuid"])})


def _pod_arguments(body: Any) -> dict[str, Any]:
    fields = Fields(body, "")
    found = {name: fields.text(name, empty=False) for name in ("namespace", "name", "uid")}
    grace = None if fields.raw("grace_seconds", None) is None else fields.integer("grace_seconds", low=0, high=86_400)
    fields.finish()
    return {**found, "grace_seconds": grace}


async def _body(request: web.Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise ConfigError("body: not JSON") from error
