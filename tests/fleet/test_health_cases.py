"""Cases C06, C07, C08, C12, C17, C18: real-world inputs and what is right of them, as far as health decides it."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fleet.models import Finding, Gpu, GpuHealth, Node, XidEvent
from tests.builders import make_gpu, make_node, make_region, make_site
from tests.fleet.health_world import World, state_of

pytestmark = pytest.mark.django_db
CASES = Path(__file__).parent.parent / "cases"


def read(case: str, name: str) -> Any:
    return json.loads((CASES / case / name).read_text())


def unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def labels(line: str) -> dict[str, str]:
    inside = line[line.index("{") + 1 : line.rindex("}")]
    return dict(part.split("=", 1) for part in inside.replace('"', "").split(","))


def uuids(case: str, name: str) -> list[str]:
    lines = (CASES / case / name).read_text().splitlines()
    return [labels(line)["UUID"] for line in lines if line.startswith("DCGM_FI_DEV_GPU_TEMP")]


def test_c06_an_old_sample_is_not_live() -> None:
    case = "C06-lookback-age"
    expect = read(case, "expect.json")
    times = {row["metric"]["UUID"]: float(row["value"][1]) for row in read(case, "timestamps.json")["data"]["result"]}
    values = {row["metric"]["UUID"]: float(row["value"][1]) / 100 for row in read(case, "values.json")["data"]["result"]}
    site = make_site()
    for gpu_uuid in times:
        make_gpu(gpu_uuid, node=make_node(site=site))
    world = World(start=1795168800.0 - 40)
    for gpu_uuid, at in times.items():
        world.scrape([gpu_uuid], at=at - 300)
    world.tick()
    for _ in range(41):
        for gpu_uuid, at in times.items():
            if at <= world.now:
                world.scrape([gpu_uuid], at=at, utilization_ratio=values[gpu_uuid])
        world.tick()
        world.now += 1
    fresh = {gpu_uuid: "fresh" if state_of(Gpu.objects.get(uuid=gpu_uuid))[0] == "ok" else "stale" for gpu_uuid in times}
    assert fresh == expect["state"]
    cells = world.store.evaluator.cells
    assert cells is not None
    assert cells.utilization_ratio.tolist() == [expect["live_mean_util_pct"] / 100]
    stale = GpuHealth.objects.get(gpu__uuid=next(key for key, word in expect["state"].items() if word == "stale"))
    assert stale.since.timestamp() == unix(expect["last_seen"][stale.gpu.uuid])


def test_c07_the_gauge_is_a_code() -> None:
    case = "C07-xid-is-a-code"
    expect = read(case, "expect.json")
    series = read(case, "range.json")["data"]["result"][0]
    counts = read(case, "counts.json")["data"]["result"][0]
    gpu = make_gpu(series["metric"]["UUID"], node=make_node())
    world = World(start=series["values"][0][0])
    counted = {at: int(value) for at, value in counts["values"]}
    old: int | None = None
    old_count: int | None = None
    for at, text in series["values"]:
        world.now, new = float(at), int(text)
        world.scrape()
        if old is None or new != old:
            world.xid(gpu, new, old=old)
        if at in counted and counted[at] != old_count:
            world.xid_count(gpu, int(counts["metric"]["xid"]), counted[at], old=old_count)
            old_count = counted[at]
        old = new
        world.tick()
        if at == series["values"][0][0]:
            health = GpuHealth.objects.get(gpu=gpu)
            assert (health.last_xid, health.last_xid_at, health.state) == (expect["preexisting"]["xid"], expect["preexisting"]["time"], "ok")
            assert Finding.objects.exists() is expect["preexisting"]["opens_incident"]
    events = {event.xid: event for event in XidEvent.objects.all()}
    assert events[31].count == expect["xid31_occurrences_with_counts"]
    assert events[31].first_at.timestamp() == unix(expect["gauge_events"][0]["t"])
    assert (events[79].first_at.timestamp(), events[79].last_at.timestamp()) == tuple(unix(event["t"]) for event in expect["gauge_events"][1:])
    assert 13 not in events
    assert state_of(gpu) == ("down", "xid_79")
    assert Finding.objects.get(code="xid_79").until is None


def test_c08_profiling_at_zero_on_busy_gpus_is_one_finding_of_the_node() -> None:
    case = "C08-profiling-silently-zero"
    expect = read(case, "expect.json")
    values: dict[str, dict[str, float]] = {}
    for line in (CASES / case / "scrape.prom").read_text().splitlines():
        if not line.startswith("#"):
            values.setdefault(labels(line)["UUID"], {})[line.split("{")[0]] = float(line.rsplit(" ", 1)[1])
    node = make_node(expected_gpus=4)
    for gpu_uuid in values:
        make_gpu(gpu_uuid, node=node)
    world = World()
    for _ in range(3):
        for gpu_uuid, read_values in values.items():
            world.scrape(
                [gpu_uuid],
                utilization_ratio=read_values["DCGM_FI_DEV_GPU_UTIL"] / 100,
                power_watts=read_values["DCGM_FI_DEV_POWER_USAGE"],
                engine_active_ratio=read_values["DCGM_FI_PROF_GR_ENGINE_ACTIVE"],
            )
        world.tick()
        world.now += 10
    finding = Finding.objects.get()
    assert (finding.kind, finding.code, finding.object_key) == ("node", "profiling_suspect", str(node.pk))
    assert sorted(finding.evidence["gpus"]) == sorted(expect["busy"])
    assert finding.evidence["metric"] == expect["suspect_metric"]


def test_c12_a_partial_answer_ends_nothing() -> None:
    case = "C12-partial-success"
    expect = read(case, "expect.json")
    sites: dict[str, list[str]] = {}
    for row in read(case, "1-full.json")["data"]["result"]:
        sites.setdefault(row["metric"]["site"], []).append(row["metric"]["UUID"])
    region = make_region()
    for code, members in sites.items():
        node = make_node(site=make_site(code, region=region))
        for gpu_uuid in members:
            make_gpu(gpu_uuid, node=node)
    incident = read(case, "open_incidents.json")[0]
    world = World(start=1795168800.0)
    world.scrape()
    world.scrape([incident["gpu"]], row_remap_pending=1)
    world.tick()
    for name in ("2-partial.json", "3-infos.json"):
        for _ in range(60):
            world.now += 1
            if world.now % 10 == 0 and world.now % 60:
                world.scrape(sites["edge-ams"])
            if world.now % 60 == 0:
                for row in read(case, name)["data"]["result"]:
                    marked = row["metric"]["UUID"] == incident["gpu"]
                    world.scrape([row["metric"]["UUID"]], at=row["value"][0], row_remap_pending=float(marked))
            world.tick()
        states = [state_of(gpu)[0] for gpu in Gpu.objects.all()]
        if name == "2-partial.json":
            assert (states.count("ok"), states.count("unknown")) == (expect["after_partial"]["fresh"], expect["after_partial"]["unknown"])
            assert Finding.objects.open().filter(object_key=incident["gpu"], code="row_remap_pending").exists()
        else:
            assert states.count("unknown") == 0
            assert len(states) == expect["after_infos"]["fresh"]
    assert not Gpu.objects.filter(presence="retired").exists()


def test_c17_the_lost_gpu_is_the_one_by_uuid() -> None:
    case = "C17-gpu-lost-and-renumbered"
    expect = read(case, "expect.json")
    before, after = uuids(case, "before.prom"), uuids(case, "after.prom")
    node = make_node("gpu-b-01", expected_gpus=expect["expected_count"])
    for index, gpu_uuid in enumerate(before):
        make_gpu(gpu_uuid, node=node, index=index)
    world = World()
    world.run(31)
    world.now += 9
    world.run(60, gpus=list(Gpu.objects.filter(uuid__in=after)))
    (missing,) = expect["missing"]
    assert state_of(Gpu.objects.get(uuid=missing)) == ("down", "gpu_lost")
    assert Gpu.objects.get(uuid=missing).presence == "missing"
    assert {state_of(Gpu.objects.get(uuid=gpu_uuid)) for gpu_uuid in expect["present"]} == {("ok", "ok")}
    count = Finding.objects.get(code="gpu_count")
    assert (count.evidence["present"], count.evidence["expected"]) == (3, 4)
    assert set(Finding.objects.filter(kind="gpu").values_list("object_key", flat=True)) == {missing}


def test_c18_a_new_gpu_inherits_no_fault() -> None:
    case = "C18-gpu-replaced"
    expect = read(case, "expect.json")
    node: Node = make_node("gpu-b-02")
    old = make_gpu(expect["retired"], node=node, index=0)
    world = World()
    world.run(40, clock_event_reasons=0x80, ecc_dbe_total=3)
    assert state_of(old) == ("degraded", "hw_power_brake")
    new = make_gpu(expect["added"], node=node, index=0)
    Gpu.objects.filter(pk=old.pk).update(presence="retired", retired_at=new.first_seen_at or "2026-11-20T12:00:00Z", replaced_by=new)
    world.live.gpu_active[world.live.gpu_row_of[old.uuid]] = False
    world.live.add_gpus([(new.pk, new.uuid, node.pk)])
    world.run(40, gpus=[new])
    assert state_of(new) == state_of(node) == ("ok", "ok")
    assert not Finding.objects.open().exists()
    assert expect["new_gpu_open_incidents"] == 0
    assert "replaced" in Finding.objects.get(code="hw_power_brake").ended_because.lower()
