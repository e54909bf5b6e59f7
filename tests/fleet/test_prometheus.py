"""The door to Prometheus, on answers that real ones give (cases C11-C15) and on a real Prometheus."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleet.prometheus import (
    FaultKind,
    PrometheusSource,
    SourceFault,
    at_unix,
    number_or_none,
    read_answer,
    read_response,
    safe_step_seconds,
    without_replicas,
)
from script.servers import Prometheus, free_port

CASES = Path(__file__).parent.parent / "cases"
T0 = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def load(case: str, name: str) -> Any:
    (folder,) = CASES.glob(f"{case}-*")
    return json.loads((folder / name).read_text())


def test_c11_nan_and_infinity_are_no_value() -> None:
    expect = load("C11", "expect.json")
    p99 = {one.labels["model"]: one.last for one in read_answer(load("C11", "p99.json")).series}
    ratio = read_answer(load("C11", "error_ratio.json"))
    assert p99 == expect["p99_s"]
    assert {one.labels["model"]: one.last for one in ratio.series} == expect["error_ratio"]
    assert ratio.refused_values == 2
    known = [value for value in p99.values() if value is not None]
    assert sum(known) / len(known) == expect["mean_p99_s"]
    assert [number_or_none(text) for text in ("NaN", "Nan", "nan", "+Inf", "-Inf")] == [None] * 5


def test_c12_warnings_make_an_answer_partial_and_infos_do_not() -> None:
    expect = load("C12", "expect.json")
    partial, infos = read_answer(load("C12", "2-partial.json")), read_answer(load("C12", "3-infos.json"))
    assert (partial.complete, len(partial.series)) == (expect["after_partial"]["complete"], expect["after_partial"]["fresh"])
    assert "edge-fra-store" in partial.warnings[0]
    assert (infos.complete, len(infos.series)) == (expect["after_infos"]["complete"], expect["after_infos"]["fresh"])


def test_c13_a_pair_of_replicas_counts_once() -> None:
    expect = load("C13", "expect.json")
    series = without_replicas(read_answer(load("C13", "vector.json")).series, load("C13", "config.json")["replica_labels"])
    assert len(series) == expect["gpu_count"]
    low, high = expect["site_power_w_between"]
    assert low <= sum(one.last or 0 for one in series) <= high


def _answered(response: dict[str, Any]) -> str:
    try:
        answer = read_response(response["http"], response["content_type"], response["body"] if isinstance(response["body"], dict) else None)
    except SourceFault as fault:
        return fault.kind.value
    return "no_data" if not answer.series else "data"


def test_c14_error_no_data_and_bad_question() -> None:
    expect = load("C14", "expect.json")
    got = {one["id"]: _answered(one) for one in load("C14", "responses.json") if one["http"]}
    assert got == {key: word for key, word in expect["class"].items() if key != "hang"}
    request = load("C14", "range_request.json")
    step = safe_step_seconds(request["start"], request["end"], request["wanted_step_s"])
    assert step >= expect["min_step_s"]
    assert (request["end"] - request["start"]) / step < 11_000


def test_c14_a_source_that_hangs_is_given_up_at_the_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with PrometheusSource(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.3) as source, pytest.raises(SourceFault) as caught:
            source.query("up", T0)
    assert caught.value.kind is FaultKind.SOURCE_ERROR
    assert "in time" in caught.value.reason


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nFFFF\r\n",
    ],
    ids=["head", "length", "until the end", "chunked"],
)
def test_c14_a_source_that_drips_bytes_is_given_up_in_whole(start: bytes) -> None:
    done = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(start)
            while not done.wait(0.02):
                try:
                    connection.sendall(b"H" if not start else b" ")
                except OSError:
                    return

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            began = time.monotonic()
            with PrometheusSource(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.2) as source, pytest.raises(SourceFault) as caught:
                source.query("up", T0)
            assert time.monotonic() - began < 5
        finally:
            done.set()
            thread.join()
    assert (caught.value.kind, "in time" in caught.value.reason) == (FaultKind.SOURCE_ERROR, True)


def test_a_source_that_is_away() -> None:
    with PrometheusSource(f"http://127.0.0.1:{free_port()}") as source, pytest.raises(SourceFault) as caught:
        source.query("up", T0)
    assert caught.value.kind is FaultKind.SOURCE_ERROR


@pytest.fixture
def scripted() -> Iterator[tuple[str, list[tuple[int, str, bytes]], list[str]]]:
    """An HTTP server that gives the answers put into its list, the last one for ever; and the paths it was asked for."""
    answers: list[tuple[int, str, bytes]] = []
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, content_type, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers, asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_c14_a_busy_source_is_asked_again_and_a_bad_question_is_not(scripted: tuple[str, list[tuple[int, str, bytes]], list[str]]) -> None:
    url, answers, asked = scripted
    by_id = {one["id"]: one for one in load("C14", "responses.json")}
    busy = (503, "application/json", json.dumps(by_id["busy"]["body"]).encode())
    answers[:] = [busy, (200, "application/json", json.dumps(by_id["empty"]["body"]).encode())]
    with PrometheusSource(url) as source:
        assert source.query("up", T0).series == ()
        assert len(asked) == 2
        answers[:] = [(400, "application/json", json.dumps(by_id["points"]["body"]).encode())]
        with pytest.raises(SourceFault) as caught:
            source.query("up", T0)
        assert (caught.value.kind, len(asked)) == (FaultKind.BAD_QUERY, 3)
        answers[:] = [(200, "text/html", by_id["login"]["body"].encode())]
        with pytest.raises(SourceFault) as caught:
            source.query("up", T0)
        assert caught.value.kind is FaultKind.SOURCE_ERROR
        answers[:] = [busy]
        with pytest.raises(SourceFault) as caught:
            source.query("up", T0)
        assert caught.value.kind is FaultKind.RETRY


def test_c15_native_histograms_do_not_lose_the_rest() -> None:
    expect = load("C15", "expect.json")
    instant, in_range = read_answer(load("C15", "instant.json")), read_answer(load("C15", "range.json"))
    by_kind = {one.labels["kind"]: one for one in instant.series}
    histogram = by_kind["native"].histograms[-1][1]
    assert by_kind["float"].last == expect["float"]["instant"]
    assert {"count": histogram.count, "sum": histogram.sum, "mean": histogram.mean} == expect["histogram"]["instant"]
    (series,) = in_range.series
    assert [[at_unix(time).strftime("%Y-%m-%dT%H:%M:%SZ"), value] for time, value in series.points] == expect["float"]["range"]
    assert {"count": series.histograms[0][1].count, "sum": series.histograms[0][1].sum} == expect["histogram"]["range"]


@pytest.mark.parametrize(
    "body", [{}, {"status": "success"}, {"status": "success", "data": []}, {"status": "success", "data": {"resultType": "vector", "result": [{"metric": []}]}}]
)
def test_another_form_is_a_source_error(body: dict[str, Any]) -> None:
    with pytest.raises(SourceFault) as caught:
        read_answer(body)
    assert caught.value.kind is FaultKind.SOURCE_ERROR


def test_on_a_real_prometheus(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: self, static_configs: [{targets: ['127.0.0.1:1']}]}]\n")
    server = Prometheus(tmp_path / "prometheus", config)
    server.start()
    try:
        now = datetime.now(UTC)
        with PrometheusSource(server.url) as source:
            assert source.query("vector(42)", now).series[0].last == 42
            assert source.query("vector(1)/vector(0)", now).series[0].last is None
            assert source.query("no_such_metric", now).series == ()
            points = source.query_range("vector(1)", now - timedelta(days=14), now, 30).series[0].points
            assert 10_000 < len(points) <= 11_000
            with pytest.raises(SourceFault) as caught:
                source.query("sum(", now)
            assert caught.value.kind is FaultKind.BAD_QUERY
    finally:
        server.stop()
