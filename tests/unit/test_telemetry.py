"""Tables of cases for what metrics mean: values, blanks, workloads, slices, energy (C32)."""

import pytest

from fleet.inventory.host_names import host_label, host_of_address
from fleet.models import GpuReading, SliceReading
from fleet.telemetry.fields import (
    FIELD_OF_METRIC,
    GPU_FIELDS,
    SLICE_FIELDS,
    DcgmType,
    compute_slices,
    is_blank,
    workload_of,
)
from fleet.telemetry.service_metrics import SERVICE_FIELDS, job_of


def test_fields_are_the_columns_of_the_readings() -> None:
    for model, fields in ((GpuReading, GPU_FIELDS), (SliceReading, SLICE_FIELDS)):
        columns = {column.name for column in model._meta.get_fields()}
        assert {field.name for field in fields} <= columns


@pytest.mark.parametrize(
    ("value", "its_type", "blank"),
    [
        (9223372036854775792.0, DcgmType.INT64, True),
        (2147483640.0, DcgmType.INT64, False),
        (198412345678901.0, DcgmType.INT64, False),
        (140737488355328.0, DcgmType.INT64, False),
        (2147483632.0, DcgmType.INT32, True),
        (2147483647.0, DcgmType.INT32, True),
        (2147483631.0, DcgmType.INT32, False),
        (140737488355328.0, DcgmType.FP64, True),
        (140737488355331.0, DcgmType.FP64, True),
        (140737488355327.0, DcgmType.FP64, False),
        (0.0, DcgmType.INT64, False),
    ],
)
def test_blanks_go_by_the_fields_own_type(value: float, its_type: DcgmType, blank: bool) -> None:
    assert is_blank(value, its_type) is blank


def test_each_metric_name_is_one_field() -> None:
    names = [metric.name for field in GPU_FIELDS for metric in field.metrics]
    assert len(names) == len(set(names)) == len(FIELD_OF_METRIC)


@pytest.mark.parametrize(("profile", "slices"), [("1g.10gb", 1), ("3g.40gb", 3), ("7g.80gb", 7), ("1g.10gb+me", 1), ("1c.3g.40gb", 3), ("", 0), ("mig", 0)])
def test_compute_slices(profile: str, slices: int) -> None:
    assert compute_slices(profile) == slices


@pytest.mark.parametrize(
    ("labels", "honor", "expected"),
    [
        ({"exported_pod": "a", "exported_namespace": "t", "exported_container": "c", "pod": "exporter"}, False, ("t", "a", "c")),
        ({"pod": "exporter", "namespace": "mon", "container": "exporter"}, False, ("", "", "")),
        ({"pod": "a", "namespace": "t", "container": "c"}, True, ("t", "a", "c")),
        ({"pod": "", "namespace": "", "container": ""}, True, ("", "", "")),
        ({"exported_pod": "", "pod": "exporter", "namespace": "mon"}, True, ("", "", "")),
        ({"pod_name": "a", "pod_namespace": "t", "container_name": "c"}, True, ("t", "a", "c")),
        ({"pod_name": "a", "pod_namespace": "t", "container_name": "c", "pod": "exporter", "namespace": "mon"}, False, ("t", "a", "c")),
        ({"exported_pod_name": "a", "exported_pod_namespace": "t", "exported_container_name": "c", "pod_name": "exporter"}, False, ("t", "a", "c")),
        ({"exported_pod_name": "", "pod_name": "exporter", "pod_namespace": "mon"}, False, ("", "", "")),
        ({"pod_name": "", "pod": "exporter", "namespace": "mon"}, False, ("", "", "")),
        ({}, True, ("", "", "")),
    ],
)
def test_workload_labels(labels: dict[str, str], honor: bool, expected: tuple[str, str, str]) -> None:
    assert workload_of(labels, honor_labels=honor) == expected


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("GPU-A-01.example.net", "gpu-a-01"),
        ("gpu-a-01.", "gpu-a-01"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.9.9.9", "10.9.9.9"),
        ("10-1-2-3.example.net", "10-1-2-3"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("7", "7"),
        ("", ""),
    ],
)
def test_host_names_are_compared_by_their_first_label_and_addresses_whole(name: str, label: str) -> None:
    assert host_label(name) == label


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:9400", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[2001:db8::1]:9400", "[2001:db8::1]"),
        ("2001:db8::1", "2001:db8::1"),
        ("gpu-a-01:x", "gpu-a-01:x"),
    ],
)
def test_the_host_of_a_targets_address(address: str, host: str) -> None:
    assert host_of_address(address) == host


def test_service_fields_are_named_once_per_job() -> None:
    names = [(field.job, field.name) for field in SERVICE_FIELDS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "job"), [("dcgm", "dcgm"), ("nvidia-dcgm-exporter", "dcgm"), ("node-exporter", "node"), ("Triton", "triton"), ("kubelet", None)]
)
def test_jobs(name: str, job: str | None) -> None:
    assert job_of(name) == job
