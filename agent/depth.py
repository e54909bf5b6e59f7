"""How many requests wait for each model, from the node's own inference servers: Triton's pending, vLLM's waiting. Never older than a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agent.exposition import Page, PageError, samples

log = logging.getLogger("masthead_agent.depth")
MAX_AGE_SECONDS = 1.0
READ_SECONDS = 0.4
_TRITON, _VLLM = "nv_inference_pending_request_count", "vllm:num_requests_waiting"
_NAMES = frozenset({_TRITON, _VLLM})
_BLANK = 1e15


def depths_in(text: str) -> dict[str, int]:
    """Model → waiting requests, summed over versions and engines. A count that cannot be one makes the model's depth unknown: it is left out."""
    found: dict[str, float] = {}
    bad: set[str] = set()
    for name, labels, value in samples(text, _NAMES):
        model = labels.get("model" if name == _TRITON else "model_name", "")
        if not 0 <= value < _BLANK:
            bad.add(model)
        found[model] = found.get(model, 0) + value
    return {model: int(count) for model, count in found.items() if model and model not in bad}


class Depths:
    """The newest reading of each server. `clock` is monotonic, in seconds. Written by one thread, read by another."""

    def __init__(self, servers: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: list[tuple[float, dict[str, int]] | None] = [None] * servers

    def store(self, server: int, at: float, depths: dict[str, int]) -> None:
        """`at`: when the reading was asked for, so that its age is never understated."""
        self._read[server] = (at, depths)

    def of(self, model: str) -> int | None:
        """None: no server told it within the last second, or one of several that serve the model did not."""
        oldest = self._clock() - MAX_AGE_SECONDS
        total: int | None = None
        for reading in self._read:
            if reading is not None and model in reading[1]:
                if reading[0] < oldest:
                    return None
                total = (total or 0) + reading[1][model]
        return total


class DepthReader:
    """Asks each server's page in a thread of its own, so that a slow page delays nothing. Raises ValueError for an address that is none."""

    def __init__(self, urls: tuple[str, ...], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.depths = Depths(len(urls), clock=clock)
        self._clock = clock
        self._stopping = threading.Event()
        pages = [Page(url, timeout_seconds=MAX_AGE_SECONDS) for url in urls]
        self._threads = [threading.Thread(target=self._run, args=(number, page), name=f"depth-{number}", daemon=True) for number, page in enumerate(pages)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2)

    def _run(self, number: int, page: Page) -> None:
        trouble = ""
        while not self._stopping.is_set():
            asked = self._clock()
            try:
                self.depths.store(number, asked, depths_in(page.read()))
                trouble = ""
            except PageError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("the depth of its models is unknown: %s", trouble)
            self._stopping.wait(max(0.0, READ_SECONDS - (self._clock() - asked)))
        page.close()
