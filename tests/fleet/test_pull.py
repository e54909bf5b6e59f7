"""The pull: real Prometheus in, remote_write out, each sample with its own time; what was incomplete is said."""

import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import cramjam
import pytest
from pytest_django.fixtures import Settings

from console.celery import app
from fleet.models import DataQuality, Region, Site
from fleet.prometheus import FaultKind, PrometheusSource, SourceFault
from fleet.tasks import pull_telemetry
from fleet.telemetry import pull
from fleet.telemetry.completeness import incomplete_now
from fleet.telemetry.prompb import WriteRequest
from fleet.telemetry.senders import create_sender
from script.servers import Prometheus, find_binary, free_port
from tests.builders import make_gpu, make_node, make_region, make_site
from tests.fleet.samples import case_json

END = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
T = END.timestamp()


def _series() -> str:
    lines: list[str] = []
    for name, labels, value, age in (
        ("DCGM_FI_DEV_POWER_USAGE", 'UUID="GPU-1",site="S-1",replica="a"', 300, 12),
        ("DCGM_FI_DEV_POWER_USAGE", 'UUID="GPU-1",site="S-1",replica="b"', 301, 2),
        ("DCGM_FI_DEV_POWER_USAGE", 'UUID="GPU-2",site="S-1",replica="a"', 410, 200),
        ("DCGM_FI_DEV_GPU_UTIL", 'UUID="GPU-1",site="S-1"', 55, 12),
        ("DCGM_FI_DEV_GPU_TEMP", 'UUID="GPU-1",site="S-1"', "NaN", 12),
        ("some_other_metric", 'site="S-1"', 1, 5),
    ):
        lines += [f"# TYPE {name} gauge"] if not any(name in line for line in lines) else []
        lines.append(f"{name}{{{labels}}} {value} {T - age}")
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusSource]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "series.txt").write_text(_series())
    (folder / "prometheus.yml").write_text("global: {}\n")
    command = [find_binary("promtool", "prometheus"), "tsdb", "create-blocks-from", "openmetrics", str(folder / "series.txt"), str(folder / "server" / "data")]
    subprocess.run(command, check=True, capture_output=True)
    server = Prometheus(folder / "server", folder / "prometheus.yml", retention="10y")
    server.start()
    with PrometheusSource(server.url) as connected:
        yield connected
    server.stop()


@pytest.fixture
def door() -> Iterator[tuple[str, list[tuple[str, bytes]], list[int]]]:
    """A receiver that keeps (token, body) and answers with the first of its statuses, the last one for ever."""
    taken: list[tuple[str, bytes]] = []
    statuses = [204]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.headers["Authorization"], body))
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken, statuses
    server.shutdown()
    thread.join()
    server.server_close()


def test_last_samples_with_their_own_times_and_pairs_once(source: PrometheusSource) -> None:
    series, report = pull.read_last_samples(source, at=END, window_seconds=60, replica_labels=["replica"])
    found = {(one.labels["__name__"], one.labels["UUID"]): one.points for one in series}
    assert found == {
        ("DCGM_FI_DEV_POWER_USAGE", "GPU-1"): ((T - 2, 301.0),),
        ("DCGM_FI_DEV_GPU_UTIL", "GPU-1"): ((T - 12, 55.0),),
    }  # GPU-2's sample is 200 s old: absent, not fresh; NaN is no value
    assert report.complete
    assert report.refused_values == 1


def test_a_source_that_is_away_is_said(db: None) -> None:
    with PrometheusSource(f"http://127.0.0.1:{free_port()}") as away, pytest.raises(SourceFault):
        pull.read_last_samples(away, at=END, window_seconds=60, replica_labels=[])


@pytest.mark.django_db
def test_a_whole_cycle(source: PrometheusSource, door: tuple[str, list[tuple[str, bytes]], list[int]], settings: Settings) -> None:
    url, taken, _ = door
    sender, token = create_sender(name="pull", regions=[make_region()])
    settings.PROMETHEUS_URL, settings.TELEMETRY_URL, settings.PULL_TOKEN, settings.REPLICA_LABELS = source.url, url, token, ["replica"]
    report = pull.pull(now=END)
    assert (report.series, report.complete) == (2, True)
    authorization, body = taken[0]
    assert authorization == f"Bearer {token}"
    request = WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body)))
    sent = {({label.name: label.value for label in one.labels}["__name__"], one.samples[0].value, one.samples[0].timestamp) for one in request.timeseries}
    assert sent == {("DCGM_FI_DEV_POWER_USAGE", 301.0, round((T - 2) * 1000)), ("DCGM_FI_DEV_GPU_UTIL", 55.0, round((T - 12) * 1000))}
    assert not DataQuality.objects.exists()
    settings.PROMETHEUS_URL = f"http://127.0.0.1:{free_port()}"
    assert not pull.pull(now=END).complete
    assert not pull.pull(now=END).complete
    row = DataQuality.objects.get()
    assert (row.sender, row.reason, row.count) == (sender, "incomplete_pull", 2)
    assert "cannot be reached" in row.example


@pytest.mark.parametrize(("status", "kind"), [(503, FaultKind.RETRY), (401, FaultKind.BAD_QUERY)])
def test_what_the_door_refuses(source: PrometheusSource, door: tuple[str, list[tuple[str, bytes]], list[int]], status: int, kind: FaultKind) -> None:
    url, _, statuses = door
    statuses[:] = [status]
    series, _ = pull.read_last_samples(source, at=END, window_seconds=60, replica_labels=["replica"])
    with pytest.raises(SourceFault) as caught:
        pull.hand_over(series, url=url, token="t", timeout_seconds=5)
    assert caught.value.kind is kind


@pytest.fixture
def partial_source() -> Iterator[tuple[str, list[str]]]:
    """A querier that knows one metric and answers with the body put into its list (case C12)."""
    bodies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(_NAMES) if "group" in self.path else _as_range(bodies[0])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


_NAMES = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL"}, "value": [T, "1"]}]}}


def _as_range(name: str) -> str:
    """A file of the case as the answer to a range vector."""
    answer = case_json("C12", name)
    answer["data"] = {"resultType": "matrix", "result": [{"metric": one["metric"], "values": [one["value"]]} for one in answer["data"]["result"]]}
    return json.dumps(answer)


@pytest.mark.django_db
@pytest.mark.parametrize("with_site_labels", [True, False])
def test_c12_a_partial_pull_names_the_sites_that_it_lacks(
    partial_source: tuple[str, list[str]], door: tuple[str, list[tuple[str, bytes]], list[int]], settings: Settings, with_site_labels: bool
) -> None:
    url, bodies = partial_source
    ams, fra, elsewhere = make_region("ams"), make_region("fra"), make_region("elsewhere")
    for one in case_json("C12", "1-full.json")["data"]["result"]:
        code = one["metric"]["site"]
        site = Site.objects.filter(code=code).first() or make_site(code, region=ams if code == "edge-ams" else fra)
        make_gpu(one["metric"]["UUID"], node=site.nodes.first() or make_node(site=site), index=int(one["metric"]["gpu"]))
    if not with_site_labels:
        Site.objects.filter(code="edge-ams").update(code="renamed-ams")  # its GPUs are known by UUID all the same
    sender, token = create_sender(name="pull", regions=[ams, fra])
    settings.PROMETHEUS_URL, settings.TELEMETRY_URL, settings.PULL_TOKEN = url, door[0], token

    def lacking(*regions: Region) -> tuple[str, ...] | None:
        found = incomplete_now(now=END, region_ids=[region.pk for region in regions] if regions else None)
        return None if found is None else found.site_codes

    bodies[:] = ["1-full.json"]
    assert pull.pull(now=END).complete
    assert incomplete_now(now=END) is None
    bodies[:] = ["2-partial.json"]
    report = pull.pull(now=END)
    assert (report.complete, report.series) == (False, 4)
    row = DataQuality.objects.get()
    assert (row.sender, row.site and row.site.code, row.reason) == (sender, "edge-fra", "incomplete_pull")
    assert "edge-fra-store" in row.example
    assert (lacking(), lacking(fra), lacking(ams), lacking(elsewhere)) == (("edge-fra",), ("edge-fra",), None, None)
    assert incomplete_now(now=END + timedelta(minutes=5)) is None
    bodies[:] = ["3-infos.json"]
    assert pull.pull(now=END).complete
    settings.PROMETHEUS_URL = f"http://127.0.0.1:{free_port()}"
    pull.pull(now=END)
    assert (lacking(), lacking(ams), lacking(elsewhere)) == ((), (), None)


@pytest.mark.django_db
def test_a_pull_that_is_stopped_is_said() -> None:
    limits = app.tasks[pull_telemetry.name]
    assert 60 <= limits.soft_time_limit < limits.time_limit
    pull.note_unfinished(now=END)
    assert "stopped" in DataQuality.objects.get(reason="incomplete_pull").example


def test_without_a_token_it_says_what_to_set(settings: Settings) -> None:
    settings.PULL_TOKEN = ""
    with pytest.raises(pull.PullNotConfigured, match="MASTHEAD_PULL_TOKEN"):
        pull.pull(now=END)
