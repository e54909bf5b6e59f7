"""Pages of the node's own servers: depths that are at most a second old, what devices use, blanks that are no values, and text that is none."""

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.depth import DepthReader, Depths, depths_in
from agent.exposition import Page, PageError, samples
from agent.local.placement import Device
from agent.local.usage import DeviceUsage, ExporterUsage, usage_in
from agent.protocol import SliceFacts
from tests.agent.documents import T0
from tests.agent.simulated_fleet import NOW, SLICED, WHOLE, make_hardware, text_of

MIB = 1 << 20


def test_depths_of_triton_and_vllm() -> None:
    text = """# HELP nv_inference_pending_request_count Instantaneous number
nv_inference_pending_request_count{model="detector",version="1"} 7
nv_inference_pending_request_count{model="detector",version="2"} 5
nv_inference_pending_request_count{model="odd \\"name\\"",version="1"} 1
nv_inference_pending_request_count{model="blank",version="1"} 9223372036854775807
nv_inference_pending_request_count{model="nan",version="1"} NaN
nv_inference_request_success{model="detector",version="1"} 99
vllm:num_requests_waiting{engine="0",model_name="acme/tern"} 3.0
vllm:num_requests_waiting{engine="1",model_name="acme/tern"} 4.0
vllm:num_requests_running{engine="0",model_name="acme/tern"} 50.0
"""
    assert depths_in(text) == {"detector": 12, 'odd "name"': 1, "acme/tern": 7}


def test_the_simulated_servers_are_read(tmp_path: Path) -> None:
    hardware = make_hardware(tmp_path)
    assert set(depths_in(text_of(hardware, "gpu-ams-07", NOW, "triton"))) == {"detector", "asr"}
    assert set(depths_in(text_of(hardware, "gpu-ams-07", NOW, "vllm"))) == {"acme/tern-70b-instruct"}


def test_a_depth_is_at_most_a_second_old_and_needs_all_servers_of_the_model() -> None:
    clock = [100.0]
    depths = Depths(2, clock=lambda: clock[0])
    assert depths.of("llm") is None
    depths.store(0, 100.0, {"llm": 5})
    assert (depths.of("llm"), depths.of("asr")) == (5, None)
    depths.store(1, 100.4, {"llm": 2, "asr": 1})
    assert (depths.of("llm"), depths.of("asr")) == (7, 1)
    clock[0] = 101.0
    assert depths.of("llm") == 7
    clock[0] = 101.1
    assert (depths.of("llm"), depths.of("asr")) == (None, 1)
    clock[0] = 102.0
    assert depths.of("asr") is None


def test_what_devices_use_is_read_from_the_exporter(tmp_path: Path) -> None:
    usage = usage_in(text_of(make_hardware(tmp_path), "gpu-ams-07", NOW), T0)
    part = usage.devices[(SLICED, 2)]
    assert part.total_bytes is not None
    assert part.used_bytes is not None
    assert 40448 * MIB <= part.total_bytes < 41500 * MIB
    assert 0 <= part.used_bytes <= part.total_bytes
    assert usage.devices[(WHOLE, None)].active_ratio is not None
    assert usage.energy_joules[SLICED] > 0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("DCGM_FI_DEV_FB_USED{%s} 100\nDCGM_FI_DEV_FB_FREE{%s} 900", DeviceUsage(100 * MIB, 1000 * MIB, None)),
        ("DCGM_FI_DEV_FB_USED{%s} 100\nDCGM_FI_DEV_FB_FREE{%s} 900\nDCGM_FI_DEV_FB_RESERVED{%s} 24", DeviceUsage(100 * MIB, 1024 * MIB, None)),
        ("DCGM_FI_DEV_FB_USED{%s} 9223372036854775794\nDCGM_FI_DEV_FB_FREE{%s} 900", DeviceUsage()),
        ("DCGM_FI_DEV_FB_USED{%s} 100", DeviceUsage(100 * MIB, None, None)),
        ("DCGM_FI_DEV_GPU_UTIL{%s} 50", DeviceUsage(active_ratio=0.5)),
        ("DCGM_FI_DEV_GPU_UTIL{%s} 4294967295", DeviceUsage()),
        ("DCGM_FI_DEV_GPU_UTIL{%s} 50\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{%s} 0.25", DeviceUsage(active_ratio=0.25)),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE{%s} NaN", None),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE{%s} 140737488355328", DeviceUsage()),
    ],
)
def test_blanks_are_no_values(lines: str, expected: DeviceUsage | None) -> None:
    assert usage_in(lines.replace("%s", 'UUID="GPU-1"'), T0).devices.get(("GPU-1", None)) == expected


def test_a_gpus_load_is_that_of_its_slices_and_unknown_as_soon_as_one_is() -> None:
    devices = {
        name: Device(name, "GPU-1", SliceFacts(number, 0, profile, 0, 1, name)) for number, (name, profile) in enumerate([("x", "3g.40gb"), ("y", "4g.40gb")])
    }
    line = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-1",GPU_I_ID="%d"} %s\n'
    assert usage_in(line % (0, 1.0) + line % (1, 0.5), T0).gpu_load("GPU-1", devices) == pytest.approx(5 / 7)
    assert usage_in(line % (0, 1.0), T0).gpu_load("GPU-1", devices) is None
    assert usage_in(line % (0, 1.0), T0).gpu_load("GPU-2", devices) is None


@given(st.text(max_size=300) | st.lists(st.sampled_from(list('abc{}="\\,\n 1eN+-#'))).map("".join))
def test_any_text_is_read(text: str) -> None:
    list(samples(text, frozenset({"a", "abc"})))
    assert depths_in(text) == {}
    assert usage_in(text, T0).devices == {}


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    text = b""
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    _Page.text, _Page.status = b'vllm:num_requests_waiting{model_name="llm"} 3\n', 200
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_pages_are_asked_over_and_over(server: http.server.ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    reader = DepthReader((url,))
    reader.start()
    deadline = time.monotonic() + 5
    while reader.depths.of("llm") != 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader.depths.of("llm") == 3
    _Page.status = 500
    while reader.depths.of("llm") is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader.depths.of("llm") is None
    reader.stop()
    page = Page(url, timeout_seconds=1)
    with pytest.raises(PageError, match="500"):
        page.read()
    page.close()
    usage = ExporterUsage(url)
    assert usage.read(T0) is None
    usage.close()


@pytest.mark.parametrize("url", ["https://node/metrics", "ftp://x", "nonsense", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        DepthReader((url,))
