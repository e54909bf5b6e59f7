"""Prometheus' remote_write messages through the protobuf library: bodies that the pull and the tests send, and the oracle of the hand-written decoder."""

from collections.abc import Iterable, Mapping
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = descriptor_pb2.FieldDescriptorProto
_SCHEMA: dict[str, list[tuple[int, str, int, bool, str]]] = {
    "Label": [(1, "name", _TYPES.TYPE_STRING, False, ""), (2, "value", _TYPES.TYPE_STRING, False, "")],
    "Sample": [(1, "value", _TYPES.TYPE_DOUBLE, False, ""), (2, "timestamp", _TYPES.TYPE_INT64, False, "")],
    "Exemplar": [
        (1, "labels", _TYPES.TYPE_MESSAGE, True, "Label"),
        (2, "value", _TYPES.TYPE_DOUBLE, False, ""),
        (3, "timestamp", _TYPES.TYPE_INT64, False, ""),
    ],
    "BucketSpan": [(1, "offset", _TYPES.TYPE_SINT32, False, ""), (2, "length", _TYPES.TYPE_UINT32, False, "")],
    "Histogram": [
        (1, "count_int", _TYPES.TYPE_UINT64, False, ""),
        (2, "count_float", _TYPES.TYPE_DOUBLE, False, ""),
        (3, "sum", _TYPES.TYPE_DOUBLE, False, ""),
        (4, "schema", _TYPES.TYPE_SINT32, False, ""),
        (5, "zero_threshold", _TYPES.TYPE_DOUBLE, False, ""),
        (6, "zero_count_int", _TYPES.TYPE_UINT64, False, ""),
        (7, "zero_count_float", _TYPES.TYPE_DOUBLE, False, ""),
        (8, "negative_spans", _TYPES.TYPE_MESSAGE, True, "BucketSpan"),
        (9, "negative_deltas", _TYPES.TYPE_SINT64, True, ""),
        (10, "negative_counts", _TYPES.TYPE_DOUBLE, True, ""),
        (11, "positive_spans", _TYPES.TYPE_MESSAGE, True, "BucketSpan"),
        (12, "positive_deltas", _TYPES.TYPE_SINT64, True, ""),
        (13, "positive_counts", _TYPES.TYPE_DOUBLE, True, ""),
        (14, "reset_hint", _TYPES.TYPE_INT32, False, ""),
        (15, "timestamp", _TYPES.TYPE_INT64, False, ""),
        (16, "custom_values", _TYPES.TYPE_DOUBLE, True, ""),
    ],
    "MetricMetadata": [
        (1, "type", _TYPES.TYPE_INT32, False, ""),
        (2, "metric_family_name", _TYPES.TYPE_STRING, False, ""),
        (4, "help", _TYPES.TYPE_STRING, False, ""),
        (5, "unit", _TYPES.TYPE_STRING, False, ""),
    ],
    "TimeSeries": [
        (1, "labels", _TYPES.TYPE_MESSAGE, True, "Label"),
        (2, "samples", _TYPES.TYPE_MESSAGE, True, "Sample"),
        (3, "exemplars", _TYPES.TYPE_MESSAGE, True, "Exemplar"),
        (4, "histograms", _TYPES.TYPE_MESSAGE, True, "Histogram"),
    ],
    "WriteRequest": [(1, "timeseries", _TYPES.TYPE_MESSAGE, True, "TimeSeries"), (3, "metadata", _TYPES.TYPE_MESSAGE, True, "MetricMetadata")],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="prompb.proto", package="prompb", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, field_name, its_type, repeated, type_name in fields:
            field = message.field.add(name=field_name, number=number, type=its_type, label=_TYPES.LABEL_REPEATED if repeated else _TYPES.LABEL_OPTIONAL)
            if type_name:
                field.type_name = f".prompb.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"prompb.{name}")) for name in _SCHEMA}


CLASSES = _classes()
WriteRequest = CLASSES["WriteRequest"]


def write_request(series: Iterable[tuple[Mapping[str, str], Iterable[tuple[float, float]]]]) -> bytes:
    """A WriteRequest of (labels, [(value, Unix seconds)]), labels sorted by name as Prometheus does."""
    request = WriteRequest()
    for labels, samples in series:
        one = request.timeseries.add()
        for name, value in sorted(labels.items()):
            one.labels.add(name=name, value=value)
        for number, at in samples:
            one.samples.add(value=number, timestamp=round(at * 1000))
    encoded: bytes = request.SerializeToString()
    return encoded


def body_of(series: Iterable[tuple[Mapping[str, str], Iterable[tuple[float, float]]]]) -> bytes:
    """The same, as remote_write sends it."""
    return bytes(cramjam.snappy.compress_raw(write_request(series)))
