"""`/jobs` and `/jobs/<id>`: long work with its progress, log and result; right after a reload, and renewed while it runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.downloads import download
from console.guards import operator_page
from fleet import jobs
from fleet.inventory.importing import pipeline
from fleet.models import Job, JobLogLine

PAGE_SIZE = 50
LOG_SHOWN = 200


@operator_page
def job_list(request: HttpRequest, access: Access) -> HttpResponse:
    """One's own; administrators see everybody's. The rows renew themselves while something runs."""
    shown = Paginator(access.jobs().order_by("-created_at"), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "nav": "jobs",
        "page": shown,
        "jobs": shown.object_list,
        "moving": any(job.state in (Job.State.QUEUED, Job.State.RUNNING) for job in shown.object_list),
        "may_import": access.may_anywhere(Right.IMPORT),
        "everybodys": access.may(Right.ADMINISTER),
        "now": timezone.now(),
    }
    return render(request, "jobs/_rows.html" if _is_renewal(request) else "jobs/list.html", context)


@operator_page
def job_page(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    job = get_object_or_404(access.jobs().select_related("inventory_import"), pk=pk)
    now = timezone.now()
    lines = list(job.log.order_by("-id")[: LOG_SHOWN + 1])
    context = {
        "nav": "jobs",
        "job": job,
        "inventory_import": getattr(job, "inventory_import", None),
        "undone_import": job.result.get("import_id", "") if job.kind == pipeline.UNDO else "",
        "moving": job.state in (Job.State.QUEUED, Job.State.RUNNING),
        "is_open": job.state in jobs.OPEN,
        "untaken": job.state == Job.State.QUEUED and job.heartbeat_at is not None and now - job.heartbeat_at > jobs.UNSENT,
        "eta_seconds": jobs.eta_seconds(job, now),
        "ratio": job.done / job.total if job.total else None,
        "lines": list(reversed(lines[:LOG_SHOWN])),
        "more_lines": len(lines) > LOG_SHOWN,
        "now": now,
    }
    return render(request, "jobs/_job.html" if _is_renewal(request) else "jobs/page.html", context)


@require_POST
@operator_page
def cancel_job(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    job = get_object_or_404(access.jobs(), pk=pk)
    if jobs.request_cancel(job, timezone.now()):
        messages.success(request, _("The job stops. Nothing of the unfinished part is kept."))
    else:
        messages.warning(request, _("The job is over already."))
    return redirect("job", pk=pk)


@operator_page
def job_log(request: HttpRequest, access: Access, pk: uuid.UUID) -> StreamingHttpResponse:
    """The whole log as text."""
    job = get_object_or_404(access.jobs(), pk=pk)
    return download(request, _lines(job), content_type="text/plain; charset=utf-8", file_name=f"job-{job.pk}.log")


def _lines(job: Job) -> Iterator[bytes]:
    for line in JobLogLine.objects.filter(job=job).order_by("id").iterator(chunk_size=500):
        yield f"{line.at:%Y-%m-%dT%H:%M:%SZ} {line.level} {line.text}\n".encode()


def _is_renewal(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true" and not request.headers.get("HX-Boosted")


urlpatterns = [
    path("jobs", job_list, name="jobs"),
    path("jobs/<uuid:pk>", job_page, name="job"),
    path("jobs/<uuid:pk>/cancel", cancel_job, name="job_cancel"),
    path("jobs/<uuid:pk>/log", job_log, name="job_log"),
]
