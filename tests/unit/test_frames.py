"""Frames: what is encoded is decoded, and a delta applied to a snapshot is the next snapshot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import frames

NOW = 1_763_632_800.0


def cells(count: int, seed: int = 1, *, first_id: int = 1) -> frames.SiteColumns:
    random = np.random.default_rng(seed)
    return frames.columns(
        site_id=np.arange(first_id, first_id + count),
        state=random.integers(0, 5, count),
        flags=random.integers(0, 4, count),
        gpus_reporting=random.integers(0, 9, count),
        gpus_expected=random.integers(0, 9, count),
        utilization_ratio=np.where(random.random(count) < 0.2, np.nan, random.random(count)),
        power_watts=np.where(random.random(count) < 0.2, np.nan, random.random(count) * 3000),
        since=NOW - random.integers(0, 100_000, count),
        contact=np.where(random.random(count) < 0.2, np.nan, NOW - random.random(count) * 1_000_000),
    )


@given(count=st.integers(0, 60), changed=st.integers(0, 60), added=st.integers(0, 5), seed=st.integers(0, 1000), seconds=st.floats(0, 100))
@settings(deadline=None, max_examples=80)
def test_delta_applied_to_a_snapshot_is_the_next_snapshot(count: int, changed: int, added: int, seed: int, seconds: float) -> None:
    before = cells(count, seed)
    moved = cells(count + added, seed + 1)
    rows = np.random.default_rng(seed).permutation(count)[:changed]
    after = frames.apply(before, moved.take(np.sort(rows)))
    if added:
        after = frames.apply(after, moved.take(np.arange(count, count + added)))
    snapshot, _ = frames.decode(frames.encode(frames.Frame(frames.SNAPSHOT, 3, NOW, 10, before)))
    delta, _ = frames.decode(frames.encode(frames.Frame(frames.DELTA, 3, NOW + seconds, 11, frames.diff(before, after))))
    following, _ = frames.decode(frames.encode(frames.Frame(frames.SNAPSHOT, 3, NOW + 2 * seconds, 11, after)))
    assert frames.apply(snapshot.columns, delta.columns).equals(following.columns)


def test_only_what_changed_travels() -> None:
    before = cells(1000)
    after = frames.apply(before, cells(1000, 9).take(np.array([4, 700])))
    assert frames.diff(before, after).site_id.tolist() == [5, 701]
    assert len(frames.diff(after, after)) == 0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_columns_are_padded_to_four_bytes(count: int) -> None:
    data = frames.encode(frames.Frame(frames.SNAPSHOT, 1, NOW, 2**52 + 1, cells(count)))
    assert len(data) == frames.frame_length(count)
    assert len(data) % 4 == 0
    frame, end = frames.decode(data)
    assert (frame.kind, frame.area_id, frame.made_at, frame.seq, end) == (frames.SNAPSHOT, 1, NOW, 2**52 + 1, len(data))
    assert frame.columns.equals(cells(count))


def test_absent_values_stay_absent() -> None:
    made = frames.columns(
        site_id=[9, 2],
        state=[3, 0],
        flags=[2, 0],
        gpus_reporting=[0, 70_000],
        gpus_expected=[2, 2],
        utilization_ratio=[np.nan, 0.0],
        power_watts=[np.nan, 0.0],
        since=[NOW, NOW],
        contact=[np.nan, NOW],
    )
    frame, _ = frames.decode(frames.encode(frames.Frame(frames.DELTA, 1, NOW, 1, made)))
    got = frame.columns
    assert got.site_id.tolist() == [2, 9]
    assert got.utilization.tolist() == [0, frames.NO_UTILIZATION]
    assert got.power_watts[0] == 0
    assert np.isnan(got.power_watts[1])
    assert np.isnan(got.contact[1])
    assert got.gpus_reporting.tolist() == [65_535, 0]


def test_frames_stand_back_to_back() -> None:
    data = b"".join(frames.encode(frames.Frame(frames.DELTA, area, NOW, 7, cells(area))) for area in (1, 2, 3))
    assert [(frame.area_id, len(frame.columns)) for frame in frames.decode_all(data)] == [(1, 1), (2, 2), (3, 3)]


def test_a_scope_sees_only_its_sites() -> None:
    assert frames.only_sites(cells(10), np.array([2, 3, 99], dtype=np.uint32)).site_id.tolist() == [2, 3]


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode(data)


@given(cut=st.integers(0, frames.frame_length(5) - 1))
def test_a_cut_frame_is_refused(cut: int) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode(frames.encode(frames.Frame(frames.SNAPSHOT, 1, NOW, 1, cells(5)))[:cut])
