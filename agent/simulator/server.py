"""The hardware process: exporters, control API and a clock that plays the scenarios."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from pathlib import Path

from aiohttp import web

from agent.simulator.act_log import ActLog
from agent.simulator.config import ScenarioConfig, SimulatorConfig
from agent.simulator.control_api import ControlApi
from agent.simulator.exporters import ExporterServer
from agent.simulator.fields import ConfigError
from agent.simulator.hardware import Hardware

log = logging.getLogger("masthead.simulator")
TICK_SECONDS = 0.5
SAVE_SECONDS = 20.0


async def run_hardware(config: SimulatorConfig, timeline: tuple[ScenarioConfig, ...]) -> None:
    """Serves until SIGTERM or SIGINT. State goes to disk while running and at the end."""
    hardware = Hardware(config, ActLog(Path(config.act_log)), time.time(), timeline)
    exporters = ExporterServer(hardware, time.time)
    control = ControlApi(hardware, time.time, lambda: exporters.scrapes)
    await exporters.start()
    runner = web.AppRunner(control.app, access_log=None)
    await runner.setup()
    host, _, port = config.control_address.rpartition(":")
    try:
        await web.TCPSite(runner, host, int(port)).start()
    except OSError as error:
        raise ConfigError(f"control_address: cannot listen on {config.control_address}: {error.strerror}") from error
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    log.info("%d nodes, %d GPUs; control on %s", len(config.nodes), len(hardware.physics.gpus), config.control_url)
    try:
        await _keep_time(hardware, control, stopping)
    finally:
        await exporters.stop()
        await runner.cleanup()
        hardware.save()
        hardware.log.close()


async def _keep_time(hardware: Hardware, control: ControlApi, stopping: asyncio.Event) -> None:
    saved_at = time.monotonic()
    while not stopping.is_set():
        hardware.advance(time.time())
        control.tell_changes()
        if time.monotonic() - saved_at > SAVE_SECONDS:
            saved_at = time.monotonic()
            hardware.save()
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await stopping.wait()
        except TimeoutError:
            continue
