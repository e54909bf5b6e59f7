"""Several pods on one GPU or slice: all are told together, with how they share it."""

from collections.abc import Callable, Sequence

import pytest

from fleet.telemetry.fields import Sample
from fleet.telemetry.ingest import Ingest
from tests.fleet.samples import T0, fleet_of, pull, push

GPU = "GPU-00000000-0000-0000-0000-000000000001"
Told = list[tuple[str, str]]
Door = Callable[..., None]
DOORS = pytest.mark.parametrize("door", [push, pull])


def samples(pods: Sequence[str], at: float, **labels: str) -> list[Sample]:
    """A scrape of a GPU that these pods share; "" is a line that names none."""
    names = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP")
    return [
        Sample({"__name__": name, "UUID": GPU, **({"exported_pod": pod, "exported_namespace": "t"} if pod else {}), **labels}, 50.0, at)
        for pod in pods
        for name in names
    ]


def told(ingest: Ingest, now: float) -> Told:
    batch = ingest.sightings.take(now=now, limit=100)
    assert len({seen.at for seen in batch}) <= 1
    return sorted((seen.pod, seen.sharing) for seen in batch)


@pytest.fixture
def ingest() -> Ingest:
    return fleet_of([GPU])


@DOORS
def test_three_pods_from_the_first_scrape_on(ingest: Ingest, door: Door) -> None:
    door(ingest, samples("abc", T0))
    assert told(ingest, T0 + 1) == []
    assert told(ingest, T0 + 4) == [("a", "time_sliced"), ("b", "time_sliced"), ("c", "time_sliced")]
    for n in range(1, 6):
        door(ingest, samples("abc", T0 + 10 * n))
        assert told(ingest, T0 + 10 * n + 4) == []


@DOORS
def test_pods_join_and_leave(ingest: Ingest, door: Door) -> None:
    seen: list[Told] = []
    for n, pods in enumerate(["a", "ab", "ab", "abc", "abc", "bc", "bc", "bc", "c", "c", "c"]):
        door(ingest, samples(pods, T0 + 10 * n))
        seen.append(told(ingest, T0 + 10 * n + 4))
    assert [(n, one) for n, one in enumerate(seen) if one] == [
        (0, [("a", "")]),
        (1 if door is pull else 2, [("a", "time_sliced"), ("b", "time_sliced")]),  # by push the labels of `a` are read with the next scrape
        (3, [("a", "time_sliced"), ("b", "time_sliced"), ("c", "time_sliced")]),
        (6, [("b", "time_sliced"), ("c", "time_sliced")]),
        (9, [("c", "whole")]),
    ]


def test_bodies_of_one_scrape_that_come_one_after_another(ingest: Ingest) -> None:
    push(ingest, samples("a", T0))
    assert told(ingest, T0 + 3) == [("a", "")]
    found = []
    for n in range(1, 5):
        at = T0 + 10 * n
        push(ingest, samples("b", at), now=at)
        push(ingest, samples("a", at), now=at + 0.5)
        found += told(ingest, at + 5)
    assert found == [("a", "time_sliced"), ("b", "time_sliced")]


def test_a_pod_that_takes_anothers_place_shares_nothing(ingest: Ingest) -> None:
    push(ingest, samples("a", T0))
    assert told(ingest, T0 + 3) == [("a", "")]
    push(ingest, samples("b", T0 + 10))
    assert told(ingest, T0 + 14) == [("b", "")]


def test_all_pods_leave(ingest: Ingest) -> None:
    for n in range(2):
        push(ingest, samples("ab", T0 + 10 * n))
        told(ingest, T0 + 10 * n + 4)
    for n in range(2, 5):
        push(ingest, samples([""], T0 + 10 * n))
    assert told(ingest, T0 + 44) == [("", "whole")]
    assert told(ingest, T0 + 54) == []


def test_a_line_without_a_pod_is_no_sharer(ingest: Ingest) -> None:
    for n in range(4):
        push(ingest, samples(["a", ""], T0 + 10 * n))
    assert {pod for pod, _ in told(ingest, T0 + 34)} == {"a"}


@pytest.mark.parametrize(
    ("labels", "pods", "right"),
    [
        ({"vgpu": "1"}, "a", [("a", "time_sliced")]),
        ({"vgpu": "1"}, "ab", [("a", "time_sliced"), ("b", "time_sliced")]),
        ({"nvidia_com_gpu_sharing_strategy": "mps"}, "ab", [("a", "mps"), ("b", "mps")]),
        ({"gpu_sharing_strategy": "time-slicing"}, "a", [("a", "time_sliced")]),
        ({"gpu_sharing_strategy": "none"}, "a", [("a", "")]),
    ],
)
def test_how_they_share_as_the_labels_say(ingest: Ingest, labels: dict[str, str], pods: str, right: Told) -> None:
    found: Told = []
    for n in range(3):
        push(ingest, samples(pods, T0 + 10 * n, **labels))
        found += told(ingest, T0 + 10 * n + 4)
    assert found == right


def test_pods_on_one_slice(ingest: Ingest) -> None:
    on_slice = {"GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}
    lines = [Sample({**one.labels, "__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE"}, 0.5, T0) for one in samples("ab", T0, **on_slice)]
    push(ingest, lines)
    assert told(ingest, T0 + 1) == []
    assert told(ingest, T0 + 4) == [("a", "time_sliced"), ("b", "time_sliced")]


def test_a_batch_is_not_cut_within_a_place(ingest: Ingest) -> None:
    push(ingest, samples("abcd", T0))
    ingest.sightings.take(now=T0 + 1, limit=2)
    assert len(ingest.sightings.take(now=T0 + 4, limit=2)) == 4
