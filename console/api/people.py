"""Users, roles, tenants, namespaces, tokens: for administrators of the whole fleet; everybody has its own tokens."""

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from console import people
from console.access import Right
from console.api.base import ApiViewSet
from console.api.problems import Conflict
from console.api.scopes import SCOPE_AREAS, SCOPES
from console.api.strict import ReadOnlySerializer, StrictSerializer
from console.models import ApiToken, RoleGrant, User
from console.tokens import issue_token, revoke_token, rotate_token
from fleet.models import Region, Site
from tenants.models import Membership, NamespaceMapping, Tenant


def refused(act: Any) -> Any:
    """Run an act of `console.people`; what it refuses becomes 400 for fields, 409 for the whole."""
    try:
        return act()
    except people.PeopleRefused as error:
        if set(error.errors) == {""}:
            raise Conflict(error.errors[""]) from error
        raise ValidationError({field or "non_field_errors": text for field, text in error.errors.items()}) from error


class AdministratorViewSet(ApiViewSet):
    """For administrators. Others get 403 that names the right; a tenant's people 404 by an empty scope is not needed: nothing here is theirs."""

    scope_area = "people"
    http_method_names = ["get", "post", "delete", "head", "options"]

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.require(Right.ADMINISTER)

    @property
    def actor(self) -> Any:
        return self.request.user


class UserSerializer(ReadOnlySerializer):
    class Meta:
        model = User
        fields = ["id", "username", "first_name", "last_name", "email", "is_active", "is_service_account", "last_login", "date_joined"]


class NewUserSerializer(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=200, required=False, allow_null=True, default=None, write_only=True, trim_whitespace=False)
    first_name = serializers.CharField(max_length=150, required=False, allow_blank=True)
    last_name = serializers.CharField(max_length=150, required=False, allow_blank=True)
    email = serializers.EmailField(required=False, allow_blank=True)
    is_service_account = serializers.BooleanField(default=False)


class PasswordSerializer(StrictSerializer):
    password = serializers.CharField(max_length=200, write_only=True, trim_whitespace=False)


class ActiveSerializer(StrictSerializer):
    active = serializers.BooleanField()


class UserViewSet(AdministratorViewSet):
    serializer_class = UserSerializer
    ordering_fields = {"id": "pk", "username": "username"}
    default_ordering = "username"

    def get_queryset(self) -> QuerySet[User]:
        return User.objects.all()

    @extend_schema(request=NewUserSerializer, responses={201: UserSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """A person with a password, or a service account without one."""
        body = NewUserSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        user = refused(lambda: people.create_user(actor=self.actor, now=timezone.now(), **body.validated_data))
        return Response(UserSerializer(user).data, status=201)

    @extend_schema(request=PasswordSerializer, responses={204: None})
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def password(self, request: Request, **kwargs: Any) -> Response:
        """Set a new password; the user's sessions end."""
        user = self.get_object()
        body = PasswordSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        refused(lambda: people.set_password(user=user, actor=self.actor, now=timezone.now(), **body.validated_data))
        return Response(status=204)

    @extend_schema(request=ActiveSerializer, responses=UserSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def active(self, request: Request, **kwargs: Any) -> Response:
        """Let in, or lock out: sessions, sockets and tokens end."""
        user = self.get_object()
        body = ActiveSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        refused(lambda: people.set_active(user=user, actor=self.actor, now=timezone.now(), **body.validated_data))
        user.refresh_from_db()
        return Response(UserSerializer(user).data)

    @extend_schema(request=None, responses=OpenApiTypes.OBJECT)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def end_sessions(self, request: Request, **kwargs: Any) -> Response:
        """Sign the user out everywhere."""
        return Response({"ended": people.end_sessions(user=self.get_object(), actor=self.actor, now=timezone.now())})


class RoleGrantSerializer(StrictSerializer):
    id = serializers.IntegerField(read_only=True)
    user = serializers.SlugRelatedField(slug_field="username", queryset=User.objects.all())
    role = serializers.ChoiceField(choices=RoleGrant.Role.choices)
    region = serializers.SlugRelatedField(slug_field="slug", queryset=Region.objects.all(), allow_null=True, default=None)


class RoleGrantViewSet(AdministratorViewSet):
    """Roles on the whole fleet (region null) or on a region."""

    serializer_class = RoleGrantSerializer

    def get_queryset(self) -> QuerySet[RoleGrant]:
        return RoleGrant.objects.select_related("user", "region")

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        body = RoleGrantSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        grant = refused(lambda: people.grant_role(actor=self.actor, now=timezone.now(), **body.validated_data))
        return Response(RoleGrantSerializer(grant).data, status=201)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        grant = self.get_object()
        refused(lambda: people.revoke_role(grant=grant, actor=self.actor, now=timezone.now()))
        return Response(status=204)


class TenantSerializer(StrictSerializer):
    key = serializers.SlugField(max_length=40)
    name = serializers.CharField(max_length=120)
    suspended_at = serializers.DateTimeField(read_only=True)


class SuspendSerializer(StrictSerializer):
    suspended = serializers.BooleanField()


class TenantViewSet(AdministratorViewSet):
    serializer_class = TenantSerializer
    lookup_field = "key"
    ordering_fields = {"key": "key", "name": "name"}
    default_ordering = "key"

    def get_queryset(self) -> QuerySet[Tenant]:
        return Tenant.objects.all()

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        body = TenantSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        tenant = refused(lambda: people.create_tenant(actor=self.actor, now=timezone.now(), **body.validated_data))
        return Response(TenantSerializer(tenant).data, status=201)

    @extend_schema(request=SuspendSerializer, responses=TenantSerializer)
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def suspend(self, request: Request, **kwargs: Any) -> Response:
        """Suspend or resume: a suspended tenant's people see nothing of it."""
        tenant = self.get_object()
        body = SuspendSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        people.suspend_tenant(tenant=tenant, actor=self.actor, now=timezone.now(), **body.validated_data)
        return Response(TenantSerializer(tenant).data)


class MembershipSerializer(StrictSerializer):
    id = serializers.IntegerField(read_only=True)
    tenant = serializers.SlugRelatedField(slug_field="key", queryset=Tenant.objects.all())
    user = serializers.SlugRelatedField(slug_field="username", queryset=User.objects.all())
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class MembershipViewSet(AdministratorViewSet):
    serializer_class = MembershipSerializer

    def get_queryset(self) -> QuerySet[Membership]:
        return Membership.objects.select_related("user", "tenant")

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        body = MembershipSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        membership = refused(lambda: people.add_member(actor=self.actor, now=timezone.now(), **body.validated_data))
        return Response(MembershipSerializer(membership).data, status=201)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        people.remove_member(membership=self.get_object(), actor=self.actor, now=timezone.now())
        return Response(status=204)


class NamespaceSerializer(StrictSerializer):
    id = serializers.IntegerField(read_only=True)
    tenant = serializers.SlugRelatedField(slug_field="key", queryset=Tenant.objects.all())
    namespace = serializers.CharField(max_length=253)
    site = serializers.SlugRelatedField(slug_field="code", queryset=Site.objects.all(), allow_null=True, default=None)


class NamespaceViewSet(AdministratorViewSet):
    """Which namespace is whose, everywhere (site null) or at one site. The narrower wins."""

    serializer_class = NamespaceSerializer

    def get_queryset(self) -> QuerySet[NamespaceMapping]:
        return NamespaceMapping.objects.select_related("tenant", "site")

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        body = NamespaceSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        mapping = refused(lambda: people.map_namespace(actor=self.actor, now=timezone.now(), **body.validated_data))
        return Response(NamespaceSerializer(mapping).data, status=201)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        people.unmap_namespace(mapping=self.get_object(), actor=self.actor, now=timezone.now())
        return Response(status=204)


class TokenSerializer(ReadOnlySerializer):
    user = serializers.CharField(source="user.username", read_only=True)
    regions: Any = serializers.SlugRelatedField(slug_field="slug", many=True, read_only=True)

    class Meta:
        model = ApiToken
        fields = ["prefix", "name", "user", "scopes", "regions", "created_at", "expires_at", "last_used_at", "revoked_at"]


class NewTokenSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(child=serializers.CharField(max_length=40), min_length=1, max_length=40)
    regions = serializers.ListField(child=serializers.CharField(max_length=40), default=list, max_length=1000)
    expires_at = serializers.DateTimeField()
    user = serializers.CharField(max_length=150, required=False)

    def validate_scopes(self, value: list[str]) -> list[str]:
        unknown = sorted(set(value) - set(SCOPES))
        if unknown:
            raise ValidationError(f"Unknown: {', '.join(unknown)}. A scope is read: or write: and one of {', '.join(SCOPE_AREAS)}.")
        return value


class IssuedTokenSerializer(TokenSerializer):
    secret = serializers.CharField(read_only=True)

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "secret"]


class TokenViewSet(ApiViewSet):
    """Own tokens; administrators see everybody's and make them for service accounts. A token never makes another (a session does)."""

    scope_area = "people"
    serializer_class = TokenSerializer
    lookup_field = "prefix"
    ordering_fields = {"created_at": "created_at", "prefix": "prefix"}
    default_ordering = "-created_at"

    def get_queryset(self) -> QuerySet[ApiToken]:
        tokens = ApiToken.objects.select_related("user").prefetch_related("regions")
        return tokens if self.access.may(Right.ADMINISTER) else tokens.filter(user=self.access.user_id or 0)

    @extend_schema(request=NewTokenSerializer, responses={201: IssuedTokenSerializer})
    @transaction.atomic
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """A token; its secret stands in this answer only."""
        if isinstance(request.auth, ApiToken):
            raise PermissionDenied("A token cannot make tokens: sign in.")
        body = NewTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        user: Any = request.user
        if "user" in values and values["user"] != user.username:
            self.require(Right.ADMINISTER)
            user = User.objects.filter(username=values["user"], is_service_account=True).first()
            if user is None:
                raise ValidationError({"user": "No such service account."})
        regions = list(self.access.regions().filter(slug__in=values["regions"]))
        if missing := sorted(set(values["regions"]) - {region.slug for region in regions}):
            raise ValidationError({"regions": f"No such region: {', '.join(missing)}."})
        try:
            token, secret = issue_token(
                user=user,
                name=values["name"],
                scopes=values["scopes"],
                expires_at=values["expires_at"],
                now=timezone.now(),
                regions=regions,
                actor=request.user,  # type: ignore[arg-type]
            )
        except ValueError as error:
            field, _, text = str(error).partition(": ")
            raise ValidationError({field: text}) from error
        return Response(TokenSerializer(token).data | {"secret": secret}, status=201)

    @extend_schema(request=None, responses={201: IssuedTokenSerializer})
    @action(detail=True, methods=["post"], filter_backends=[], pagination_class=None)
    def rotate(self, request: Request, **kwargs: Any) -> Response:
        """A new token with the same name, scopes and length of life; the old one ends now."""
        if isinstance(request.auth, ApiToken):
            raise PermissionDenied("A token cannot make tokens: sign in.")
        old = self.get_object()
        if old.user_id != request.user.pk and not old.user.is_service_account:
            raise PermissionDenied("Only its owner, or for a service account an administrator, gets a new secret.")
        try:
            token, secret = rotate_token(token=old, now=timezone.now(), actor=request.user)  # type: ignore[arg-type]
        except ValueError as error:
            raise Conflict(str(error)) from error
        return Response(TokenSerializer(token).data | {"secret": secret}, status=201)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Revoke: the token is refused from now on, its sockets end."""
        revoke_token(token=self.get_object(), now=timezone.now(), actor=request.user)  # type: ignore[arg-type]
        return Response(status=204)
