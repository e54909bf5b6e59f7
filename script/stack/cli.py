"""`script/demo`: run the stack in the foreground, or check it end to end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from script.end_to_end import CheckFailed, check
from script.servers import ServerError
from script.stack.layout import ACCOUNTS, CHECKOUT, Layout
from script.stack.stack import Options, Stack
from script.stack.supervisor import StackFailed

LIVE_WITHIN_SECONDS = 180.0


class Ended(Exception):
    """Ctrl-C, or a request to end."""


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/demo", description="Masthead with a simulated fleet on this machine. Everything is kept in .demo/ and found again."
    )
    parser.add_argument("--sites", type=int, default=None, metavar="N", help="cell sites per region, 1 to 500 (50)")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="port of the console; the next free one is taken (8000)")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier start left in .demo/")
    parser.add_argument("--check", action="store_true", help="wait until the fleet is live, check it end to end, stop, print one JSON line")
    parser.add_argument("--data", type=Path, default=CHECKOUT / ".demo", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.sites is not None and not 1 <= options.sites <= 500:
        parser.error("--sites: between 1 and 500")
    if not 1024 <= options.port <= 65535:
        parser.error("--port: between 1024 and 65535")
    return options


def main(given: list[str] | None = None) -> int:
    arguments = _arguments(given)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    layout = Layout(arguments.data)
    result: dict[str, Any] | None = None
    try:
        with layout.lock():
            if arguments.fresh:
                layout.remove()
            known = layout.state().get("fleet", [2, 3, 50])
            options = Options(
                root=layout.root, sites=arguments.sites or known[2], web_port=arguments.port, timeline=not arguments.check, outside=_outside_servers()
            )
            stack = Stack(options, _say)
            try:
                result = _run(stack, check=arguments.check)
            finally:
                _say("stopping")
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                stack.stop()
    except Ended:
        return 130 if arguments.check else 0
    except (ServerError, StackFailed) as error:
        _say(str(error))
        result = {"ok": False, "error": str(error).splitlines()[0]} if arguments.check else None
        if result is None:
            return 1
    if result is None:
        return 0
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def _outside_servers() -> dict[str, str]:
    names = ("MASTHEAD_DATABASE_URL", "MASTHEAD_OWNER_DATABASE_URL", "MASTHEAD_REDIS_URL", "MASTHEAD_PROMETHEUS_URL")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _run(stack: Stack, *, check: bool) -> dict[str, Any] | None:
    stack.start()
    if check:
        return _check(stack)
    _greet(stack)
    stack.supervisor.watch(until=lambda: False)
    return None


def _check(stack: Stack) -> dict[str, Any]:
    """The check runs beside the watch, since processes belong to the main thread."""
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome.update(check(stack, _say, live_within_seconds=LIVE_WITHIN_SECONDS))
        except CheckFailed as error:
            outcome.update(ok=False, error=str(error))

    thread = threading.Thread(target=work, name="check", daemon=True)
    thread.start()
    stack.supervisor.watch(until=lambda: not thread.is_alive())
    return outcome or {"ok": False, "error": "the check itself failed; its traceback is above"}


def _greet(stack: Stack) -> None:
    _say(f"started in {time.monotonic() - stack.started_at:.0f} s; data and logs in {stack.layout.root}")
    print("\n".join(stack.supervisor.status_lines()))
    print(f"\n  {stack.url}\n")
    passwords = stack.layout.account_passwords()
    for name in ACCOUNTS:
        print(f"  {name:<14} password {passwords[name]}")
    print("\n  acme and globex are tenants' users. Ctrl-C stops everything; the next start finds its data again.\n", flush=True)


def _say(line: str) -> None:
    print(f"demo: {line}", file=sys.stderr, flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended


if __name__ == "__main__":
    sys.exit(main())
