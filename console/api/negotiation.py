"""Answers are JSON whatever the caller says it accepts: a browser or a bare `curl` should see the answer, not a 406."""

from collections.abc import Iterable
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class AlwaysJson(DefaultContentNegotiation):
    def select_renderer(self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None) -> tuple[Any, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type
