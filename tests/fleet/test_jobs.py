"""Jobs: claimed once, progress seen by others, cancelled, taken up again when their worker dies."""

import json
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection, transaction

from console.models import User
from fleet import jobs, stream
from fleet.jobs import Cancelled, JobFailed, Outcome, Progress
from fleet.models import Job, Site
from tests.builders import T0, make_region, make_site, make_user


@pytest.fixture
def owner(db: None) -> User:
    return make_user("lena")


def make_job(owner: User, **fields: object) -> Job:
    job = jobs.create_job(kind="test", title="A job", owner=owner)
    if fields:
        Job.objects.filter(pk=job.pk).update(**fields)
        job.refresh_from_db()
    return job


def run(job: Job, work: jobs.Runner) -> Job | None:
    return jobs.run(job.pk, lambda kind: work, T0)


def test_a_job_counts_and_logs_and_ends(owner: User) -> None:
    def work(job: Job, progress: Progress, now: datetime) -> Outcome:
        progress.start("count", 10)
        progress.advance(9, 1)
        progress.log("nine of ten")
        return Outcome(result={"sum": 45})

    job = run(make_job(owner), work)
    assert job is not None
    assert (job.state, job.phase, job.done, job.failed, job.total, job.result) == (Job.State.DONE, "count", 9, 1, 10, {"sum": 45})
    assert job.started_at == T0
    assert job.finished_at is not None
    assert [line.text for line in job.log.all()] == ["nine of ten"]


def test_a_job_is_done_by_one_worker(owner: User) -> None:
    job = make_job(owner)
    assert run(job, lambda *_: Outcome()) is not None
    assert run(job, lambda *_: Outcome()) is None


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (JobFailed("The file is empty."), Job.State.FAILED, "The file is empty."),
        (KeyError("secret"), Job.State.FAILED, "Something went wrong (KeyError). The server's log names job"),
        (Cancelled(), Job.State.CANCELLED, ""),
    ],
)
def test_a_job_that_fails_says_so(owner: User, error: Exception, state: str, text: str) -> None:
    def work(job: Job, progress: Progress, now: datetime) -> Outcome:
        with transaction.atomic():
            make_site("HALF", region=make_region("r"))
            progress.log("before the failure")
            raise error

    job = run(make_job(owner), work)
    assert job is not None
    assert (job.state, job.error.startswith(text)) == (state, True)
    assert not Site.objects.exists()
    assert job.log.first().text == "before the failure"  # type: ignore[union-attr]


def test_waiting_jobs_are_queued_again_once(owner: User) -> None:
    job = run(make_job(owner), lambda *_: Outcome(Job.State.WAITING, "decide"))
    assert job is not None
    assert (job.state, job.finished_at) == (Job.State.WAITING, None)
    jobs.queue_again(job, phase="apply", now=T0)
    assert (job.state, job.phase) == (Job.State.QUEUED, "apply")
    with pytest.raises(jobs.NotPossible, match="queued"):
        jobs.queue_again(job, phase="apply", now=T0)


def test_a_job_that_does_not_run_is_cancelled_at_once(owner: User) -> None:
    job = make_job(owner)
    assert jobs.request_cancel(job, T0)
    assert (job.state, job.finished_at) == (Job.State.CANCELLED, T0)
    assert run(job, lambda *_: Outcome()) is None
    assert not jobs.request_cancel(job, T0)


@pytest.mark.django_db(transaction=True)
def test_progress_is_seen_from_outside_the_runners_transaction_and_cancels_it() -> None:
    owner = make_user("lena")
    config: dict[str, Any] = dict(settings.DATABASES["default"])
    outside = psycopg.connect(host=config["HOST"], port=config["PORT"], user=config["USER"], dbname=connection.settings_dict["NAME"], autocommit=True)
    seen: list[tuple[object, ...]] = []

    def work(job: Job, progress: Progress, now: datetime) -> Outcome:
        with transaction.atomic():
            make_site("HALF", region=make_region("r"))
            progress.start("write", 100)
            seen.append(outside.execute("SELECT state, phase, done, total FROM fleet_job").fetchone() or ())
            seen.append(outside.execute("SELECT count(*) FROM fleet_site").fetchone() or ())
            outside.execute("UPDATE fleet_job SET cancel_requested = true")
            progress.start("write on", 100)
        return Outcome()

    with outside:
        job = run(make_job(owner), work)
    assert seen == [("running", "write", 0, 100), (0,)]
    assert job is not None
    assert job.state == Job.State.CANCELLED
    assert not Site.objects.exists()


def test_a_job_without_a_worker_is_taken_up_again_and_fails_after_the_third(owner: User) -> None:
    job = make_job(owner, state=Job.State.RUNNING, started_at=T0, heartbeat_at=T0, done=5)
    assert jobs.recover_jobs(T0 + timedelta(seconds=100)) == 0
    later = T0
    for count in (1, 2):
        later += timedelta(seconds=130)
        assert jobs.recover_jobs(later) == 1
        job.refresh_from_db()
        assert (job.state, job.done, job.result["recoveries"]) == (Job.State.QUEUED, 0, count)
        Job.objects.update(state=Job.State.RUNNING)
    assert jobs.recover_jobs(later + timedelta(seconds=130)) == 1
    job.refresh_from_db()
    assert job.state == Job.State.FAILED
    assert "died over it three times" in job.error


def test_a_late_worker_does_not_end_what_another_took_up(owner: User) -> None:
    def work(job: Job, progress: Progress, now: datetime) -> Outcome:
        Job.objects.update(state=Job.State.RUNNING, started_at=T0 + timedelta(minutes=5))
        return Outcome()

    job = run(make_job(owner), work)
    assert job is not None
    assert job.state == Job.State.RUNNING


def test_a_job_whose_message_was_lost_is_sent_again(owner: User) -> None:
    make_job(owner, heartbeat_at=T0)
    assert jobs.recover_jobs(T0 + timedelta(seconds=10)) == 0
    assert jobs.recover_jobs(T0 + timedelta(seconds=40)) == 1
    assert jobs.recover_jobs(T0 + timedelta(seconds=50)) == 0


@pytest.mark.parametrize(("done", "total", "eta"), [(0, 100, None), (4, 100, None), (5, 100, 190.0), (50, 100, 10.0), (100, 100, 0.0), (5, None, None)])
def test_the_eta_waits_for_five_percent(owner: User, done: int, total: int | None, eta: float | None) -> None:
    job = make_job(owner, state=Job.State.RUNNING, started_at=T0, done=done, total=total)
    assert jobs.eta_seconds(job, T0 + timedelta(seconds=10)) == eta


@pytest.mark.django_db
def test_the_owner_hears_of_the_end(owner: User, django_capture_on_commit_callbacks: Any) -> None:
    client = stream.connect()
    client.delete(stream.NOTICE_KEY)
    with django_capture_on_commit_callbacks(execute=True):
        job = run(make_job(owner), lambda *_: Outcome())
    assert job is not None
    entries: Any = client.xrange(stream.NOTICE_KEY)
    told = json.loads(entries[-1][1][b"d"])
    assert told == {
        "type": "job",
        "user_id": owner.pk,
        "kind": "job",
        "key": str(job.pk),
        "state": "done",
        "text": "A job: done",
        "url": f"/jobs/{job.pk}",
    }
