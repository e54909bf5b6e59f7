"""Commands: preview, submit, decide, watch. What a page does with a command, it does through the same functions."""

from typing import Any

import django_filters
from django.db.models import Count, QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from console.access import Right
from console.api.base import ApiView, ApiViewSet
from console.api.controls import IDEMPOTENCY_KEY, idempotency_key, user_of
from console.api.problems import Conflict, SourceUnavailable, Unprocessable, request_id
from console.api.strict import ReadOnlySerializer, ReasonSerializer, StrictSerializer
from console.command_context import context_of
from console.command_targets import MissingRightOnTargets, Selection, resolve, visible_commands
from console.filters import AnyOfFilter, choice_boxes
from console.fresh_sign_in import StaleSignIn, require_fresh
from fleet.control import commands
from fleet.control.command_kinds import KINDS
from fleet.control.commands import CommandRefused, KeyReused, PreviewDrifted
from fleet.control.signing import SigningUnavailable
from fleet.models import Command, CommandDecision, CommandTarget


class PreviewRequestSerializer(StrictSerializer):
    kind = serializers.CharField(max_length=40)
    parameters = serializers.JSONField(default=dict)
    selection = serializers.JSONField()
    break_glass = serializers.BooleanField(default=False)


class SubmitSerializer(PreviewRequestSerializer):
    preview_hash = serializers.CharField(max_length=64)
    reason = serializers.CharField(max_length=300)
    confirm = serializers.CharField(max_length=100, default="", allow_blank=True)
    not_after = serializers.DateTimeField(required=False)
    pause_seconds = serializers.IntegerField(min_value=0, max_value=3600, default=0)


class PreviewSerializer(serializers.Serializer[Any]):
    hash = serializers.CharField()
    content = serializers.JSONField()


class DecisionSerializer(ReadOnlySerializer):
    person: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)

    class Meta:
        model = CommandDecision
        fields = ["person", "verdict", "reason", "preview_hash", "at"]


class CommandSerializer(ReadOnlySerializer):
    created_by: Any = serializers.SlugRelatedField(slug_field="username", read_only=True)
    decisions = DecisionSerializer(many=True, read_only=True)
    states = serializers.SerializerMethodField()

    class Meta:
        model = Command
        fields = [
            "id", "kind", "parameters", "selection", "reason", "risk", "break_glass", "state", "paused_because", "preview", "preview_hash", "waves", "wave",
            "pause_seconds", "failure_share", "approvals_needed", "approve_by", "not_after", "created_by", "created_at", "finished_at", "retry_of", "decisions",
            "states",
        ]  # fmt: skip

    def get_states(self, command: Command) -> dict[str, int]:
        """Targets by state."""
        return dict(command.targets.values_list("state").annotate(count=Count("pk")))


class CommandRowSerializer(CommandSerializer):
    """A list's row: without the preview."""

    class Meta(CommandSerializer.Meta):
        fields = [name for name in CommandSerializer.Meta.fields if name not in ("preview", "decisions", "states")]


class TargetSerializer(ReadOnlySerializer):
    node_host_name = serializers.CharField(source="node.host_name", read_only=True)
    site: Any = serializers.CharField(source="node.site.code", read_only=True)

    class Meta:
        model = CommandTarget
        fields = [
            "id", "node", "node_host_name", "site", "gpu_uuid", "wave", "state", "code", "detail", "waits_for", "progress", "blocked", "output", "preconditions",
            "released_at", "sent_at", "accepted_at", "started_at", "finished_at",
        ]  # fmt: skip


class CommandFilter(django_filters.FilterSet):
    kind = AnyOfFilter(field_name="kind")
    state = choice_boxes(Command.State.choices)
    actor = AnyOfFilter(field_name="created_by__username")
    node = django_filters.NumberFilter(field_name="targets__node_id", distinct=True)


class TargetFilter(django_filters.FilterSet):
    state = choice_boxes(CommandTarget.State.choices)
    wave = django_filters.NumberFilter()


class CommandKindView(ApiView):
    """The kinds of commands with the JSON Schema of their parameters."""

    scope_area = "commands"

    @extend_schema(operation_id="command_kinds", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        if not self.access.is_operator_side:
            raise PermissionDenied
        return Response(
            {
                "results": [
                    {
                        "kind": kind.name,
                        "title": kind.title,
                        "explains": kind.explains,
                        "undo": kind.undo,
                        "reach": kind.act.reach.value,
                        "disruptive": kind.act.disruptive,
                        "per_gpu": kind.per_gpu,
                        "parameters": kind.schema,
                        "not_after_seconds": int(kind.not_after.total_seconds()),
                    }
                    for kind in KINDS.values()
                ]
            }
        )


class CommandViewSet(ApiViewSet):
    """Commands on nodes and GPUs of the caller's scope."""

    scope_area = "commands"
    serializer_class = CommandSerializer
    filterset_class = CommandFilter
    ordering_fields = {"created_at": "created_at", "id": "pk"}
    default_ordering = "-created_at"

    def get_queryset(self) -> QuerySet[Command]:
        return visible_commands(self.access).select_related("created_by").prefetch_related("decisions__person")

    def get_serializer_class(self) -> Any:
        return CommandRowSerializer if self.action == "list" else CommandSerializer

    @extend_schema(request=PreviewRequestSerializer, responses=PreviewSerializer)
    @action(detail=False, methods=["post"], filter_backends=[], pagination_class=None)
    def preview(self, request: Request, **kwargs: Any) -> Response:
        """What it would do; nothing is done or stored. The hash goes into the submit."""
        body = PreviewRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        chosen = self.chosen(body.validated_data)
        seen = answered(
            lambda: commands.preview(
                kind=body.validated_data["kind"],
                parameters=body.validated_data["parameters"],
                wanted=chosen.wanted,
                break_glass=body.validated_data["break_glass"],
                context=context_of(chosen.wanted),
                now=timezone.now(),
            )
        )
        return Response({"hash": seen.hash, "content": seen.content})

    def chosen(self, values: dict[str, Any]) -> Selection:
        if values["break_glass"]:
            self.require(Right.APPROVE)
        return answered(lambda: resolve(self.access, values["kind"], values["selection"]))

    @extend_schema(request=SubmitSerializer, responses={201: CommandSerializer, 200: CommandSerializer}, parameters=[IDEMPOTENCY_KEY])
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Submit what was previewed. 201 when stored, 200 when this key stored it before, 409 when the fleet has changed since the preview."""
        key = idempotency_key(request)
        body = SubmitSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        values = dict(body.validated_data)
        selection = values.pop("selection")
        chosen = self.chosen({**values, "selection": selection})
        retry = visible_commands(self.access).get(pk=selection["retry_of"]) if "retry_of" in selection else None
        fresh(lambda: require_fresh(request, risk=self.risk_of(values, chosen)))
        done = answered(
            lambda: commands.submit(
                wanted=chosen.wanted,
                selection=chosen.stored,
                context=context_of(chosen.wanted),
                user=user_of(request),
                now=timezone.now(),
                idempotency_key=key,
                retry_of=retry,
                request_id=request_id(),
                **values,
            )
        )
        return Response(CommandSerializer(done.command).data, status=201 if done.created else 200)

    def risk_of(self, values: dict[str, Any], chosen: Selection) -> int:
        seen = answered(
            lambda: commands.preview(
                kind=values["kind"], parameters=values["parameters"], wanted=chosen.wanted, break_glass=values["break_glass"], now=timezone.now()
            )
        )
        return int(seen.risk)

    @extend_schema(request=ReasonSerializer, responses=CommandSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def approve(self, request: Request, **kwargs: Any) -> Response:
        """Say yes to the preview that was submitted. Not by who asked for it."""
        return self.decide(request, approve=True)

    @extend_schema(request=ReasonSerializer, responses=CommandSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def deny(self, request: Request, **kwargs: Any) -> Response:
        """Say no: final."""
        return self.decide(request, approve=False)

    def decide(self, request: Request, *, approve: bool) -> Response:
        command = self.get_object()
        self.require_on(command, Right.APPROVE)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        if approve:
            fresh(lambda: require_fresh(request, risk=command.risk))
        reason = body.validated_data["reason"]
        done = answered(
            lambda: commands.decide(command_id=command.pk, approve=approve, reason=reason, user=user_of(request), now=timezone.now(), request_id=request_id())
        )
        return Response(CommandSerializer(done).data)

    @extend_schema(request=ReasonSerializer, responses=CommandSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Begin no further target."""
        return self.change(request, commands.pause)

    @extend_schema(request=ReasonSerializer, responses=CommandSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """Go on."""
        return self.change(request, commands.resume)

    @extend_schema(request=ReasonSerializer, responses=CommandSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def abort(self, request: Request, **kwargs: Any) -> Response:
        """Begin nothing more and ask what is in flight to stop."""
        return self.change(request, commands.abort)

    def change(self, request: Request, act: Any) -> Response:
        command = self.get_object()
        self.require_on(command, Right.OPERATE)
        body = ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reason = body.validated_data["reason"]
        done = answered(lambda: act(command_id=command.pk, reason=reason, user=user_of(request), now=timezone.now(), request_id=request_id()))
        return Response(CommandSerializer(done).data)

    def require_on(self, command: Command, right: Right) -> None:
        """The right on every region of the command."""
        if not self.access.may(right):
            regions = set(command.targets.values_list("node__site__region_id", flat=True))
            if not all(self.access.may(right, region) for region in regions):
                self.require(right)


class CommandTargetViewSet(ApiViewSet):
    """The targets of one command, with what their agents said."""

    queryset = CommandTarget.objects.none()

    scope_area = "commands"
    serializer_class = TargetSerializer
    filterset_class = TargetFilter
    ordering_fields = {"id": "pk", "wave": "wave"}

    def get_queryset(self) -> QuerySet[CommandTarget]:
        command = get_object_or_404(visible_commands(self.access), pk=self.kwargs["command"])
        return command.targets.select_related("node__site")


def fresh(check: Any) -> None:
    """Run a check of the sign-in's age; a stale one becomes 403 that says what to do."""
    try:
        check()
    except StaleSignIn as stale:
        raise PermissionDenied(str(stale), code="reauthentication_required") from stale


def answered(act: Any) -> Any:
    """Run a function of commands; its refusals become problems: 400 for a field, 403 for a right, 409 for the state of things, 422 for a key that was used."""
    try:
        return act()
    except CommandRefused as refused:
        if set(refused.errors) == {""}:
            raise Conflict(refused.errors[""]) from refused
        raise ValidationError({field or "non_field_errors": reason for field, reason in refused.errors.items()}) from refused
    except MissingRightOnTargets as missing:
        raise PermissionDenied(str(missing)) from missing
    except PreviewDrifted as drifted:
        raise Conflict(f"{drifted} Its hash is {drifted.preview.hash}.", code="preview_drifted") from drifted
    except KeyReused as reused:
        raise Unprocessable(str(reused)) from reused
    except SigningUnavailable as missing_key:
        raise SourceUnavailable(str(missing_key)) from missing_key
