"""The exporters' sockets: one loopback address per node, one listening socket per exporter, one HTTP handler for all of them."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable

from aiohttp import web

from agent.simulator.fields import ConfigError
from agent.simulator.hardware import Hardware, Silence

log = logging.getLogger("masthead.simulator")
HANG_CHECK_SECONDS = 0.5


class ExporterServer:
    """Answers `GET /metrics` on each node's addresses. A node's exporter is known by the address that was dialled."""

    def __init__(self, hardware: Hardware, clock: Callable[[], float]) -> None:
        self._hardware = hardware
        self._clock = clock
        self._server = web.Server(self._answer, access_log=None)
        self._listeners: list[asyncio.Server] = []
        self._exporter_at: dict[tuple[str, int], tuple[str, str]] = {}
        self.scrapes = 0

    async def start(self) -> None:
        config = self._hardware.config
        wanted = [(node, exporter) for node in config.nodes for exporter in node.exporters]
        _allow_descriptors(3 * len(wanted) + 512)
        loop = asyncio.get_running_loop()
        for node, exporter in wanted:
            address = (node.address, config.ports.of(exporter))
            try:
                listener = await loop.create_server(self._server, sock=_listen(address))
            except OSError as error:
                raise ConfigError(f"ports.{exporter}: cannot listen on {address[0]}:{address[1]}: {error.strerror}") from error
            self._listeners.append(listener)
            self._exporter_at[address] = (node.host_name, exporter)

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        await self._server.shutdown(1)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        host, exporter = self._exporter_at[transport.get_extra_info("sockname")[:2]]
        if request.path != "/metrics":
            return web.Response(status=404, text="only /metrics is here\n")
        found = self._hardware.exposition(host, exporter, self._clock())
        while found is Silence.HANG:
            await asyncio.sleep(HANG_CHECK_SECONDS)
            found = self._hardware.exposition(host, exporter, self._clock())
        if found is Silence.BREAK:
            transport.abort()
            return web.Response()
        self.scrapes += 1
        return web.Response(body=found.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _listen(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigError(f"nodes: their exporters need {count} open files, but the limit is {hard}; raise it (ulimit -n) or give fewer nodes exporters")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
