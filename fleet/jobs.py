"""Long work: a row that says how far it is, claimed by one worker, cancelled by its owner, taken up again when its worker dies.

A job is QUEUED, then RUNNING in one worker, then DONE, FAILED or CANCELLED, or WAITING for a person's decision, after which it is queued again.
The broker only wakes workers up: a message that is lost is sent again by `recover_jobs`, one that comes twice finds the job taken.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from celery import current_app
from django.db import connection, transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from fleet import stream
from fleet.models import Job, JobLogLine

log = structlog.get_logger(__name__)
TASK_NAME = "fleet.run_job"
SILENT = timedelta(seconds=120)  # a running job without a sign of life for so long has lost its worker
UNSENT = timedelta(seconds=30)
MOST_RECOVERIES = 2
_WRITE_SECONDS = 0.5
OPEN = (Job.State.QUEUED, Job.State.RUNNING, Job.State.WAITING)


class Cancelled(Exception):
    """The owner asked for it: what is not committed is rolled back."""


class JobFailed(Exception):
    """The job ends as failed; the text is for its owner."""


class NotPossible(Exception):
    """The job is in no state for this; the text says which one it is in."""


@dataclass
class Outcome:
    """How a runner left its job. `result` is merged into the job's."""

    state: Job.State = Job.State.DONE
    phase: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Progress:
    """A runner's way to say how far it is and to hear that it should stop.

    Writes at most twice a second, and past the transaction that the runner may be in, so that others see it. Log lines written
    inside a transaction are kept until it ends, so that they outlive a rollback.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._done = self._failed = 0
        self._total: int | None = None
        self._phase = job.phase
        self._written_at = 0.0
        self._lines: list[tuple[str, str]] = []
        self._side: Any = None

    def start(self, phase: str, total: int | None = None) -> None:
        """Begin a part of the work that is counted from 0 to `total`."""
        self._phase, self._total, self._done, self._failed = phase, total, 0, 0
        self._write()

    def advance(self, done: int = 1, failed: int = 0) -> None:
        """Count on. Raises `Cancelled` when the owner wants the job to stop."""
        self._done += done
        self._failed += failed
        if time.monotonic() - self._written_at >= _WRITE_SECONDS:
            self._write()

    def log(self, text: str, level: str = "info") -> None:
        self._lines.append((level, text))
        if not connection.in_atomic_block:
            self.flush_log()

    def flush_log(self) -> None:
        lines, self._lines = self._lines, []
        JobLogLine.objects.bulk_create([JobLogLine(job=self.job, level=level, text=text[:2000]) for level, text in lines])

    def _write(self) -> None:
        self._written_at = time.monotonic()
        cursor_of = connection
        if connection.in_atomic_block:
            if self._side is None:
                self._side = connection.copy()
            cursor_of = self._side
        with cursor_of.cursor() as cursor:
            # Never waits: a row that somebody else holds is told next time.
            cursor.execute(
                "UPDATE fleet_job SET done = %s, failed = %s, total = %s, phase = %s, heartbeat_at = now() "
                "WHERE id = (SELECT id FROM fleet_job WHERE id = %s FOR UPDATE SKIP LOCKED) RETURNING cancel_requested",
                [self._done, self._failed, self._total, self._phase, self.job.pk],
            )
            row = cursor.fetchone()
        if row is not None and row[0]:
            raise Cancelled

    def close(self) -> None:
        if self._side is not None:
            self._side.close()
            self._side = None

    @property
    def counted(self) -> dict[str, Any]:
        return {"done": self._done, "failed": self._failed, "total": self._total, "phase": self._phase}


Runner = Callable[[Job, Progress, datetime], Outcome]


def create_job(*, kind: str, title: str, owner: Any, state: Job.State = Job.State.QUEUED, phase: str = "") -> Job:
    """A new job; unless it waits for a decision it is sent to the workers when the transaction commits."""
    job = Job.objects.create(kind=kind, title=title[:200], owner=owner, state=state, phase=phase, heartbeat_at=timezone.now())
    if state == Job.State.QUEUED:
        transaction.on_commit(lambda: dispatch(job.pk))
    return job


def queue_again(job: Job, *, phase: str, now: datetime) -> None:
    """Send a job that waited on, to do `phase`. Raises `NotPossible` when it does not wait (any more)."""
    moved = Job.objects.filter(pk=job.pk, state=Job.State.WAITING).update(
        state=Job.State.QUEUED, phase=phase, heartbeat_at=now, cancel_requested=False, error="", finished_at=None
    )
    if not moved:
        raise NotPossible(f"The job is {Job.objects.get(pk=job.pk).get_state_display().lower()}; it does not wait for a decision.")
    job.refresh_from_db()
    transaction.on_commit(lambda: dispatch(job.pk))


def dispatch(job_id: uuid.UUID) -> bool:
    """Wake a worker up; False when the broker is away (`recover_jobs` tries again)."""
    try:
        current_app.send_task(TASK_NAME, [str(job_id)], retry=False)
    except (OperationalError, OSError) as error:
        log.warning("jobs.broker_unreachable", job=str(job_id), error=str(error))
        return False
    return True


def request_cancel(job: Job, now: datetime) -> bool:
    """Ask a job to stop: one that does not run yet stops at once, a running one at its next step. False when it is over already."""
    stopped = Job.objects.filter(pk=job.pk, state__in=(Job.State.QUEUED, Job.State.WAITING)).update(state=Job.State.CANCELLED, finished_at=now)
    if not stopped:
        stopped = Job.objects.filter(pk=job.pk, state=Job.State.RUNNING).update(cancel_requested=True)
    if stopped:
        job.refresh_from_db()
        _tell(job)
    return bool(stopped)


def run(job_id: uuid.UUID | str, runner_of: Callable[[str], Runner], now: datetime) -> Job | None:
    """Do a job in this process; None when another worker has it, or it is over. Never raises for what the runner does wrong: the job fails and says so."""
    claimed = Job.objects.filter(pk=job_id, state=Job.State.QUEUED).update(state=Job.State.RUNNING, started_at=now, heartbeat_at=now, finished_at=None)
    if not claimed:
        return None
    job = Job.objects.select_related("owner").get(pk=job_id)
    progress = Progress(job)
    try:
        outcome = runner_of(job.kind)(job, progress, now)
    except Cancelled:
        outcome = Outcome(Job.State.CANCELLED, phase=job.phase)
        progress.log("Cancelled. Nothing of the unfinished part was kept.")
    except JobFailed as error:
        outcome = Outcome(Job.State.FAILED, phase=job.phase, error=str(error))
        progress.log(str(error), "error")
    except Exception as error:
        log.exception("jobs.failed", job=str(job.pk), kind=job.kind)
        outcome = Outcome(Job.State.FAILED, phase=job.phase, error=f"Something went wrong ({type(error).__name__}). The server's log names job {job.pk}.")
        progress.log(outcome.error, "error")
    finally:
        progress.close()
    progress.flush_log()
    counted = progress.counted
    Job.objects.filter(pk=job.pk, state=Job.State.RUNNING, started_at=now).update(
        state=outcome.state,
        phase=outcome.phase or counted["phase"],
        done=counted["done"],
        failed=counted["failed"],
        total=counted["total"],
        error=outcome.error,
        result={**job.result, **outcome.result},
        finished_at=None if outcome.state == Job.State.WAITING else timezone.now(),
        heartbeat_at=timezone.now(),
    )
    job.refresh_from_db()
    _tell(job)
    return job


def recover_jobs(now: datetime) -> int:
    """Send what no worker took, and take up again what lost its worker (at most twice, then it fails). Returns how many were touched."""
    touched = 0
    for job in Job.objects.filter(state=Job.State.RUNNING, heartbeat_at__lt=now - SILENT):
        recoveries = int(job.result.get("recoveries", 0)) + 1
        same = Job.objects.filter(pk=job.pk, state=Job.State.RUNNING, heartbeat_at=job.heartbeat_at)
        if recoveries > MOST_RECOVERIES:
            words = "The worker died over it three times. Nothing of the unfinished part was kept."
            touched += same.update(state=Job.State.FAILED, finished_at=now, error=words)
            continue
        if same.update(state=Job.State.QUEUED, heartbeat_at=now, done=0, result={**job.result, "recoveries": recoveries}):
            JobLogLine.objects.create(job=job, level="warning", text="The worker died; another one starts over.")
            dispatch(job.pk)
            touched += 1
    for job in Job.objects.filter(state=Job.State.QUEUED, heartbeat_at__lt=now - UNSENT):
        if Job.objects.filter(pk=job.pk, state=Job.State.QUEUED).update(heartbeat_at=now):
            dispatch(job.pk)
            touched += 1
    return touched


def eta_seconds(job: Job, now: datetime) -> float | None:
    """Seconds to go at the pace so far; None before 5 % or where the total is not known."""
    if job.state != Job.State.RUNNING or not job.total or job.started_at is None or job.done < job.total * 0.05 or not job.done:
        return None
    return max(0.0, (now - job.started_at).total_seconds() * (job.total - job.done) / job.done)


def _tell(job: Job) -> None:
    """A notice to the owner's open pages, after the commit."""
    text = f"{job.title}: {job.get_state_display().lower()}"
    notice = {"type": "job", "user_id": job.owner_id, "kind": "job", "key": str(job.pk), "state": job.state, "text": text, "url": f"/jobs/{job.pk}"}
    transaction.on_commit(lambda: stream.publish_notices([notice]))
