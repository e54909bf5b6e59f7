"""`masthead-agent`: enrol a node, run its agent, show what it holds."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agent import VERSION
from agent.backends.base import Backend, BackendError
from agent.backends.cluster import Cluster, ClusterError
from agent.command_journal import CommandJournal
from agent.config import Config, ConfigError, Enrolment, check_gateway_url, load_config, tls_context
from agent.enrol import EnrolError, WaitsForOperator, enrol
from agent.journal import Journal, JournalError
from agent.keys import KeyFileError, load_key, load_or_create_key
from agent.local.opening import open_local
from agent.node_agent import NodeAgent
from agent.protocol import Bundle, ProtocolError
from agent.store import Store
from agent.switches import Switches

DEFAULT_CONFIG = Path("/etc/masthead-agent.toml")
EXIT_WAITS = 3
# The admission door answers within 2 ms while other threads of the agent compute: none may keep the interpreter from it for longer than this.
SWITCH_SECONDS = 0.0005


def _open(table: str, kind: str, options: dict[str, str]) -> Any:
    """What the file of `agent/backends` opens that a table of the configuration names."""
    try:
        module: Any = importlib.import_module(f"agent.backends.{kind}") if kind.isidentifier() else None
    except ModuleNotFoundError as error:
        raise ConfigError(f"{table}.kind: {kind!r} cannot be loaded: {error}. For NVML install masthead-agent[nvml], for Kubernetes [kubernetes]") from error
    opener = getattr(module, f"open_{table}", None)
    if opener is None:
        raise ConfigError(f"{table}.kind: {kind!r} is not a {table}")
    return opener(options)


def open_backend(config: Config) -> Backend:
    found: Backend = _open("backend", config.backend_kind, config.backend_options)
    return found


def open_cluster(config: Config) -> Cluster | None:
    """None: the configuration has no `[cluster]`."""
    found: Cluster | None = _open("cluster", config.cluster_kind, config.cluster_options) if config.cluster_kind else None
    return found


def run_enrol(config: Config, bundle_text: str) -> int:
    config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    bundle = Bundle.decode(sys.stdin.read() if bundle_text == "-" else bundle_text)
    key = load_or_create_key(config.key_file)
    try:
        enrolment = enrol(bundle, key, ca_file=config.ca_file, allow_plain_http=config.allow_plain_http)
    except WaitsForOperator as waits:
        print(waits, file=sys.stderr)
        return EXIT_WAITS
    enrolment.save(config.enrolment_file)
    print(f"Enrolled as node {enrolment.node_id}. The console's key has the fingerprint {bundle.fingerprint}.")
    return 0


async def run_agent(config: Config) -> None:
    enrolment = Enrolment.load(config.enrolment_file)
    check_gateway_url(enrolment.gateway_url, allow_plain_http=config.allow_plain_http)
    backend, cluster = open_backend(config), open_cluster(config)
    sys.setswitchinterval(SWITCH_SECONDS)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="hardware") as pool, ThreadPoolExecutor(max_workers=1, thread_name_prefix="urgent") as urgent:
        agent = NodeAgent(
            enrolment=enrolment,
            key=load_key(config.key_file),
            backend=backend,
            journal=Journal(config.journal_file),
            pool=pool,
            tls=tls_context(enrolment.gateway_url, config.ca_file),
            converge_seconds=config.converge_seconds,
            inspect_seconds=config.inspect_seconds,
            local=open_local(config, enrolment, backend=backend, cluster=cluster, urgent=urgent),
            cluster=cluster,
        )
        task = asyncio.create_task(agent.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            logging.getLogger("masthead_agent").info("stopped")
    agent.close()


def show_status(config: Config) -> None:
    """One JSON object on stdout."""
    enrolment = Enrolment.load(config.enrolment_file)
    journal = Journal(config.journal_file)
    document = journal.document()
    controls = [
        {
            "control": entry.control,
            "gpu_uuid": entry.gpu_uuid,
            "phase": entry.phase.value,
            "state": entry.state.value if entry.state else None,
            "parameters": entry.parameters,
            "observed": entry.observed,
            "detail": entry.detail,
            "at": entry.at,
        }
        for entry in journal.entries().values()
    ]
    held = CommandJournal(journal)
    orders = {entry.target: entry for entry in [*held.untold(), *held.unfinished()]}
    commands = [{"kind": entry.body.kind if entry.body else None, **entry.update().to_json(), "output": ""} for entry in orders.values()]
    journal.close()
    switches: list[dict[str, Any]] = []
    if config.local_file.exists():
        store = Store(config.local_file)
        switches = [update.to_json() for update in Switches(store, node_id=enrolment.node_id, trusted_keys=enrolment.console_keys).updates(time.time())]
        store.close()
    status = {"node_id": enrolment.node_id, "gateway_url": enrolment.gateway_url, "document_version": document.version if document else None}
    print(json.dumps({**status, "controls": controls, "commands": commands, "switches": switches}, indent=2))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="masthead-agent", description="Masthead's node agent.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    enrol_parser = commands.add_parser("enrol", help="register this node's key with a one-time bundle from the console")
    enrol_parser.add_argument("--bundle", required=True, help="the text that the console shows, or - to read it from standard input")
    run_parser = commands.add_parser("run", help="run the agent")
    status_parser = commands.add_parser("status", help="show what the agent holds, as JSON")
    for command in (enrol_parser, run_parser, status_parser):
        command.add_argument("--config", type=Path, default=DEFAULT_CONFIG)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        config = load_config(options.config)
        if options.command == "enrol":
            return run_enrol(config, options.bundle)
        if options.command == "run":
            asyncio.run(run_agent(config))
        else:
            show_status(config)
    except (BackendError, ClusterError, ConfigError, JournalError, KeyFileError, EnrolError, ProtocolError) as error:
        print(f"masthead-agent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
