"""What all API views share: who may call, strict JSON, problem answers, `fields=`, `expand=`, ETags, audit of writes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction
from django.http import Http404
from rest_framework import exceptions, serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from console.access import ROLE_FOR, Access, Right, access_of
from console.api.problems import PreconditionFailed, PreconditionRequired, request_id
from console.models import ApiToken


class ApiView(APIView):
    """Base of every view of the API. Authentication, parsers and limits are set in settings.REST_FRAMEWORK."""

    scope_area: ClassVar[str] = "*"

    @property
    def access(self) -> Access:
        found: Access | None = getattr(self.request, "_access", None)
        if found is None:
            token = self.request.auth if isinstance(self.request.auth, ApiToken) else None
            found = access_of(self.request.user, token)
            self.request._access = found  # type: ignore[attr-defined]
        return found

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        # No text of ours holds a NUL, and the database refuses to look for one.
        if any("\x00" in str(value) for value in kwargs.values()):
            raise Http404
        holding = [name for name, values in request.query_params.lists() if any("\x00" in text for text in (name, *values))]
        if holding:
            raise exceptions.ValidationError({name.replace("\x00", "") or "non_field_errors": "Holds a NUL character." for name in holding})

    def require(self, right: Right, region_id: int | None = None) -> None:
        """403 that names the missing right, for something that the caller may see."""
        if not self.access.may(right, region_id):
            raise exceptions.PermissionDenied(f"This needs the right '{right}' (role {ROLE_FOR[right]}) {'here' if region_id else 'on the whole fleet'}.")

    def require_anywhere(self, right: Right) -> None:
        """403 that names the right, unless it is held on some region at least."""
        if not self.access.may_anywhere(right):
            raise exceptions.PermissionDenied(f"This needs the right '{right}' (role {ROLE_FOR[right]}) on some region.")

    def refuse_parameters(self) -> None:
        """400 that names whatever stands in the query, for a view that takes nothing there."""
        if self.request.query_params:
            raise exceptions.ValidationError(dict.fromkeys(self.request.query_params, "Unknown parameter."))

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        done = super().finalize_response(request, response, *args, **kwargs)
        for name, value in getattr(request, "rate_headers", {}).items():
            done[name] = value
        done.setdefault("Cache-Control", "private, no-store")
        done["X-Request-ID"] = request_id()
        return done


class ApiViewSet(ApiView, viewsets.GenericViewSet[Any]):
    """Lists and details of one kind, from a queryset of the caller's `Access`.

    `ordering_fields`: public name → model path or annotation, or several in turn (those of the page). `expandable`: name → serializer of what `expand=` adds.
    """

    ordering_fields: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"id": "pk"}
    default_ordering: ClassVar[str] = "id"
    expandable: ClassVar[Mapping[str, Any]] = {}

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        queryset = self.filter_queryset(self.get_queryset())
        page = self.paginate_queryset(queryset)
        return self.get_paginated_response(self.represent(page or [], many=True))

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        instance = self.get_object()
        etag = self.etag(instance)
        if not self._words("expand") and not self._words("fields") and etag in _tags(request.headers.get("If-None-Match", "")):
            return Response(status=304, headers={"ETag": etag})
        return Response(self.represent(instance), headers={"ETag": etag})

    def get_object(self) -> Any:
        self.request_check()
        field = self.lookup_field
        try:
            return self.get_queryset().get(**{field: self.kwargs[self.lookup_url_kwarg or field]})
        except (models.ObjectDoesNotExist, ValueError, OverflowError, DjangoValidationError) as error:
            raise Http404 from error

    def request_check(self) -> None:
        unknown: Sequence[str] = sorted(set(self.request.query_params) - {"fields", "expand"} - set(getattr(self, "extra_parameters", ())))
        if unknown:
            raise exceptions.ValidationError(dict.fromkeys(unknown, "Unknown parameter."))

    def _words(self, name: str) -> Sequence[str]:
        return [word for word in self.request.query_params.get(name, "").split(",") if word]

    def represent(self, instance: Any, *, many: bool = False) -> Any:
        """Serialise, cut to `fields=`, with what `expand=` names."""
        expand, fields = self._words("expand"), self._words("fields")
        unknown: Sequence[str] = sorted(set(expand) - set(self.expandable))
        if unknown:
            raise exceptions.ValidationError({"expand": f"Unknown: {', '.join(unknown)}. Known: {', '.join(sorted(self.expandable)) or 'none'}."})
        serializer: Any = self.get_serializer(instance, many=many)
        child: Any = serializer.child if many else serializer
        for name in expand:
            child.fields[name] = self.expandable[name]()
        if fields:
            missing: Sequence[str] = sorted(set(fields) - set(child.fields))
            if missing:
                raise exceptions.ValidationError({"fields": f"Unknown: {', '.join(missing)}."})
            for name in set(child.fields) - set(fields):
                del child.fields[name]
        return serializer.data

    def etag(self, instance: Any) -> str:
        """Strong tag of the object's own fields, whatever the caller expands or leaves out."""
        return etag_of(self.get_serializer_class()(instance, context={"request": None, "view": self}).data)

    def locked_for_write(self) -> Any:
        """The object, locked, after If-Match was checked (428 without it, 412 when stale). Call inside a transaction."""
        instance = self.get_object()
        locked = type(instance)._default_manager.select_for_update().filter(pk=instance.pk).first()
        # Read again: whoever held the lock before us may have changed it, moved it out of the scope, or deleted it.
        check_if_match(self.request, self.etag(self.get_object()))
        return locked


class WritableViewSet(ApiViewSet):
    """Create, change and delete, each in one transaction. Subclasses check rights in `allow_write(instance or None, values)`.

    `create_right`: held nowhere, the caller hears so before its values are judged.
    """

    create_right: ClassVar[Right | None] = Right.IMPORT

    def allow_write(self, instance: Any, values: Mapping[str, Any]) -> None:
        raise NotImplementedError

    @transaction.atomic
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        if self.create_right is not None:
            self.require_anywhere(self.create_right)
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        self.allow_write(None, serializer.validated_data)
        instance = self.perform_create(serializer)
        return Response(self.get_serializer(instance).data, status=201, headers={"ETag": self.etag(instance)})

    @transaction.atomic
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._update(request, partial=True)

    @transaction.atomic
    def update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._update(request, partial=kwargs.get("partial", False))

    def _update(self, request: Request, *, partial: bool) -> Response:
        instance = self.locked_for_write()
        serializer = self.get_serializer(instance, data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        self.allow_write(instance, serializer.validated_data)
        instance = self.perform_update(serializer)
        return Response(self.get_serializer(instance).data, headers={"ETag": self.etag(instance)})

    @transaction.atomic
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        instance = self.locked_for_write()
        self.allow_write(instance, {})
        self.perform_destroy(instance)
        return Response(status=204)

    def perform_create(self, serializer: serializers.BaseSerializer[Any]) -> Any:
        return serializer.save()

    def perform_update(self, serializer: serializers.BaseSerializer[Any]) -> Any:
        return serializer.save()

    def perform_destroy(self, instance: Any) -> None:
        instance.delete()


def etag_of(data: Any) -> str:
    """Strong tag of what an answer shows."""
    digest = hashlib.sha256(json.dumps(data, sort_keys=True, cls=DjangoJSONEncoder).encode()).hexdigest()
    return f'"{digest[:32]}"'


def check_if_match(request: Request, etag: str) -> None:
    """428 without If-Match, 412 when it names another version than `etag`."""
    given = request.headers.get("If-Match", "")
    if not given:
        raise PreconditionRequired
    if given.strip() != "*" and etag not in _tags(given):
        raise PreconditionFailed


def _tags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
