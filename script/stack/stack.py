"""Masthead with its servers and its simulated fleet on this machine: every process is the product's own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.simulator.config import AgentsConfig, PortsConfig, dump_config
from agent.simulator.fleet_plan import PHY_NAMESPACE, FleetPlan, plan_fleet
from script.servers import APP_ROLE, OWNER_ROLE, Postgres, Prometheus, Redis, Server, ServerError
from script.stack.inventory_file import inventory_rows, place_names
from script.stack.layout import CHECKOUT, Layout
from script.stack.program import Program, answers, listens
from script.stack.prometheus_config import write_prometheus_config
from script.stack.supervisor import Supervisor

PYTHON = str(CHECKOUT / ".venv" / "bin" / "python")
# Root without any capability: it may run the checkout's code, and may not read the signing key, which belongs to another user.
_WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--pdeathsig=TERM", "--"]
BUNDLES = "bundles.json"
SENDER_TOKEN = "prometheus-token"  # noqa: S105 (a file's name)


@dataclass(frozen=True)
class Options:
    """What a stack is made of. `sites` is per region; `timeline` plays the mild scenario over and over."""

    root: Path
    areas: int = 2
    regions: int = 3
    sites: int = 50
    web_port: int = 8000
    scrape_interval_seconds: int = 10
    heartbeat_seconds: int = 5
    timeline: bool = True
    outside: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "MASTHEAD_DATABASE_URL" in self.outside and "MASTHEAD_OWNER_DATABASE_URL" not in self.outside:
            raise ServerError("MASTHEAD_DATABASE_URL is set: set MASTHEAD_OWNER_DATABASE_URL too, the same database as its owner role.")


class Stack:
    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        self.layout = Layout(options.root)
        self.supervisor = Supervisor(say)
        self.plan: FleetPlan = plan_fleet(options.areas, options.regions, options.sites)
        self.ports: dict[str, int] = {}
        self.started_at = time.monotonic()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    @property
    def simulator_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['simulator']}"

    @property
    def prometheus_url(self) -> str:
        return self.options.outside.get("MASTHEAD_PROMETHEUS_URL") or f"http://127.0.0.1:{self.ports['prometheus']}"

    def start(self) -> None:
        """Bring everything up, set the database up and seed it. The caller holds the layout's lock and calls `stop` whatever happens."""
        self.layout.create()
        self._refuse_another_fleet()
        postgres_folder = self.layout.postgres_folder()
        self._end_orphan_postgres(postgres_folder / "data" / "postmaster.pid")
        self.ports = self.layout.ports(web=self.options.web_port)
        self._start_servers(postgres_folder)
        self._set_up_database()
        self._seed()
        self._write_configurations()
        self.supervisor.start_together(self._programs())
        if "MASTHEAD_PROMETHEUS_URL" not in self.options.outside:
            self.supervisor.start_together([self._prometheus()])  # last, so that its first look for targets finds the console

    def stop(self) -> None:
        self.supervisor.stop()

    def environment(self, *, role: str = APP_ROLE, signing_key: bool = False) -> dict[str, str]:
        """The common set of variables of the product's processes, with this database role."""
        explicit = self.options.outside.get("MASTHEAD_OWNER_DATABASE_URL" if role == OWNER_ROLE else "MASTHEAD_DATABASE_URL")
        values = {name: value for name, value in os.environ.items() if not name.startswith("MASTHEAD_")}
        values |= {
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "PYTHONUNBUFFERED": "1",
            "MASTHEAD_SECRET_KEY_FILE": str(self.layout.secrets / "secret-key"),
            "MASTHEAD_DATABASE_URL": explicit or self._postgres_url(role),
            "MASTHEAD_REDIS_URL": self.options.outside.get("MASTHEAD_REDIS_URL") or self._redis_url(),
            "MASTHEAD_PROMETHEUS_URL": self.prometheus_url,
            "MASTHEAD_ALLOWED_HOSTS": "127.0.0.1,localhost",
            "MASTHEAD_ORIGINS": f"{self.url},http://localhost:{self.ports['web']}",
            "MASTHEAD_INSECURE_HTTP": "true",
            "MASTHEAD_OPERATOR_NAMESPACES": f"kube-system,{PHY_NAMESPACE}",
            "MASTHEAD_SCRAPE_INTERVAL_SECONDS": str(self.options.scrape_interval_seconds),
            "MASTHEAD_HEARTBEAT_SECONDS": str(self.options.heartbeat_seconds),
            "MASTHEAD_GATEWAY_URL": f"ws://127.0.0.1:{self.ports['gateway']}/agent",
        }
        if signing_key:
            values["MASTHEAD_SIGNING_KEY_FILE"] = str(self.layout.signing_key)
        return values

    def manage(self, *arguments: str, role: str = APP_ROLE, signing_key: bool = False) -> str:
        """Run a management command to its end and return what it printed."""
        environment = self.environment(role=role, signing_key=signing_key)
        done = subprocess.run([PYTHON, "manage.py", *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True)
        with (self.layout.logs / "manage.log").open("a") as log:
            log.write(f"$ manage.py {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            raise ServerError(f"manage.py {arguments[0]} failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))
        return done.stdout

    def _postgres_url(self, role: str) -> str:
        return f"postgresql://{role}:{self.layout.database_passwords()[role]}@127.0.0.1:{self.ports['postgres']}/masthead"

    def _redis_url(self) -> str:
        return f"redis://:{self.layout.secret('redis')}@127.0.0.1:{self.ports['redis']}/0"

    def _refuse_another_fleet(self) -> None:
        fleet = [self.options.areas, self.options.regions, self.options.sites]
        known = self.layout.state().get("fleet", fleet)
        if known != fleet:
            raise ServerError(f"{self.layout.root} holds a fleet of {known[0]} areas × {known[1]} regions × {known[2]} sites. Add --fresh for another.")
        self.layout.remember(fleet=fleet)

    def _end_orphan_postgres(self, pid_file: Path) -> None:
        """Our own PostgreSQL that outlived a killed supervisor: the folder is private and the lock is ours, so it is nobody else's."""
        if not pid_file.exists():
            return
        pid = int(pid_file.read_text().split()[0])
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and str(pid_file.parent).encode() in command.read_bytes():
            self.say(f"postgres of an earlier start still runs (pid {pid}); stopping it")
            os.kill(pid, signal.SIGINT)
            deadline = time.monotonic() + 20
            while command.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    def _start_servers(self, postgres_folder: Path) -> None:
        servers: list[Server] = []
        if "MASTHEAD_DATABASE_URL" not in self.options.outside:
            servers.append(Postgres(postgres_folder, port=self.ports["postgres"], passwords=self.layout.database_passwords()))
        if "MASTHEAD_REDIS_URL" not in self.options.outside:
            servers.append(Redis(self.layout.root / "redis", port=self.ports["redis"], password=self.layout.secret("redis")))
        for server in servers:
            server.log = self.layout.logs / f"{server.name}.log"
        if servers:
            self.supervisor.start_together(servers)

    def _set_up_database(self) -> None:
        """Migrate and grant as the owner, and make the signing key. Skipped while the migrations are those of the last start."""
        self.layout.secret("secret-key", 64)
        sources = [CHECKOUT / "fleet" / "management" / "commands" / "setup_database.py", *sorted(CHECKOUT.glob("*/migrations/*.py"))]
        migrations = _digest(*(path.read_bytes() for path in sources), CHECKOUT.joinpath("requirements", "dev.lock").read_bytes())
        if self._differs("database", migrations):
            self.manage("setup_database", role=OWNER_ROLE)
            self.layout.remember(database=migrations)
        if not self.layout.signing_key.exists():
            self.manage("create_signing_key", str(self.layout.signing_key))
        self.layout.protect_signing_key()

    def _seed(self) -> None:
        """Fleet, accounts, tenants, the sender's token, and bundles for agents. Skipped while all of it is as at the last start, within a week."""
        rows = {"rows": inventory_rows(self.plan, PortsConfig(**self._exporter_ports())), "names": place_names(self.plan)}
        inventory = self.layout.root / "inventory.json"
        inventory.write_text(json.dumps(rows))
        accounts = self.layout.write_secret("accounts.json", json.dumps(self.layout.account_passwords()))
        command = CHECKOUT.joinpath("console", "demo.py").read_bytes()
        week = str(int(time.time() // (7 * 86_400)))
        seeded = _digest(inventory.read_bytes(), accounts.read_bytes(), command, str(self.ports["gateway"]).encode(), week.encode())
        files = {"sender-token": self.layout.secrets / SENDER_TOKEN, "bundles": self.layout.secrets / BUNDLES}
        if self._differs("seeded", seeded) or not all(path.exists() for path in files.values()):
            options = {"inventory": inventory, "accounts": accounts, **files}
            self.manage("seed_demo", *(f"--{name}={path}" for name, path in options.items()), signing_key=True)
            self.layout.remember(seeded=seeded)

    def _differs(self, name: str, digest: str) -> bool:
        """Whether a step has to be done: it was done for something else, or on a database that is not only ours."""
        return "MASTHEAD_DATABASE_URL" in self.options.outside or self.layout.state().get(name) != digest

    def _exporter_ports(self) -> dict[str, int]:
        return {name: self.ports[name] for name in ("dcgm", "triton", "vllm", "node")}

    def _write_configurations(self) -> None:
        folder = self.layout.root / "prometheus"
        folder.mkdir(exist_ok=True)
        write_prometheus_config(
            folder / "prometheus.yml",
            console_url=self.url,
            telemetry_url=f"http://127.0.0.1:{self.ports['telemetry']}",
            token_file=self.layout.secrets / SENDER_TOKEN,
            scrape_interval_seconds=self.options.scrape_interval_seconds,
        )
        config = self.plan.simulator_config(
            control_address=f"127.0.0.1:{self.ports['simulator']}",
            act_log="acts.jsonl",
            step_seconds=1.0,
            ports=PortsConfig(**self._exporter_ports()),
            agents=AgentsConfig(converge_seconds=2, inspect_seconds=15),
            bundles=json.loads((self.layout.secrets / BUNDLES).read_text())["texts"],
        )
        target = self.layout.simulator / "simulator.json"
        target.touch(mode=0o600)
        target.write_text(json.dumps(dump_config(config)))

    def _prometheus(self) -> Prometheus:
        folder = self.layout.root / "prometheus"
        prometheus = Prometheus(folder, folder / "prometheus.yml", port=self.ports["prometheus"])
        prometheus.log = self.layout.logs / "prometheus.log"
        return prometheus

    def _programs(self) -> list[Server]:
        ports, logs = self.ports, self.layout.logs
        plain, signing = self.environment(), self.environment(signing_key=True)
        uvicorn = [PYTHON, "-m", "uvicorn", "--host", "127.0.0.1", "--no-access-log"]
        simulator = [PYTHON, "-m", "agent.simulator"]
        config = f"--config={self.layout.simulator / 'simulator.json'}"
        gateway = [*uvicorn, "fleet.gateway:application", f"--port={ports['gateway']}", "--ws=websockets-sansio"]
        gateway += ["--ws-per-message-deflate=false", "--ws-max-size=1048576", "--ws-ping-interval=0"]
        programs: list[Server] = []

        def add(name: str, command: list[str], environment: dict[str, str], ready: Callable[[], bool] | None = None) -> None:
            programs.append(Program(name, logs, command, environment, ready=ready))

        web = [*uvicorn, "console.asgi:application", f"--port={ports['web']}", "--ws=websockets-sansio", "--ws-per-message-deflate=false"]
        add("web", web, signing, answers(f"{self.url}/healthz"))
        add("gateway", (_WITHOUT_CAPABILITIES if os.geteuid() == 0 else []) + gateway, plain, listens(ports["gateway"]))
        add("telemetry", [PYTHON, "manage.py", "telemetry", "--host=127.0.0.1", f"--port={ports['telemetry']}"], plain, listens(ports["telemetry"]))
        add("worker", [PYTHON, "-m", "celery", "-A", "console.celery", "worker", "--loglevel=INFO", "--concurrency=2"], signing)
        add("beat", [PYTHON, "manage.py", "beat"], plain)
        timeline = ["--timeline=mild"] if self.options.timeline else []
        add("simulator-hardware", [*simulator, "hardware", config, *timeline], plain, listens(ports["simulator"]))
        shares = 1 + len(self.plan.nodes) // 200
        for share in range(shares):
            add(f"simulator-agents-{share + 1}", [*simulator, "agents", config, f"--share={share}/{shares}"], plain)
        return programs


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
