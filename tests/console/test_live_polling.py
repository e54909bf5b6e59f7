"""`/live/layout` and `/live/frames`: the same as the socket, by request."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from fleet import frames, stream
from fleet.models import Site
from tests.builders import make_area, make_region, make_site, make_user

pytestmark = pytest.mark.django_db
NOW = 1_763_632_800.0


@pytest.fixture
def publisher() -> Iterator[stream.FramePublisher]:
    client = stream.connect()
    client.flushdb()
    yield stream.FramePublisher(client)
    client.flushdb()
    client.close()


def viewer(**where: Any) -> Client:
    client = Client()
    client.force_login(make_user(role="viewer", **where))
    return client


def publish(publisher: stream.FramePublisher, states: dict[int, int], tick: int = 0) -> None:
    areas = dict(Site.objects.values_list("pk", "region__area_id"))
    ids, n = sorted(states), len(states)
    cells = frames.columns(
        site_id=ids,
        state=[states[one] for one in ids],
        flags=[0] * n,
        gpus_reporting=[1] * n,
        gpus_expected=[1] * n,
        utilization_ratio=[0.1] * n,
        power_watts=[1.0] * n,
        since=[NOW] * n,
        contact=[NOW] * n,
    )
    publisher.publish(cells, np.array([areas[one] for one in ids]), now=NOW + tick, newest_arrival=NOW)


def test_frames_are_a_snapshot_then_the_deltas_after_a_sequence(publisher: stream.FramePublisher) -> None:
    a, b = make_site().pk, make_site().pk
    client = viewer()
    publish(publisher, {a: 0, b: 0})
    whole = frames.decode_all(client.get("/live/frames").content)
    assert [(frame.kind, frame.columns.site_id.tolist()) for frame in whole] == [(frames.SNAPSHOT, [a]), (frames.SNAPSHOT, [b])]
    publish(publisher, {a: 2, b: 0}, tick=1)
    asked = [(frame.area_id, frame.seq) for frame in whole]
    query = "&".join(f"area={area}&seq={seq}" for area, seq in asked)
    after = frames.decode_all(client.get(f"/live/frames?{query}").content)
    assert [(frame.kind, frame.columns.site_id.tolist()) for frame in after] == [(frames.DELTA, [a]), (frames.DELTA, [])]
    assert frames.decode_all(client.get(f"/live/frames?area={asked[0][0]}&seq=3").content)[0].kind == frames.SNAPSHOT


def test_frames_are_cut_to_the_scope(publisher: stream.FramePublisher) -> None:
    area = make_area()
    mine, foreign = make_region(area=area), make_region(area=area)
    a, b = make_site(region=mine).pk, make_site(region=foreign).pk
    other = make_site()
    publish(publisher, {a: 0, b: 0, other.pk: 0})
    client = viewer(region=mine)
    assert [frame.columns.site_id.tolist() for frame in frames.decode_all(client.get("/live/frames").content)] == [[a]]
    assert client.get(f"/live/frames?area={other.region.area_id}").status_code == 404


@pytest.mark.parametrize("query", ["area=x", "area=1&seq=y", "seq=1&seq=2", "area=" + "1&area=" * 300 + "1", "area=1e400", "area=nan"])
def test_bad_queries_are_named(query: str) -> None:
    make_site()
    response = viewer().get(f"/live/frames?{query}")
    assert response.status_code == 400
    assert b"area" in response.content


def test_no_frames_yet_is_empty_and_a_page_without_frames_may_ask_whether_we_answer(publisher: stream.FramePublisher) -> None:
    make_site()
    client = viewer()
    assert client.get("/live/frames").content == b""
    assert client.get("/live/frames?area=none").status_code == 204


def test_layout_is_in_drawing_order_with_a_version() -> None:
    north, south = make_area("north"), make_area("south")
    first = make_site("B-1", region=make_region("n-1", area=north), latitude=1.23456, longitude=2, power_feed_watts=1800)
    second = make_site("A-1", region=make_region("s-1", area=south))
    client = viewer()
    response = client.get("/live/layout")
    layout = json.loads(response.content)
    assert layout["sites"]["id"] == [first.pk, second.pk]
    assert layout["sites"]["lat"] == [1.2346, None]
    assert layout["sites"]["feed"] == [1800, None]
    assert [region["area"] for region in layout["regions"]] == [0, 1]
    tag = response.headers["ETag"]
    assert client.get("/live/layout", headers={"If-None-Match": tag}).status_code == 304
    second.name = "Renamed"
    second.save()
    assert client.get("/live/layout", headers={"If-None-Match": tag}).status_code == 200


def test_layout_is_packed_for_who_takes_it() -> None:
    make_site()
    client = viewer()
    packed = client.get("/live/layout", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == client.get("/live/layout").content


def test_layout_takes_the_same_statements_for_few_and_many() -> None:
    region = make_region()
    client = viewer()
    client.get("/live/layout")
    counts = []
    for more in (3, 57):
        for _ in range(more):
            make_site(region=region)
        with CaptureQueriesContext(connection) as statements:
            client.get("/live/layout")
        counts.append(len(statements))
    assert counts[0] == counts[1]
