"""Slices of a GPU that is cut anew, by both doors: who still lives, and what the GPU's use is (cases C05, C19)."""

import pytest

from fleet.telemetry.fields import Sample
from fleet.telemetry.ingest import Ingest
from tests.fleet.samples import T0, fleet_of, gpu_value, pull, push

GPU = "GPU-00000000-0000-0000-0000-000000000001"
BLANK = 140737488355328.0


def engine(value: float, at: float, instance: int, profile: str) -> Sample:
    labels = {"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "UUID": GPU, "GPU_I_ID": str(instance), "GPU_I_PROFILE": profile}
    return Sample(labels, value, at)


def power(at: float) -> Sample:
    return Sample({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": GPU}, 300.0, at)


def small(at: float, value: float = 0.9) -> list[Sample]:
    return [engine(value, at, instance, "1g.10gb") for instance in range(7, 14)]


def large(at: float, value: float = 0.1) -> list[Sample]:
    return [engine(value, at, instance, "3g.40gb") for instance in (1, 2)]


def live_slices(ingest: Ingest) -> list[int]:
    ingest.state.derive()
    return sorted(ingest.state.slice_instance[ingest.state.slice_live].tolist())


@pytest.fixture
def ingest() -> Ingest:
    return fleet_of([GPU])


def test_slices_of_the_layout_before_end_without_a_word(ingest: Ingest) -> None:
    """A pull sees no end of a series; neither does a push whose Prometheus restarted in between."""
    pull(ingest, [power(T0), *small(T0)])
    assert live_slices(ingest) == list(range(7, 14))
    for at in (T0 + 30, T0 + 60, T0 + 90):
        pull(ingest, [power(at), *large(at)])
        assert live_slices(ingest) == [1, 2, *range(7, 14)]
    pull(ingest, [power(T0 + 120), *large(T0 + 120)])
    assert live_slices(ingest) == [1, 2]
    assert gpu_value(ingest, GPU, "utilization_ratio") == pytest.approx(2 * 3 * 0.1 / 7)
    pull(ingest, [power(T0 + 150), *small(T0 + 150)])
    assert live_slices(ingest) == [1, 2, *range(7, 14)]


def test_slices_of_a_silent_gpu_stay_as_they_were(ingest: Ingest) -> None:
    push(ingest, [power(T0), *small(T0)])
    ingest.state.site_last_contact[0] = T0 + 3600
    assert live_slices(ingest) == list(range(7, 14))
    assert gpu_value(ingest, GPU, "utilization_ratio") == pytest.approx(0.9)


def test_slices_that_send_nothing_but_blanks_live_and_make_the_gpus_use_unknown(ingest: Ingest) -> None:
    for at in range(0, 300, 30):
        push(ingest, [power(T0 + at), *small(T0 + at, BLANK if at else 0.9)])
    assert live_slices(ingest) == list(range(7, 14))
    assert gpu_value(ingest, GPU, "utilization_ratio") is None


def test_a_gpu_whose_slices_all_went_without_a_word_has_no_use(ingest: Ingest) -> None:
    for at in range(0, 150, 30):
        pull(ingest, [power(T0 + at), *(small(T0) if at == 0 else [])])
    assert live_slices(ingest) == []
    assert gpu_value(ingest, GPU, "utilization_ratio") is None
