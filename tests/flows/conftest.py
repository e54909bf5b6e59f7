"""One small stack of real processes for the flows that need it: started once, watched beside the tests, removed at the end."""

import threading
from collections.abc import Iterator

import pytest

from script.servers import free_port
from script.stack.stack import Options, Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Six sites in one region: a regional edge, an inference site with L40S, four cell sites with PHY. Scraped every 5 s."""
    said: list[str] = []
    options = Options(
        root=tmp_path_factory.mktemp("stack"), areas=1, regions=1, sites=6, web_port=free_port(), scrape_interval_seconds=5, heartbeat_seconds=2, timeline=False
    )
    stack = Stack(options, said.append)
    ended = threading.Event()
    watcher = threading.Thread(target=lambda: stack.supervisor.watch(until=ended.is_set), name="watch")
    try:
        with stack.layout.lock():
            stack.start()
            watcher.start()
            yield stack
    finally:
        ended.set()
        if watcher.ident:
            watcher.join()
        stack.stop()
        stack.layout.remove()
