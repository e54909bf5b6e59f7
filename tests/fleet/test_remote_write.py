"""The remote_write door by HTTP: who may, what is answered, what a sender must do next. Fuzzed: never a 5xx but 503 when overloaded."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import cramjam
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fleet.remote_write import Receiver
from fleet.telemetry.fields import Refusal
from fleet.telemetry.ingest import Ingest
from fleet.telemetry.prompb import body_of
from fleet.telemetry.resolver import SenderScope
from fleet.telemetry.senders import SenderDirectory
from tests.fleet.samples import T0, fleet_of, gpu_value

GPU = "GPU-00000000-0000-0000-0000-000000000001"
GOOD = body_of([({"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": GPU}, [(300.0, T0)])])
HEADERS = {"Authorization": "Bearer good", "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}


class Senders(SenderDirectory):
    """The directory's answers, without rows."""

    def find(self, token: str, *, now: datetime) -> tuple[SenderScope, bool] | None:
        region = {"good": 100, "foreign": 200}.get(token)
        if token == "reader":
            return SenderScope(3, "reader", frozenset({100})), False
        return None if region is None else (SenderScope(region, token, frozenset({region})), True)


@pytest.fixture
def ingest() -> Ingest:
    return fleet_of([GPU])


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def receiver(ingest: Ingest, executor: ThreadPoolExecutor) -> Receiver:
    return Receiver(ingest, Senders(), executor=executor, lock=threading.Lock(), registry=CollectorRegistry(), clock=lambda: T0 + 1)


@pytest.fixture
async def client(receiver: Receiver) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(receiver), base_url="http://telemetry") as found:
        yield found


async def write(client: httpx.AsyncClient, body: bytes = GOOD, headers: dict[str, str] | None = None) -> httpx.Response:
    return await client.post("/api/v1/write", content=body, headers=HEADERS | (headers or {}))


async def test_a_good_body_is_taken(client: httpx.AsyncClient, ingest: Ingest, receiver: Receiver) -> None:
    answer = await write(client)
    assert (answer.status_code, answer.content) == (204, b"")
    assert gpu_value(ingest, GPU, "power_watts") == 300
    assert (receiver.waiting_bytes, receiver.used_senders, receiver.answers) == (0, {100}, {204: 1})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic good"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": "bearer good"}, 204),
        ({"Authorization": "Bearer reader"}, 403),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Encoding": "zstd"}, 415),
        ({"Content-Type": "application/json"}, 415),
        ({"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}, 415),
        ({"Content-Type": "application/x-protobuf;proto=prometheus.WriteRequest"}, 204),
        ({"Content-Length": "99999999"}, 413),
    ],
)
async def test_what_is_asked_of_a_request(client: httpx.AsyncClient, ingest: Ingest, headers: dict[str, str], status: int) -> None:
    answer = await write(client, headers=headers)
    assert answer.status_code == status
    assert (gpu_value(ingest, GPU, "power_watts") == 300) == (status == 204)
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_only_an_undecodable_body_is_400_and_nothing_of_it_is_taken(client: httpx.AsyncClient, ingest: Ingest) -> None:
    for body in (b"", b"\xff", GOOD[:-3], bytes(cramjam.snappy.compress_raw(b"\x0a\x7f")), b"not snappy"):
        assert (await write(client, body)).status_code == 400
    assert gpu_value(ingest, GPU, "power_watts") is None


async def test_an_empty_request_and_one_of_only_refused_samples_are_taken(client: httpx.AsyncClient, ingest: Ingest) -> None:
    assert (await write(client, body_of([]))).status_code == 204
    assert (await write(client, headers={"Authorization": "Bearer foreign"})).status_code == 204
    assert ingest.quality.totals[Refusal.FOREIGN_SITE] == 1
    assert gpu_value(ingest, GPU, "power_watts") is None


async def test_the_declared_length_is_held_to_the_limit(client: httpx.AsyncClient, receiver: Receiver) -> None:
    receiver.max_inflated_bytes = 1000
    answer = await write(client, bytes(cramjam.snappy.compress_raw(bytes(1001))))
    assert answer.status_code == 413
    assert "1001 bytes" in answer.text
    receiver.max_body_bytes = 10
    assert (await write(client)).status_code == 413


async def test_too_much_waiting_is_503_with_a_time_to_come_again(client: httpx.AsyncClient, receiver: Receiver, executor: ThreadPoolExecutor) -> None:
    go_on = threading.Event()
    executor.submit(go_on.wait, 10)
    receiver.max_waiting_bytes = len(GOOD) + 1
    first = asyncio.ensure_future(write(client))
    while receiver.waiting_bytes == 0:  # noqa: ASYNC110 - the door has no event for it
        await asyncio.sleep(0)
    refused = await write(client)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    go_on.set()
    assert (await first).status_code == 204
    assert (await write(client)).status_code == 204


async def test_a_link_that_is_cut_in_the_middle_of_a_body_gives_its_share_back(client: httpx.AsyncClient, receiver: Receiver) -> None:
    receiver.body_seconds = 0.05

    async def half() -> AsyncIterator[bytes]:
        yield GOOD[:10]
        await asyncio.sleep(5)

    answer = await asyncio.wait_for(client.post("/api/v1/write", content=half(), headers=HEADERS), 4)
    assert (answer.status_code, answer.headers["retry-after"], receiver.waiting_bytes) == (503, "2", 0)
    receiver.body_seconds = 15
    assert (await write(client)).status_code == 204


async def test_while_starting_all_is_sent_again_later(client: httpx.AsyncClient, receiver: Receiver) -> None:
    receiver.accepting = False
    assert (await write(client, headers={"Authorization": "Bearer wrong"})).status_code == 503
    assert (await client.get("/healthz")).status_code == 200


async def test_other_paths_and_methods(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).text == "ok\n"
    assert (await client.get("/metrics")).status_code == 200
    assert (await client.get("/api/v1/write")).status_code == 405
    assert (await client.post("/metrics")).status_code == 405
    assert (await client.get("/")).status_code == 404


@given(body=st.binary(max_size=300) | st.binary(max_size=200).map(lambda data: bytes(cramjam.snappy.compress_raw(data))), cut=st.integers(0, 60))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_makes_a_server_error(receiver: Receiver, body: bytes, cut: int) -> None:
    async def send(content: bytes) -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(receiver), base_url="http://telemetry") as client:
            return await write(client, content)

    for content in (body, GOOD[:cut] + body, body + GOOD[cut:]):
        assert asyncio.run(send(content)).status_code in (204, 400, 413)
