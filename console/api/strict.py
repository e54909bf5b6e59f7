"""Strict JSON in: NaN, infinities and numbers that overflow are refused by name, wherever they stand (case C38)."""

import json
import math
import re
from typing import Any

from django.db import models
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, ParseError, ValidationError
from rest_framework.parsers import JSONParser

MAX_DEPTH = 40
MAX_BYTES = 4 * 1024 * 1024
# Half of a surrogate pair is no text: it can be neither stored nor sent back.
_SURROGATE = re.compile("[\ud800-\udfff]")


class TooLarge(APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body is larger than what is read here."
    default_code = "too_large"


class StrictJSONParser(JSONParser):
    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise TooLarge(f"At most {MAX_BYTES:,} bytes of JSON are read.")
        try:
            body = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON: {error}") from error
        refuse_unusable(body)
        return body


def refuse_unusable(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise a ValidationError that names the field of a number that is not finite, of a NUL character, or of nesting deeper than `MAX_DEPTH`."""
    name = ".".join(path) or "non_field_errors"
    if len(path) > MAX_DEPTH:
        raise ValidationError({path[0]: f"Nested deeper than {MAX_DEPTH}."})
    if isinstance(value, float) and not math.isfinite(value):
        raise ValidationError({name: "Not a finite number."})
    if isinstance(value, str) and "\x00" in value:
        raise ValidationError({name: "Holds a NUL character."})
    if isinstance(value, str) and _SURROGATE.search(value):
        raise ValidationError({name: "Holds half of a surrogate pair."})
    if isinstance(value, dict):
        for key, inner in value.items():
            refuse_unusable(key, path)
            refuse_unusable(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            refuse_unusable(inner, (*path, str(index)))


class FiniteFloatField(serializers.FloatField):
    """DRF's own takes "nan", "inf" and "1e400", and writes them. Out of the database such a number is no value: null."""

    default_error_messages = {"not_finite": "Not a finite number."}

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("not_finite")
        return value

    def to_representation(self, value: Any) -> Any:
        return value if math.isfinite(float(value)) else None


class ReadOnlySerializer(serializers.ModelSerializer[Any]):
    """Rows shown as strict JSON."""

    serializer_field_mapping = {**serializers.ModelSerializer.serializer_field_mapping, models.FloatField: FiniteFloatField}


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that refuses fields it does not know."""

    def to_internal_value(self, data: Any) -> Any:
        refuse_unknown_fields(self, data)
        return super().to_internal_value(data)


class ReasonSerializer(StrictSerializer):
    """The body of an act that needs nothing but its reason."""

    reason = serializers.CharField(max_length=300)


class StrictModelSerializer(serializers.ModelSerializer[Any]):
    serializer_field_mapping = {**serializers.ModelSerializer.serializer_field_mapping, models.FloatField: FiniteFloatField}

    def to_internal_value(self, data: Any) -> Any:
        refuse_unknown_fields(self, data)
        return super().to_internal_value(data)


def refuse_unknown_fields(serializer: Any, data: Any) -> None:
    if not isinstance(data, dict):
        return
    writable = {name for name, field in serializer.fields.items() if not field.read_only}
    unknown = sorted(set(data) - writable)
    if unknown:
        known = ", ".join(sorted(writable))
        reason = "Read-only." if set(unknown) <= set(serializer.fields) else f"Unknown field. Known: {known}."
        raise ValidationError({name: "Read-only." if name in serializer.fields else reason for name in unknown})
