"""The hand-written decoder against a protobuf library's: same bytes, same samples; garbage refused alike."""

import struct

import cramjam
import pytest
from google.protobuf.message import DecodeError as LibraryError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.telemetry.prompb import CLASSES, WriteRequest, write_request
from fleet.telemetry.protobuf_wire import DecodeError
from fleet.telemetry.remote_write_decoder import TooLarge, decode, digest, inflate

T = 1795168800.0
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]


def bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def by_library(data: bytes) -> list[tuple[tuple[tuple[str, str], ...], list[tuple[int, int]], int]] | None:
    request = WriteRequest()
    try:
        request.ParseFromString(data)
    except LibraryError:
        return None
    return [
        (
            tuple(sorted({label.name: label.value for label in one.labels}.items())),
            [(bits(sample.value), sample.timestamp) for sample in one.samples],
            len(one.histograms),
        )
        for one in request.timeseries
    ]


def by_hand(data: bytes, known: dict[int, int], labels_of: dict[int, tuple[tuple[str, str], ...]]) -> list[object] | None:
    """All series of a body; learns the usual ones so that the next call takes the fast path."""
    try:
        batch = decode(data, known)
    except DecodeError:
        return None
    found: list[tuple[int, object]] = []
    for index, slot in enumerate(batch.slots.tolist()):
        samples = [(bits(float(batch.values[index])), int(batch.times_ms[index]))]
        found.append((int(batch.spans[index, 0]), (labels_of[slot], samples, 0)))
    for fresh in batch.fresh:
        labels = tuple(sorted(fresh.labels.items()))
        found.append((fresh.start, (labels, [(bits(fresh.value), fresh.millis)], 0)))
        slot = known.setdefault(fresh.digest, len(known))
        labels_of[slot] = labels
    for (start, _), series in zip(batch.others, batch.read_others(), strict=True):
        labels = tuple(sorted(series.labels.items()))
        found.append((start, (labels, [(bits(value), millis) for value, millis in series.samples], series.histograms)))
        if series.simple_key is not None:
            slot = known.setdefault(digest(series.simple_key), len(known))
            labels_of[slot] = labels
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]


def assert_alike(data: bytes) -> None:
    known: dict[int, int] = {}
    labels_of: dict[int, tuple[tuple[str, str], ...]] = {}
    expected = by_library(data)
    assert by_hand(data, known, labels_of) == expected
    assert by_hand(data, known, labels_of) == expected


LABELS = st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=40), max_size=6)
VALUES = st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, STALE, 1.0, 9223372036854775794.0])
TIMES = st.integers(1_600_000_000, 1_900_000_000) | st.integers(-(2**52), 2**52)
SERIES = st.lists(st.tuples(LABELS, st.lists(st.tuples(VALUES, TIMES), max_size=3)), max_size=8)


@given(SERIES)
@settings(max_examples=150, deadline=None)
def test_same_bytes_same_samples(series: list[tuple[dict[str, str], list[tuple[float, float]]]]) -> None:
    assert_alike(write_request(series))


def test_the_usual_series_takes_the_fast_path_the_second_time() -> None:
    data = write_request([({"__name__": "DCGM_FI_DEV_SM_CLOCK", "UUID": f"GPU-{n}"}, [(float(n), T)]) for n in range(50)])
    known: dict[int, int] = {}
    first = decode(data, known)
    assert len(first.slots) == 0
    assert len(first.fresh) == 50
    for slot, series in enumerate(first.fresh):
        known[series.digest] = slot
    second = decode(data, known)
    assert second.slots.tolist() == list(range(50))
    assert second.values.tolist() == [float(n) for n in range(50)]
    assert set(second.times_ms.tolist()) == {int(T * 1000)}
    assert (second.fresh, second.others) == ([], [])
    assert second.read(3).labels == {"__name__": "DCGM_FI_DEV_SM_CLOCK", "UUID": "GPU-3"}


@given(SERIES, st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_bodies_get_the_same_verdict(series: list[tuple[dict[str, str], list[tuple[float, float]]]], data: st.DataObject) -> None:
    body = bytearray(write_request(series))
    for _ in range(data.draw(st.integers(1, 4))):
        if not body:
            break
        where = data.draw(st.integers(0, len(body) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if kind == "set":
            body[where] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del body[where : where + data.draw(st.integers(1, 5))]
        else:
            body[where:where] = data.draw(st.binary(min_size=1, max_size=5))
    assert_alike(bytes(body))


@given(st.binary(max_size=200))
@example(b"\x0b\x0c")
@example(b"\x0a\x80")
@example(b"\x0a\x02\x0a\x05")
@example(b"\x0a\x06\x0a\x04\x0a\x02\xff\xff")
@example(b"\x1a\x04\x12\x02\xc3\x28")
@settings(max_examples=200, deadline=None)
def test_garbage_gets_the_same_verdict(data: bytes) -> None:
    assert_alike(data)


def test_histograms_exemplars_and_metadata_are_read_past_and_counted() -> None:
    request = WriteRequest()
    one = request.timeseries.add()
    one.labels.add(name="__name__", value="latency")
    one.histograms.add(count_int=60, sum=12.0, schema=3, positive_deltas=[1, -2, 3], custom_values=[0.5], timestamp=int(T * 1000))
    one.exemplars.add(value=0.3, timestamp=int(T * 1000)).labels.add(name="trace", value="x")
    request.metadata.add(type=1, metric_family_name="latency", help="Latency.")
    assert_alike(request.SerializeToString())
    (series,) = decode(request.SerializeToString(), {}).read_others()
    assert (series.histograms, series.samples, series.simple_key) == (1, [], None)


def test_label_bytes_that_look_like_a_sample_do_not_mislead() -> None:
    tail = b"\x12\x10\x09" + struct.pack("<d", 5.0)[:8] + b"\x10" + b"\x80\x80\x80\x80\x80\x01"
    series = CLASSES["TimeSeries"]()
    series.labels.add(name="x", value=tail.decode("latin-1"))
    request = WriteRequest(timeseries=[series])
    assert_alike(request.SerializeToString())


class TestInflate:
    def test_round_trip(self) -> None:
        data = write_request([({"a": "b"}, [(1.0, T)])])
        assert inflate(bytes(cramjam.snappy.compress_raw(data)), limit=1000) == data
        assert inflate(b"\x00", limit=1000) == b""

    def test_the_declared_length_is_checked_before_inflating(self) -> None:
        bomb = bytes(cramjam.snappy.compress_raw(bytes(1_000_000)))
        with pytest.raises(TooLarge, match="1000000 bytes"):
            inflate(bomb, limit=999_999)

    def test_a_length_without_content_inflates_nothing(self) -> None:
        with pytest.raises(TooLarge):
            inflate(b"\xff\xff\xff\xff\x0f", limit=1 << 20)
        with pytest.raises(DecodeError):
            inflate(b"\xff\xff\x03", limit=1 << 20)

    @given(st.binary(max_size=60))
    @settings(max_examples=150, deadline=None)
    def test_garbage_is_refused_or_inflated(self, body: bytes) -> None:
        try:
            assert len(inflate(body, limit=10_000)) <= 10_000
        except (DecodeError, TooLarge):
            return
