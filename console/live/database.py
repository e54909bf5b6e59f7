"""Database work of the sockets, on threads of its own: a slow page never holds up a handshake or the check of who may stay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from channels.db import database_sync_to_async

P = ParamSpec("P")
R = TypeVar("R")
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="live-database")


def in_database(work: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """`work` as a coroutine function, run on the sockets' own threads."""
    made: Callable[P, Awaitable[R]] = database_sync_to_async(work, thread_sensitive=False, executor=_threads)
    return made
