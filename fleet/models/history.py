"""Change history by database triggers: who, when, what, before and after, for every insert, update and delete."""

from collections.abc import Callable
from typing import TypeVar

import pghistory
from django.db import models

M = TypeVar("M", bound=models.Model)


def tracked(*, exclude: list[str] | None = None) -> Callable[[type[M]], type[M]]:
    """Class decorator: keep each version of a row in `<Model>Event` (statement-level triggers, so bulk writes count too)."""
    return pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), exclude=exclude)
