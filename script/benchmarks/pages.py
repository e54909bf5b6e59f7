"""List pages, filters, search and object pages over a fleet of 30,000 sites: p95 on the server and weight of each.

    script/bench pages [--sites 30000] [--repeat 20]

Measured in one process through Django's whole request path (middleware, session, access, SQL, template) against a private PostgreSQL; the network is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from script.servers import OWNER_ROLE, Postgres, Redis

MUST_P95_MS = 200.0
MUST_KB = 300.0


@contextmanager
def servers() -> Iterator[None]:
    """A private PostgreSQL and Redis, and the environment that points Django at them."""
    with tempfile.TemporaryDirectory(prefix="masthead-bench-", dir="/tmp") as text:
        folder = Path(text)
        folder.chmod(0o755)
        postgres, redis = Postgres(folder / "postgres", durable=False), Redis(folder / "redis")
        postgres.start()
        redis.start()
        os.environ.update(
            {
                "DJANGO_SETTINGS_MODULE": "console.settings",
                "MASTHEAD_SECRET_KEY": "bench-" + "x" * 60,
                "MASTHEAD_DATABASE_URL": postgres.url(role=OWNER_ROLE),
                "MASTHEAD_REDIS_URL": redis.url,
                "MASTHEAD_INSECURE_HTTP": "true",
                "MASTHEAD_ALLOWED_HOSTS": "testserver,127.0.0.1,localhost",
            }
        )
        try:
            yield
        finally:
            redis.stop()
            postgres.stop()


def paths(code: str, node_id: int, phy: str, plain: str) -> dict[str, str]:
    """Name of the figure -> address. The names stay, so that figures can be compared over time."""
    return {
        "sites": "/sites",
        "sites_by_power": "/sites?ordering=-power",
        "sites_last_page": "/sites?ordering=code&page=600",
        "sites_200_rows": "/sites?page_size=200",
        "sites_state": "/sites?state=down&state=degraded",
        "sites_region": "/sites?region=phoenix",
        "sites_quick": "/sites?q=maryvale",
        "sites_quick_nothing": "/sites?q=zzzz",
        "sites_finding": "/sites?finding=gpu_lost",
        "nodes": "/nodes",
        "nodes_driver": "/nodes?driver=580.82.07&ordering=host_name",
        "nodes_quick": "/nodes?q=0417",
        "gpus": "/gpus",
        "gpus_by_temperature": "/gpus?ordering=-temperature",
        "gpus_phy": "/gpus?phy=yes&state=degraded",
        "gpus_quick": "/gpus?q=phx-004",
        "regions": "/regions",
        "regions_by_power": "/regions?ordering=-power",
        "search_code": f"/search?q={code}",
        "search_uuid": f"/search?q={phy}",
        "search_word": "/search?q=maryvale",
        "search_pod": "/search?q=llama-8b",
        "search_nothing": "/search?q=zzzz",
        "suggest": "/search/suggest?q=phx-00",
        "site": f"/sites/{code}",
        "node": f"/nodes/{node_id}",
        "gpu_phy": f"/gpus/{phy}",
        "gpu": f"/gpus/{plain}",
        "region": "/regions/phoenix",
    }


def measure(arguments: argparse.Namespace) -> int:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection, reset_queries
    from django.test import Client
    from django.utils import timezone

    from console.models import RoleGrant, User
    from fleet.models import Gpu
    from script.benchmarks.fleet_rows import fill_fleet

    call_command("setup_database", verbosity=0)
    connection.close()
    connection.settings_dict["USER"] = settings.APP_ROLE
    started = time.perf_counter()
    counts = fill_fleet(sites=arguments.sites, now=timezone.now())
    print(f"load: {counts}, inserted in {time.perf_counter() - started:.0f} s", flush=True)
    user = User.objects.create_user("bench")
    RoleGrant.objects.create(user=user, role=RoleGrant.Role.OPERATOR)
    client = Client()
    client.force_login(user)
    phy = Gpu.objects.filter(index=0).select_related("node__site").order_by("pk")[counts.gpus // 4]
    plain = phy.node.gpus.get(index=1)
    figures: dict[str, float] = {}
    weights: dict[str, float] = {}
    wrong: list[str] = []
    for name, path in paths(phy.node.site.code, phy.node_id, phy.uuid, plain.uuid).items():
        client.get(path)
        times = []
        for _ in range(arguments.repeat):
            begin = time.perf_counter()
            answer = client.get(path)
            times.append((time.perf_counter() - begin) * 1000)
            if answer.status_code != 200:
                wrong.append(f"{name}: {answer.status_code}")
        figures[name] = round(sorted(times)[max(0, -(-len(times) * 95 // 100) - 1)], 1)
        weights[name] = round(len(answer.content) / 1000, 1)
        print(f"  {name:22} p95 {figures[name]:7.1f} ms  {weights[name]:6.1f} kB", flush=True)
    settings.DEBUG = True
    for name in ("sites", "nodes", "gpus", "regions"):
        statements = []
        for size in (3, 60):
            reset_queries()
            client.get(f"/{name}?page_size={size}")
            statements.append(len(connection.queries))
        print(f"  {name}: {statements[0]} statements at 3 rows, {statements[1]} at 60", flush=True)
        if statements[0] != statements[1]:
            wrong.append(f"{name}: {statements} statements")
    worst, heaviest = max(figures.values()), max(weights.values())
    for problem in wrong:
        print(f"wrong: {problem}")
    line = {"sites": counts.sites, "nodes": counts.nodes, "gpus": counts.gpus, "pages": len(figures), "p95_ms_max": worst, "kb_max": heaviest}
    print(json.dumps({**line, **{f"{name}_ms": value for name, value in figures.items()}}))
    return 0 if not wrong and worst <= MUST_P95_MS and heaviest <= MUST_KB else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=30_000)
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    with servers():
        return measure(arguments)


if __name__ == "__main__":
    sys.exit(main())
