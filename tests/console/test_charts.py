"""Charts on a real Prometheus that holds a night with a gap: values, gaps, units, both metric names, blanks, and who may see them."""

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import plotly
import pytest
from django.test import Client
from plotly import graph_objects
from pytest_django.fixtures import Settings

from console.charts import draw_panel, summarise
from fleet.prometheus import PrometheusSource
from fleet.telemetry.panels import PANELS, PanelData, Window, field_expression, read_panel, selector
from script.servers import Prometheus, find_binary, free_port
from tests.builders import make_gpu, make_node, make_region, make_site, make_tenant, make_user

END = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
STEP = 30
CASES = Path(__file__).resolve().parent.parent / "cases"
C02 = "GPU-a900f1e4-a744-580c-9658-765d76ac5779"
WHOLE, SLICED = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"


def _history() -> str:
    """Two hours: a whole GPU (old names), a sliced one (3g busy 0.9, 1g at 0.2), no samples in the second half hour, one blank."""
    families: dict[str, list[str]] = {}
    start = END.timestamp() - 7200
    for index in range(7200 // STEP + 1):
        time = start + index * STEP
        if 1800 <= time - start < 3600:
            continue
        blank = index == 10
        whole = f'UUID="{WHOLE}",site="S-1"'
        families.setdefault("DCGM_FI_DEV_GPU_UTIL", []).append(f"DCGM_FI_DEV_GPU_UTIL{{{whole}}} 50 {time}")
        families.setdefault("DCGM_FI_DEV_SM_CLOCK", []).append(f"DCGM_FI_DEV_SM_CLOCK{{{whole}}} 1980 {time}")
        families.setdefault("DCGM_FI_DEV_POWER_USAGE", []).append(f"DCGM_FI_DEV_POWER_USAGE{{{whole}}} {140737488355328 if blank else 600} {time}")
        for instance, profile, ratio in ((2, "3g.40gb", 0.9), (9, "1g.10gb", 0.2)):
            slice_labels = f'UUID="{SLICED}",site="S-1",GPU_I_ID="{instance}",GPU_I_PROFILE="{profile}"'
            families.setdefault("DCGM_FI_PROF_GR_ENGINE_ACTIVE", []).append(f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{slice_labels}}} {ratio} {time}")
            families.setdefault("DCGM_FI_DEV_POWER_USAGE", []).append(f"DCGM_FI_DEV_POWER_USAGE{{{slice_labels}}} 400 {time}")
    _add_odd_percentages(families)
    lines = [line for name, rows in families.items() for line in (f"# TYPE {name} gauge", *rows)]
    return "\n".join([*lines, "# EOF", ""])


def _add_odd_percentages(families: dict[str, list[str]]) -> None:
    """Case C02's samples; 150 % beside 0 %; a ratio that is sent as percent, and one that is none."""
    utilization = families["DCGM_FI_DEV_GPU_UTIL"]
    (series,) = json.loads((CASES / "C02-util-out-of-range" / "range.json").read_text())["data"]["result"]
    utilization += [f'DCGM_FI_DEV_GPU_UTIL{{UUID="{C02}"}} {value} {at}' for at, value in series["values"]]
    ratios = families["DCGM_FI_DEV_GPU_UTIL_RATIO"] = []
    for index in reversed(range(20)):
        time = END.timestamp() - 30 * index
        utilization.append(f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-beside"}} {150 if index % 2 else 0} {time}')
        ratios.append(f'DCGM_FI_DEV_GPU_UTIL_RATIO{{UUID="GPU-percent"}} {1 if index < 15 else 63} {time}')
        ratios.append(f'DCGM_FI_DEV_GPU_UTIL_RATIO{{UUID="GPU-ratio"}} {4294967295 if index == 7 else 0.63} {time}')


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusSource]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "history.txt").write_text(_history())
    (folder / "prometheus.yml").write_text("global: {}\n")
    subprocess.run(
        [find_binary("promtool", "prometheus"), "tsdb", "create-blocks-from", "openmetrics", str(folder / "history.txt"), str(folder / "server" / "data")],
        check=True,
        capture_output=True,
    )
    server = Prometheus(folder / "server", folder / "prometheus.yml", retention="10y")
    server.start()
    with PrometheusSource(server.url) as connected:
        yield connected
    server.stop()


def _read(source: PrometheusSource, panel: str, labels: dict[str, str]) -> PanelData:
    return read_panel(source, PANELS[panel], labels, end=END, length=timedelta(hours=3), scrape_interval_seconds=STEP)


def _known(data: PanelData) -> set[float]:
    return {value for value in data.values if value is not None}


def test_a_gap_is_a_gap_and_a_blank_is_no_value(source: PrometheusSource) -> None:
    data = _read(source, "power", {"UUID": WHOLE})
    assert _known(data) == {600}
    assert data.gaps == 1  # the half hour; a blank costs its own sample alone
    start = END.timestamp() - 7200
    inside = [value for time, value in zip(data.times, data.values, strict=True) if start + 1900 <= time < start + 3590]
    assert inside
    assert set(inside) == {None}
    assert data.values[0] is None  # before the first sample


def test_units_and_a_site_counts_each_gpu_once(source: PrometheusSource) -> None:
    assert _known(_read(source, "sm_clock", {"UUID": WHOLE})) == {1980}
    power = _read(source, "power", {"site": "S-1"})
    assert max(_known(power)) == 1000  # 600 and 400, the sliced GPU's value not twice


def test_use_of_whole_and_sliced_gpus(source: PrometheusSource) -> None:
    sliced = (3 * 0.9 + 1 * 0.2) / 7 * 100
    assert _known(_read(source, "engine", {"UUID": WHOLE})) == {50}
    assert _known(_read(source, "engine", {"UUID": SLICED})) == {round(sliced, 3)}
    assert _known(_read(source, "engine", {"site": "S-1"})) == {round((50 + sliced) / 2, 3)}


@pytest.mark.parametrize(("mean", "right"), [(480, [0.772]), (240, [0.475, 0.97]), (60, [0.97, 0.98, 0.96, 0.95, 0.0])])
def test_c02_impossible_percentages_drop_out_before_the_mean(source: PrometheusSource, mean: int, right: list[float]) -> None:
    expression = field_expression("utilization_ratio", {"UUID": C02}, Window(mean, 60, 3600))
    (series,) = source.query_range(expression, END + timedelta(seconds=mean - 60), END + timedelta(seconds=420), mean).series
    assert sorted(value for _, value in series.points if value is not None) == pytest.approx(sorted(right))


def test_impossible_values_beside_possible_ones(source: PrometheusSource) -> None:
    assert _known(_read(source, "engine", {"UUID": "GPU-beside"})) == {0}
    long = read_panel(source, PANELS["engine"], {"UUID": "GPU-beside"}, end=END, length=timedelta(days=30), scrape_interval_seconds=STEP)
    assert _known(long) <= {0}


def test_a_ratio_that_is_sent_as_percent_is_read_as_one(source: PrometheusSource) -> None:
    assert {1, 63} < _known(_read(source, "engine", {"UUID": "GPU-percent"})) <= {1, 32, 63}
    assert _known(_read(source, "engine", {"UUID": "GPU-ratio"})) == {63}


def test_a_month_is_the_mean_of_all_its_samples(source: PrometheusSource) -> None:
    for uuid, right in ((WHOLE, 600), (SLICED, 400)):
        data = read_panel(source, PANELS["power"], {"UUID": uuid}, end=END, length=timedelta(days=30), scrape_interval_seconds=STEP)
        assert _known(data) == {right}


def test_nothing_reported_is_said(source: PrometheusSource) -> None:
    data = _read(source, "temperature", {"UUID": WHOLE})
    assert _known(data) == set()
    assert summarise(data, now=END) == "Temperature: not reported in this range."


def test_the_figure_is_one_that_plotly_takes(source: PrometheusSource) -> None:
    data = _read(source, "power", {"UUID": WHOLE})
    figure = draw_panel(data, zone=UTC)
    drawn = graph_objects.Figure(figure)
    assert drawn.data[0].connectgaps is False
    assert len(drawn.data[0].x) == len(data.times)
    assert "1 gaps" in summarise(data, now=END)


def test_label_values_cannot_break_out() -> None:
    assert selector("up", {"site": 'a"} or up{x="'}) == 'up{site="a\\"} or up{x=\\""}'
    assert "DCGM_FI_DEV_GPU_TEMP_CELSIUS" in field_expression("gpu_temperature_celsius", {"UUID": "x"}, Window(60, 30, 3600))


@pytest.mark.django_db
def test_the_answer_is_strict_json_and_ranges_are_checked(source: PrometheusSource, client: Client, settings: Settings) -> None:
    settings.PROMETHEUS_URL = source.url
    gpu = make_gpu(WHOLE, node=make_node(site=make_site("S-1")))
    client.force_login(make_user(role="viewer"))
    answer = client.get(f"/charts/gpus/{gpu.uuid}/power?range=7d")
    assert answer.status_code == 200
    body = json.loads(answer.content, parse_constant=lambda word: pytest.fail(word))
    assert (body["unit"], body["complete"], body["range"]) == ("W", True, "7d")
    assert client.get(f"/charts/gpus/{gpu.uuid}/power?range=nan").status_code == 400
    assert client.get(f"/charts/gpus/{gpu.uuid}/magic").status_code == 404
    assert client.get("/charts/sites/S-1/power?range=24h").status_code == 200
    unknown = make_gpu(node=gpu.node, sku="unknown", index=1)
    assert client.get(f"/charts/gpus/{unknown.uuid}/power").status_code == 200


@pytest.mark.django_db
def test_an_unreachable_source_is_named(client: Client, settings: Settings) -> None:
    settings.PROMETHEUS_URL = f"http://127.0.0.1:{free_port()}"
    gpu = make_gpu()
    client.force_login(make_user(role="viewer"))
    answer = client.get(f"/charts/gpus/{gpu.uuid}/power")
    assert answer.status_code == 503
    assert "cannot be reached" in answer.json()["reason"]


@pytest.mark.django_db
def test_a_stranger_gets_nothing(client: Client) -> None:
    gpu = make_gpu(node=make_node(site=make_site("S-9")))
    for user in (make_user(role="viewer", region=make_region()), make_user(tenant=make_tenant())):
        client.force_login(user)
        assert client.get(f"/charts/gpus/{gpu.uuid}/power").status_code == 404
        assert client.get("/charts/sites/S-9/power").status_code == 404
    client.logout()
    assert client.get(f"/charts/gpus/{gpu.uuid}/power").status_code == 302


def test_the_vendored_bundle_is_the_version_that_plotly_draws_for() -> None:
    ours = (Path(__file__).parents[2] / "static/vendor/plotly/plotly-cartesian.min.js").read_text()[:300]
    theirs = (Path(plotly.__file__).parent / "package_data/plotly.min.js").read_text()[:300]
    version = re.compile(r" v(\d+\.\d+\.\d+)")
    assert version.findall(ours) == version.findall(theirs) != []
