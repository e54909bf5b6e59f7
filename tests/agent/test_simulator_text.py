"""Exporters' text has the form that the real exporters print: same families, same label sets, same order."""

import re
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from agent.simulator.dcgm_text import dcgm_page
from agent.simulator.exposition import PageBuilder, labels_text
from tests.agent.simulated_fleet import CONFIG, L40S, NOW, PHY, SLICED, WHOLE, make_hardware, text_of, values_of

FIXTURES = Path(__file__).parents[1] / "fixtures"


def form_of(text: str) -> list[str]:
    """The text without its numbers."""
    return [line if line.startswith("#") else re.sub(r" [^ ]+$", "", line) for line in text.splitlines()]


def families_of(text: str) -> dict[str, tuple[str, str]]:
    return {family.name: (family.type, family.documentation) for family in text_string_to_metric_families(text)}


def test_dcgm_text_has_the_form_of_the_fixture(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    text = dcgm_page(hardware.physics, CONFIG.nodes[0], added=False).render(hardware.physics.columns.flat)
    expected = (FIXTURES / "dcgm-exporter-h100-mig-k8s.prom").read_text()
    assert form_of(text) == form_of(expected)
    assert families_of(text) == families_of(expected)


def test_numbers_are_written_as_dcgm_exporter_writes_them(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    text = dcgm_page(hardware.physics, CONFIG.nodes[0], added=False).render(hardware.physics.columns.flat)
    expected = (FIXTURES / "dcgm-exporter-h100-mig-k8s.prom").read_text()

    def spelling(source: str) -> set[tuple[str, str]]:
        lines = [line for line in source.splitlines() if not line.startswith("#")]
        return {(line.partition("{")[0], "fraction" if "." in line.rsplit(" ", 1)[1] else "whole") for line in lines}

    assert spelling(text) == spelling(expected)


def test_vllm_text_has_the_form_of_the_fixture(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW, "vllm")
    expected = (FIXTURES / "vllm-v1-metrics.prom").read_text()
    assert form_of(text) == form_of(expected)
    assert families_of(text) == families_of(expected)


def test_triton_text_has_the_form_of_the_fixture(tmp_path: Path) -> None:
    """In the fixture only one of both models has a summary."""
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW, "triton")
    expected = (FIXTURES / "triton-metrics.prom").read_text()
    assert [line for line in form_of(text) if not ("summary_us" in line and 'model="asr"' in line)] == form_of(expected)
    assert families_of(text) == families_of(expected)


def test_node_exporter_text_has_the_families_of_the_fixture(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW, "node")
    expected = (FIXTURES / "node-exporter-excerpt.prom").read_text()
    assert families_of(text) == families_of(expected)
    assert 'nodename="gpu-ams-07"' in text


def test_values_of_the_gpu_repeat_on_each_slice(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW)
    for family in ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"):
        values = values_of(text, family, SLICED)
        assert len(values) == 4
        assert len(set(values)) == 1


def test_values_of_an_instance_are_its_own(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW)
    used, free = (values_of(text, f"DCGM_FI_DEV_FB_{word}", SLICED) for word in ("USED", "FREE"))
    assert [a + b for a, b in zip(used, free, strict=True)] == [40448, 20096, 9984, 9984]
    active = values_of(text, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", SLICED)
    assert len(set(active[:3])) == 3
    assert active[3] == 0
    assert used[3] == 12


def test_a_sliced_gpu_has_no_utilisation_and_a_whole_one_has(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-ams-07", NOW)
    assert values_of(text, "DCGM_FI_DEV_GPU_UTIL", SLICED) == []
    assert len(values_of(text, "DCGM_FI_DEV_GPU_UTIL", WHOLE)) == 1


def test_a_board_without_hbm_nvlink_and_mig_has_no_series_of_them(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-lax-02", NOW)
    assert 'modelName="NVIDIA L40S"' in text
    for absent in ("MEMORY_TEMP", "NVLINK", "REMAP", "GPU_I_ID"):
        assert absent not in text
    assert len(values_of(text, "DCGM_FI_DEV_FB_USED", L40S)) == 1


def test_slices_of_the_radio_carry_its_pods(tmp_path: Path) -> None:
    text = text_of(make_hardware(tmp_path), "gpu-lax-01", NOW)
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_PROF_GR_ENGINE_ACTIVE{") and PHY in line]
    assert [re.findall(r'GPU_I_ID="(\d+)"', line)[0] for line in lines] == [str(7 + start) for start in range(7)]
    assert sum('namespace="ran-phy"' in line for line in lines) == 3
    assert "namespace" not in lines[6]


def test_every_text_parses(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    for node in CONFIG.nodes:
        for exporter in node.exporters:
            samples = [sample for family in text_string_to_metric_families(text_of(hardware, node.host_name, NOW, exporter)) for sample in family.samples]
            assert samples
            assert all(sample.value >= 0 for sample in samples), exporter


def test_labels_are_escaped_and_percent_signs_survive() -> None:
    builder = PageBuilder()
    builder.family("m", "100% of it", "gauge")
    builder.series("m", labels_text({"pod": 'a"b\\c%d', "empty": ""}), "%d", 0)
    text = builder.page().render(np.array([3.0]))
    family = next(iter(text_string_to_metric_families(text)))
    assert family.documentation == "100% of it"
    assert family.samples[0].labels == {"pod": 'a"b\\c%d'}
