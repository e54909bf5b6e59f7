"""The control address: scenarios and looks for people and tests, and the wire that the simulated backend speaks.

| request | answer |
|---|---|
| `POST /scenario {"name", "site" \\| "node" \\| "gpu", "duration_seconds", "mode", "lead_seconds"}` | 201 the scenario with its `id` |
| `DELETE /scenario/<id>`, `DELETE /scenario?site=\\|node=\\|gpu=\\|name=` (all that match; none given: all) | 200 what was ended |
| `GET /state` | time, scenarios, clock locks, cut nodes, counts |
| `GET /acts?after=<seq>&node=<host>&kind=act` | records of the act log |
| `GET /reachability?version=<n>&wait=<seconds>` | cut and down nodes; waits until something changed |
| `GET /nodes/<host>/boot`, `/inventory`, `/health` | what the driver says |
| `GET`, `PUT {"min_mhz", "max_mhz"}`, `DELETE /nodes/<host>/gpus/<uuid>/clocks` | SM clock: read, lock, unlock |
| `GET`, `PUT {"limit_mw"}`, `DELETE /nodes/<host>/gpus/<uuid>/power` | power limit: read, set, back to the default |
| `GET`, `PUT {"enabled"}` `/nodes/<host>/gpus/<uuid>/mig` | MIG: mode, instances and what is offered; set the mode |
| `POST /nodes/<host>/gpus/<uuid>/mig/instances {"profile", "start"}` | makes an instance; its `gpu_instance_id` |
| `DELETE /nodes/<host>/gpus/<uuid>/mig/instances/<id>` | removes it |
| `GET`, `PUT {"owner"}`, `DELETE ?owner=` `/nodes/<host>/cordon` | cordon: who said so; a person's without an owner |
| `GET /nodes/<host>/pods` | the node's pods |
| `POST /nodes/<host>/evictions`, `/deletions {"namespace", "name", "uid", "grace_seconds"}` | ends a pod; 429 with the budget's name that forbids it |
| `PUT {"name", "allowed"}`, `DELETE /nodes/<host>/budgets/<namespace>` | a disruption budget for a drill |
| `POST`, `GET /nodes/<host>/gpus/<uuid>/reset` | resets the GPU; a text that changes with each reset |
| `POST /nodes/<host>/reboot` | down at once, booted six seconds later |

Errors are `{"error": text}` (a field's name first) with 400, 404, 409; hardware that refuses is `{"code", "error"}` with 422.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from agent.backends.base import ErrorCode
from agent.simulator.cluster_api import ClusterApi
from agent.simulator.config import parse_scenario
from agent.simulator.fields import ConfigError, Fields
from agent.simulator.hardware import Hardware
from agent.simulator.partitions import HardwareError

LONGEST_WAIT_SECONDS = 60.0


class ControlApi:
    def __init__(self, hardware: Hardware, clock: Callable[[], float], scrapes: Callable[[], int]) -> None:
        self._hardware = hardware
        self._clock = clock
        self._scrapes = scrapes
        self._changed = asyncio.Event()
        self._told = hardware.version
        self.app = web.Application(middlewares=[_plain_errors])
        self.app.add_routes(
            [
                web.post("/scenario", self._post_scenario),
                web.delete("/scenario", self._delete_scenarios),
                web.delete("/scenario/{id:[0-9]{1,9}}", self._delete_scenarios),
                web.get("/state", self._state),
                web.get("/acts", self._acts),
                web.get("/reachability", self._reachability),
                web.get("/nodes/{host}/boot", self._boot),
                web.get("/nodes/{host}/inventory", self._inventory),
                web.get("/nodes/{host}/health", self._health),
                web.get("/nodes/{host}/gpus/{uuid}/clocks", self._read_clocks),
                web.put("/nodes/{host}/gpus/{uuid}/clocks", self._set_clocks),
                web.delete("/nodes/{host}/gpus/{uuid}/clocks", self._reset_clocks),
                web.get("/nodes/{host}/gpus/{uuid}/power", self._read_power),
                web.put("/nodes/{host}/gpus/{uuid}/power", self._set_power),
                web.delete("/nodes/{host}/gpus/{uuid}/power", self._reset_power),
                web.get("/nodes/{host}/gpus/{uuid}/mig", self._read_mig),
                web.put("/nodes/{host}/gpus/{uuid}/mig", self._set_mig_mode),
                web.post("/nodes/{host}/gpus/{uuid}/mig/instances", self._create_instance),
                web.delete("/nodes/{host}/gpus/{uuid}/mig/instances/{instance:[0-9]{1,3}}", self._destroy_instance),
                *ClusterApi(hardware, clock, self.tell_changes).routes,
            ]
        )

    def tell_changes(self) -> None:
        """Wakes those who wait for a change of reachability. Call after the hardware was advanced."""
        if self._hardware.version != self._told:
            self._told = self._hardware.version
            self._changed.set()
            self._changed = asyncio.Event()

    async def _post_scenario(self, request: web.Request) -> web.Response:
        scenario = self._hardware.start_scenario(parse_scenario(await _body(request), ""), self._clock())
        self.tell_changes()
        return web.json_response(scenario.describe(), status=201)

    async def _delete_scenarios(self, request: web.Request) -> web.Response:
        now, active = self._clock(), list(self._hardware.book.active.values())
        if number := request.match_info.get("id"):
            chosen = [scenario for scenario in active if scenario.id == int(number)]
            if not chosen:
                raise web.HTTPNotFound(text=f"scenario: none with the number {number} is on")
        else:
            wanted = dict(request.query)
            if unknown := sorted(set(wanted) - {"site", "node", "gpu", "name"}):
                raise ConfigError(f"{unknown[0]}: unknown field")
            chosen = [one for one in active if all(({"name": one.name} | one.target).get(field) == value for field, value in wanted.items())]
        for scenario in chosen:
            self._hardware.stop_scenario(scenario.id, now)
        self.tell_changes()
        return web.json_response({"ended": [scenario.describe() for scenario in chosen]})

    async def _state(self, request: web.Request) -> web.Response:
        hardware = self._hardware
        hardware.advance(self._clock())
        physics = hardware.physics
        locks = {
            gpu.uuid: {"min_mhz": physics.lock_low[row], "max_mhz": None if math.isinf(physics.lock_high[row]) else physics.lock_high[row]}
            for row, (_, gpu, _) in enumerate(physics.gpus)
            if physics.lock_low[row] > 0 or not math.isinf(physics.lock_high[row])
        }
        return web.json_response(
            {
                "at": hardware.now,
                "version": hardware.version,
                "nodes": len(hardware.config.nodes),
                "gpus": len(physics.gpus),
                "scrapes": self._scrapes(),
                "scenarios": [scenario.describe() for scenario in hardware.book.active.values()],
                "locks": locks,
                "cut": sorted(hardware.cut_hosts()),
            }
        )

    async def _acts(self, request: web.Request) -> web.Response:
        after = _whole_number(request, "after", 0)
        found = self._hardware.log.since(after, node=request.query.get("node", ""), kind=request.query.get("kind", ""))
        return web.json_response({"acts": found, "last": len(self._hardware.log.records)})

    async def _reachability(self, request: web.Request) -> web.Response:
        hardware = self._hardware
        hardware.advance(self._clock())
        self.tell_changes()
        if _whole_number(request, "version", -1) == hardware.version:
            changed = self._changed
            try:
                async with asyncio.timeout(min(float(_whole_number(request, "wait", 0)), LONGEST_WAIT_SECONDS)):
                    await changed.wait()
            except TimeoutError:
                pass
        return web.json_response({"version": hardware.version, "cut": sorted(hardware.cut_hosts()), "down": sorted(hardware.down_hosts())})

    async def _boot(self, request: web.Request) -> web.Response:
        return web.json_response({"boot_id": self._hardware.boot_id(request.match_info["host"])})

    async def _inventory(self, request: web.Request) -> web.Response:
        return web.json_response(self._hardware.inventory(request.match_info["host"], self._clock()).to_json())

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self._hardware.health(request.match_info["host"], self._clock()).to_json())

    async def _read_clocks(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._hardware.read_clocks(request.match_info["host"], request.match_info["uuid"], self._clock())))

    async def _set_clocks(self, request: web.Request) -> web.Response:
        fields = Fields(await _body(request), "")
        low, high = (fields.integer(name, low=0, high=100_000) for name in ("min_mhz", "max_mhz"))
        fields.finish()
        self._hardware.set_clock_range(request.match_info["host"], request.match_info["uuid"], low, high, self._clock())
        return web.json_response({})

    async def _reset_clocks(self, request: web.Request) -> web.Response:
        self._hardware.reset_clock_range(request.match_info["host"], request.match_info["uuid"], self._clock())
        return web.json_response({})

    def _act(self, request: web.Request, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._hardware.act(request.match_info["host"], request.match_info["uuid"], name, arguments, self._clock())

    async def _read_power(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._hardware.read_power(request.match_info["host"], request.match_info["uuid"], self._clock())))

    async def _set_power(self, request: web.Request) -> web.Response:
        fields = Fields(await _body(request), "")
        arguments = {"limit_mw": fields.integer("limit_mw", low=0, high=10**9)}
        fields.finish()
        self._act(request, "set_power_limit", arguments)
        return web.json_response({})

    async def _reset_power(self, request: web.Request) -> web.Response:
        self._act(request, "reset_power_limit", {})
        return web.json_response({})

    async def _read_mig(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._hardware.read_mig(request.match_info["host"], request.match_info["uuid"], self._clock())))

    async def _set_mig_mode(self, request: web.Request) -> web.Response:
        fields = Fields(await _body(request), "")
        enabled = fields.raw("enabled")
        fields.finish()
        if not isinstance(enabled, bool):
            raise ConfigError(f"enabled: expected true or false, found {enabled!r}")
        self._act(request, "set_mig_mode", {"enabled": enabled})
        return web.json_response({})

    async def _create_instance(self, request: web.Request) -> web.Response:
        fields = Fields(await _body(request), "")
        arguments = {"profile": fields.text("profile", empty=False), "start": fields.integer("start", low=0, high=7)}
        fields.finish()
        record = self._act(request, "create_mig_instance", arguments)
        return web.json_response({"gpu_instance_id": record["gpu_instance_id"]})

    async def _destroy_instance(self, request: web.Request) -> web.Response:
        self._act(request, "destroy_mig_instance", {"gpu_instance_id": int(request.match_info["instance"])})
        return web.json_response({})


async def _body(request: web.Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise ConfigError("body: not JSON") from error


def _whole_number(request: web.Request, field: str, default: int) -> int:
    text = request.query.get(field, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"{field}: expected a whole number, found {text!r}") from error


@web.middleware
async def _plain_errors(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConfigError as error:
        return web.json_response({"error": str(error)}, status=400)
    except HardwareError as error:
        status = 404 if error.code is ErrorCode.NOT_PRESENT and str(error).startswith("node:") else 422
        return web.json_response({"code": error.code.value, "error": str(error)}, status=status)
    except web.HTTPException as error:
        return web.json_response({"error": error.text or error.reason}, status=error.status)
