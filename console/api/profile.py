"""One's own account: appearance and keys, password, sessions."""

import zoneinfo
from typing import Any

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from console import people
from console.api.base import ApiView, ApiViewSet, check_if_match, etag_of
from console.api.people import refused
from console.api.strict import ReadOnlySerializer, StrictModelSerializer, StrictSerializer
from console.list_kinds import KINDS
from console.models import ApiToken, User
from console.sessions import revoke_sessions


class ProfileSerializer(StrictModelSerializer):
    list_columns = serializers.DictField(child=serializers.ListField(child=serializers.CharField(max_length=40), max_length=100), required=False)

    class Meta:
        model = User
        fields = ["username", "first_name", "last_name", "email", "time_zone", "theme", "density", "single_letter_keys", "list_columns"]
        read_only_fields = ["username"]

    def validate_time_zone(self, value: str) -> str:
        if value not in zoneinfo.available_timezones():
            raise ValidationError("Not a time zone of the IANA database.")
        return value

    def validate_list_columns(self, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, columns in value.items():
            known = {column.key for column in KINDS[name].columns} if name in KINDS else None
            if known is None:
                raise ValidationError(f"{name[:40]}: no list; one of {', '.join(KINDS)}.")
            if unknown := sorted(set(columns) - known):
                raise ValidationError(f"{name}: no column {', '.join(unknown)}; there are {', '.join(sorted(known))}.")
        return value


class ProfileView(ApiView):
    scope_area = "profile"

    @extend_schema(operation_id="profile_retrieve", responses=ProfileSerializer)
    def get(self, request: Request) -> Response:
        """The caller's settings."""
        data = ProfileSerializer(self.me()).data
        return Response(data, headers={"ETag": etag_of(data)})

    @extend_schema(operation_id="profile_partial_update", request=ProfileSerializer, responses=ProfileSerializer)
    @transaction.atomic
    def patch(self, request: Request) -> Response:
        """Change them."""
        user = self.me(lock=True)
        check_if_match(request, etag_of(ProfileSerializer(user).data))
        serializer = ProfileSerializer(user, data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        data = ProfileSerializer(serializer.save()).data
        return Response(data, headers={"ETag": etag_of(data)})

    def me(self, *, lock: bool = False) -> User:
        rows = User.objects.select_for_update() if lock else User.objects.all()
        return rows.get(pk=self.access.user_id or 0)


class OwnPasswordSerializer(StrictSerializer):
    current = serializers.CharField(max_length=200, write_only=True, trim_whitespace=False)
    new = serializers.CharField(max_length=200, write_only=True, trim_whitespace=False)


class OwnPasswordView(ApiView):
    """A token cannot change the password of its user: sign in."""

    scope_area = "profile"

    @extend_schema(operation_id="profile_password", request=OwnPasswordSerializer, responses={204: None})
    def post(self, request: Request) -> Response:
        """Change one's password. All of one's sessions end, this one too."""
        if isinstance(request.auth, ApiToken):
            raise PermissionDenied("A token cannot change a password: sign in.")
        body = OwnPasswordSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        user = User.objects.get(pk=self.access.user_id or 0)
        if not user.check_password(body.validated_data["current"]):
            raise ValidationError({"current": "This is not your password."})
        refused(lambda: people.set_password(user=user, password=body.validated_data["new"], actor=user, now=timezone.now()))
        return Response(status=204)


class SessionSerializer(ReadOnlySerializer):
    is_current = serializers.SerializerMethodField()

    class Meta:
        model = UserSession
        fields = ["id", "ip", "user_agent", "created_at", "last_seen_at", "is_current"]

    def get_is_current(self, session: UserSession) -> bool:
        request = self.context["request"]
        return bool(request and request.session.session_key == session.session_key)


class SessionViewSet(ApiViewSet):
    """One's own signed-in sessions."""

    scope_area = "profile"
    serializer_class = SessionSerializer
    ordering_fields = {"last_seen_at": "last_seen_at", "id": "pk"}
    default_ordering = "-last_seen_at"

    def get_queryset(self) -> QuerySet[UserSession]:
        alive = Session.objects.filter(expire_date__gt=timezone.now()).values("session_key")
        found: QuerySet[UserSession] = UserSession.objects.filter(user_id=self.access.user_id or 0, session_key__in=alive)
        return found

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """End one; the sockets that it opened end too."""
        session = self.get_object()
        revoke_sessions(User.objects.get(pk=self.access.user_id or 0), now=timezone.now(), only=[session.pk])
        return Response(status=204)

    @extend_schema(operation_id="sessions_revoke_others", request=None, responses=OpenApiTypes.OBJECT)
    def revoke_others(self, request: Request) -> Response:
        """End all but the calling one (with a token: all)."""
        key = None if isinstance(request.auth, ApiToken) else request._request.session.session_key
        return Response({"ended": revoke_sessions(User.objects.get(pk=self.access.user_id or 0), now=timezone.now(), except_key=key)})
