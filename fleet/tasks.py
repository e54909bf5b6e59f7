"""What workers of the fleet do: each task translates and makes one call."""

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.utils import timezone

from fleet import jobs
from fleet.control import audit_seal, audit_stream, audit_verify, breakers, desired_state, dispatch, long_silence
from fleet.job_kinds import runner_of
from fleet.telemetry import pull


@shared_task(name=jobs.TASK_NAME)
def run_job(job_id: str) -> None:
    jobs.run(job_id, runner_of, timezone.now())


@shared_task(name="fleet.recover_jobs")
def recover_jobs() -> None:
    jobs.recover_jobs(timezone.now())


@shared_task(name="fleet.pull_telemetry", ignore_result=True)
def pull_telemetry() -> None:
    try:
        pull.pull(now=timezone.now())
    except SoftTimeLimitExceeded:
        pull.note_unfinished(now=timezone.now())


@shared_task(name="fleet.refresh_desired_state", ignore_result=True)
def refresh_desired_state() -> None:
    desired_state.refresh_documents(now=timezone.now())


@shared_task(name="fleet.advance_commands", ignore_result=True)
def advance_commands() -> None:
    dispatch.advance(now=timezone.now())


@shared_task(name="fleet.evaluate_breakers", ignore_result=True)
def evaluate_breakers() -> None:
    breakers.evaluate(now=timezone.now())


@shared_task(name="fleet.seal_audit", ignore_result=True)
def seal_audit() -> None:
    audit_seal.seal_entries(now=timezone.now())


@shared_task(name="fleet.verify_audit", ignore_result=True)
def verify_audit() -> None:
    audit_verify.check_next(now=timezone.now())


@shared_task(name="fleet.stream_audit", ignore_result=True)
def stream_audit() -> None:
    audit_stream.send_new(address=settings.AUDIT_SYSLOG, now=timezone.now())


@shared_task(name="fleet.note_long_silence", ignore_result=True)
def note_long_silence() -> None:
    long_silence.note_long_silence(now=timezone.now())
