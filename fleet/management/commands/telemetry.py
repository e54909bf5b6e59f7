"""`manage.py telemetry`: the remote_write receiver beside the live state, a tick each second, a flush each ten."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import structlog
import uvicorn
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, close_old_connections, connection

from fleet.database_role import role_refusal
from fleet.remote_write import Receiver
from fleet.telemetry.live_inventory import UnknownArea
from fleet.telemetry.own_metrics import make_registry
from fleet.telemetry.process import FLUSH_SECONDS, TELL_SECONDS, TICK_SECONDS, TelemetryProcess

log = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: it would raise the signal again before the last flush."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Command(BaseCommand):
    help = "Receive telemetry by remote_write, keep the live state, evaluate health, and write last values."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8002)
        parser.add_argument("--areas", default="", help="Slugs of the areas that this process covers, comma separated. Default: the whole fleet.")

    def handle(self, *args: Any, **options: Any) -> None:
        if refusal := role_refusal():
            raise CommandError(f"Refusing to start: {refusal}")
        process = TelemetryProcess(areas=[part.strip() for part in options["areas"].split(",") if part.strip()])
        registry, collector = make_registry(process)
        stopping = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="ingest") as executor:
            receiver = collector.receiver = Receiver(
                process.ingest, process.senders, executor=executor, lock=process.lock, registry=registry, used_senders=process.used_senders
            )
            receiver.accepting = False
            server = Server(
                uvicorn.Config(
                    receiver,
                    host=options["host"],
                    port=options["port"],
                    lifespan="off",
                    access_log=False,
                    log_config=None,
                    ws="none",
                    proxy_headers=False,
                    server_header=False,
                    timeout_graceful_shutdown=5,
                    timeout_keep_alive=75,  # Prometheus keeps its connections between scrapes
                    backlog=2048,
                )
            )

            def stop(*_: object) -> None:
                stopping.set()
                server.should_exit = True

            signal.signal(signal.SIGTERM, stop)
            signal.signal(signal.SIGINT, stop)
            failed: list[BaseException] = []

            def work() -> None:
                """Load, then tick; what writes has threads of its own."""
                try:
                    _load(process, stopping)
                    receiver.accepting = True
                    others = [
                        threading.Thread(target=_every, args=(FLUSH_SECONDS, process.flush, stopping), name="flush"),
                        threading.Thread(target=_every, args=(TELL_SECONDS, process.tell_inventory, stopping), name="tell"),
                    ]
                    for other in others:
                        other.start()
                    _every(TICK_SECONDS, process.tick, stopping)
                    for other in others:
                        other.join()
                except UnknownArea as error:
                    failed.append(error)
                    stop()
                finally:
                    connection.close()

            worker = threading.Thread(target=work, name="tick")
            worker.start()
            try:
                asyncio.run(server.serve())
            except SystemExit as error:  # uvicorn's way to say that it cannot listen
                raise CommandError(f"--port: cannot listen on {options['host']}:{options['port']}") from error
            finally:
                stop()
                worker.join()
        if failed:
            raise CommandError(str(failed[0]))
        process.flush()
        process.tell_inventory()


def _load(process: TelemetryProcess, stopping: threading.Event) -> None:
    """Read what the process must know; the database may come later than we do."""
    while not stopping.is_set():
        try:
            process.load()
        except Error as error:
            log.warning("telemetry_waits_for_database", error=str(error))
            connection.close()
            stopping.wait(1.0)
        else:
            return


def _every(seconds: float, act: Callable[[], object], stopping: threading.Event) -> None:
    """Call `act` at that interval until told to stop; a call that takes longer skips beats. A fault of ours is logged and the work goes on."""
    due = time.monotonic() + seconds
    while not stopping.wait(max(0.0, due - time.monotonic())):
        try:
            act()
        except Exception:
            log.exception("telemetry_step_failed", step=getattr(act, "__name__", ""))
        close_old_connections()
        due = max(due + seconds, time.monotonic())
    connection.close()
