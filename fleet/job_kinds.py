"""Which runner does which kind of job."""

from collections.abc import Mapping

from fleet.inventory.importing.pipeline import IMPORT, UNDO, run_import, run_undo
from fleet.jobs import JobFailed, Runner

RUNNERS: Mapping[str, Runner] = {IMPORT: run_import, UNDO: run_undo}


def runner_of(kind: str) -> Runner:
    """The runner of a kind. Raises `JobFailed` for one that this version does not know."""
    try:
        return RUNNERS[kind]
    except KeyError:
        raise JobFailed(f"This version knows no job of the kind {kind!r}.") from None
