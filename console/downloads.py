"""Files made on the way out: streamed to the caller, never held whole, whichever kind of server runs us."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse


def download(request: HttpRequest, chunks: Iterator[bytes], *, content_type: str, file_name: str) -> StreamingHttpResponse:
    """An answer that saves as `file_name`. `chunks` is read in the request's own thread, so that a database cursor in it stays valid."""
    # Django would read a plain iterator to its end before it sends the first byte through ASGI.
    body = _in_thread(chunks) if isinstance(request, ASGIRequest) else chunks
    response = StreamingHttpResponse(body, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    response["Cache-Control"] = "private, no-store"
    return response


async def _in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    following = sync_to_async(lambda: next(chunks, None), thread_sensitive=True)
    while (chunk := await following()) is not None:
        yield chunk
