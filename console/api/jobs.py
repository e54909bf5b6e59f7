"""Jobs: long work with its progress, log and result; ask one to stop."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ApiViewSet
from console.api.problems import Conflict
from console.api.strict import ReadOnlySerializer
from console.filters import AnyOfFilter, choice_boxes
from fleet import jobs
from fleet.models import Job, JobLogLine


class JobFilter(django_filters.FilterSet):
    state = choice_boxes(Job.State.choices)
    kind = AnyOfFilter(field_name="kind")
    owner = AnyOfFilter(field_name="owner__username")


class JobSerializer(ReadOnlySerializer):
    owner: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)
    eta_seconds = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = [
            "id",
            "kind",
            "state",
            "title",
            "phase",
            "done",
            "failed",
            "total",
            "eta_seconds",
            "error",
            "result",
            "owner",
            "created_at",
            "started_at",
            "finished_at",
            "heartbeat_at",
            "cancel_requested",
        ]

    def get_eta_seconds(self, job: Job) -> float | None:
        """At the pace so far; null before 5 % and where the total is not known."""
        return jobs.eta_seconds(job, timezone.now())


def accepted(job: Job) -> Response:
    """202: the work goes on as this job."""
    job.refresh_from_db()
    return Response(JobSerializer(job).data, status=202, headers={"Location": reverse("api-job-detail", args=[job.pk])})


class JobViewSet(ApiViewSet):
    """Imports and their undo, as they run. An import that waits for a decision has the state `waiting`."""

    scope_area = "jobs"
    serializer_class = JobSerializer
    filterset_class = JobFilter
    lookup_value_regex = "[0-9a-f-]{36}"
    ordering_fields = {"created_at": "created_at"}
    default_ordering = "-created_at"

    def get_queryset(self) -> QuerySet[Job]:
        return self.access.jobs()

    @extend_schema(request=None, responses=JobSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def cancel(self, request: Request, **kwargs: Any) -> Response:
        """Stop it: at once when it does not run yet, else at its next step, and nothing of the unfinished part is kept. 409 when it is over."""
        job = self.get_object()
        if not jobs.request_cancel(job, timezone.now()):
            raise Conflict(f"The job is {job.get_state_display().lower()} already.")
        job.refresh_from_db()
        return Response(JobSerializer(job).data)


class JobLogSerializer(ReadOnlySerializer):
    class Meta:
        model = JobLogLine
        fields = ["at", "level", "text"]


class JobLogViewSet(ApiViewSet):
    """The lines that a job wrote, in their order."""

    scope_area = "jobs"
    serializer_class = JobLogSerializer
    queryset = JobLogLine.objects.none()

    def get_queryset(self) -> QuerySet[JobLogLine]:
        return JobLogLine.objects.filter(job=get_object_or_404(self.access.jobs(), pk=self.kwargs["job"]))
