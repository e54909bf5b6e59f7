"""`python -m agent.simulator`: simulated hardware, the agents on it, one exporter's text, or a made-up fleet's configuration."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from agent.simulator.act_log import ActLog, ActLogError
from agent.simulator.agents import run_all, run_share
from agent.simulator.config import EXPORTERS, ScenarioConfig, SimulatorConfig, dump_config, load_config, load_timeline
from agent.simulator.fields import ConfigError
from agent.simulator.fleet_plan import plan_fleet
from agent.simulator.hardware import Hardware, Silence
from agent.simulator.partitions import HardwareError
from agent.simulator.scenarios import mild_timeline
from agent.simulator.server import run_hardware


def _timeline(config: SimulatorConfig, name: str) -> tuple[ScenarioConfig, ...]:
    if name == "mild":
        return config.timeline + mild_timeline(config)
    return config.timeline + (load_timeline(Path(name)) if name else ())


def _print_text(config: SimulatorConfig, host_name: str, exporter: str, now: float) -> int:
    node = config.node(host_name)
    if exporter not in node.exporters:
        raise ConfigError(f"exporter: node {host_name} has none of kind {exporter}")
    with tempfile.TemporaryDirectory() as folder:
        log = ActLog(Path(folder) / "acts.jsonl")
        text = Hardware(config, log, now).exposition(host_name, exporter, now)
        log.close()
    if isinstance(text, Silence):
        return 1
    sys.stdout.write(text)
    return 0


def _print_plan(options: argparse.Namespace) -> int:
    plan = plan_fleet(options.areas, options.regions, options.sites, options.seed)
    json.dump(dump_config(plan.simulator_config(control_address=options.control, act_log="acts.jsonl")), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def _share(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"expected a share such as 0/2, found {text!r}")
    return int(number), int(count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agent.simulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    hardware = commands.add_parser("hardware", help="simulated hardware with its exporters and the control address")
    hardware.add_argument("--timeline", default="", help="`mild`, or a JSON or YAML file with a list of scenarios")
    agents = commands.add_parser("agents", help="the fleet's agents on that hardware")
    agents.add_argument("--share", type=_share, help="run only this share of the nodes, in this process: 0/2, 1/2")
    text = commands.add_parser("text", help="print what one exporter would answer now")
    text.add_argument("--node", required=True, help="host name")
    text.add_argument("--exporter", default="dcgm", choices=EXPORTERS)
    text.add_argument("--at", type=float, help="Unix seconds; now if not given")
    for command in (hardware, agents, text):
        command.add_argument("--config", type=Path, required=True)
    plan = commands.add_parser("plan", help="print the configuration of a made-up fleet")
    for name, default in (("areas", 2), ("regions", 3), ("sites", 50), ("seed", 7)):
        plan.add_argument(f"--{name}", type=int, default=default)
    plan.add_argument("--control", default="127.0.0.1:9460")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for name in ("masthead_agent", "websockets", "aiohttp"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        if options.command == "plan":
            return _print_plan(options)
        config = load_config(options.config)
        if options.command == "hardware":
            asyncio.run(run_hardware(config, _timeline(config, options.timeline)))
            return 0
        if options.command == "text":
            return _print_text(config, options.node, options.exporter, time.time() if options.at is None else options.at)
        if options.share is None and config.agents.processes > 1:
            return asyncio.run(run_all(options.config, config.agents.processes))
        asyncio.run(run_share(config, *(options.share or (0, 1))))
    except (ConfigError, HardwareError, ActLogError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
