"""`script/bench import`: 30,000 sites by CSV - check, difference, apply, undo - and the export of all of them.

On a PostgreSQL of its own that keeps its promises (fsync on); the work is what a worker does for the job. Prints one line of JSON with the load; exit
status 0 only if every must of the specification held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from script.servers import OWNER_ROLE, Postgres, Redis

ROOT = Path(__file__).resolve().parents[2]
MUSTS = {"import_s": 60.0, "export_s": 5.0}


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.chmod(0o755)
    postgres, redis = Postgres(folder / "postgres"), Redis(folder / "redis")
    try:
        postgres.start()
        redis.start()
        settings = {"MASTHEAD_SECRET_KEY": "bench-" + "x" * 60, "MASTHEAD_REDIS_URL": redis.url, "MASTHEAD_INSECURE_HTTP": "true"}
        owner = os.environ | settings | {"MASTHEAD_DATABASE_URL": postgres.url(role=OWNER_ROLE)}
        subprocess.run([sys.executable, "manage.py", "setup_database", "-v0"], cwd=ROOT, env=owner, check=True, stdout=subprocess.DEVNULL)
        command = [sys.executable, "-m", "script.benchmarks.import_work", "--rows", str(given.rows), *(["--no-history"] if given.no_history else [])]
        application = os.environ | settings | {"MASTHEAD_DATABASE_URL": postgres.url()}
        done = subprocess.run(command, cwd=ROOT, env=application, check=True, stdout=subprocess.PIPE, text=True, timeout=900)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    finally:
        redis.stop()
        postgres.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--no-history", action="store_true", help="without the history triggers, to see what they cost")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="masthead-bench-", dir="/tmp"))
    try:
        result = run(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    held = all(result[name] <= limit for name, limit in MUSTS.items()) and result["right"]
    print(json.dumps(result))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
