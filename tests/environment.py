"""Real servers for the tests: PostgreSQL (owner migrates, application role tests) and Redis, started once a run.

An early pytest plugin (`-p tests.environment`), since Django's settings come from the environment.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from script.servers import APP_ROLE, Postgres, Redis


def _start_servers() -> None:
    """Start (or, in an xdist worker, join) the run's servers and point the settings at them."""
    if "MASTHEAD_TEST_SERVERS" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="masthead-test-", dir="/tmp"))
        folder.chmod(0o755)
        postgres = Postgres(folder / "postgres", durable=False)
        redis = Redis(folder / "redis")
        postgres.start()
        redis.start()
        owner = os.getpid()

        def stop() -> None:
            if os.getpid() == owner:
                redis.stop()
                postgres.stop()
                shutil.rmtree(folder, ignore_errors=True)

        atexit.register(stop)
        os.environ["MASTHEAD_TEST_SERVERS"] = f"{postgres.port},{redis.port}"
    postgres_port, redis_port = os.environ["MASTHEAD_TEST_SERVERS"].split(",")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    os.environ.update(
        {
            "MASTHEAD_SECRET_KEY": "test-key-" + "x" * 60,
            "MASTHEAD_DATABASE_URL": f"postgresql://{APP_ROLE}@127.0.0.1:{postgres_port}/masthead",
            "MASTHEAD_REDIS_URL": f"redis://127.0.0.1:{redis_port}/{int(worker) + 1}",
            "MASTHEAD_INSECURE_HTTP": "true",
            "MASTHEAD_PROMETHEUS_URL": "http://127.0.0.1:9",
            "MASTHEAD_SCRAPE_INTERVAL_SECONDS": "10",
            "MASTHEAD_ALLOWED_HOSTS": "localhost,127.0.0.1,testserver",
        }
    )


_start_servers()
