"""Strict JSON: every field is checked, a bad one is a `ProtocolError` that names it, an unknown one is refused."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

MAX_MESSAGE_BYTES = 1 << 20
MAX_INTEGER = (1 << 63) - 1
# Control characters never belong in a name or a sentence; PostgreSQL refuses NUL, and lone surrogates are not text.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNPRINTABLE_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def printable(text: str, longest: int = 300) -> str:
    """`text` as every reader here takes it: what cannot be printed is a blank, the rest is cut off. For words of others, such as errors."""
    return _UNPRINTABLE.sub(" ", text)[:longest]


class ProtocolError(Exception):
    """A message cannot be accepted. `field` is the path of the bad field ("" for the whole message)."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


def _refuse_constant(text: str) -> NoReturn:
    raise ProtocolError("", f"{text} is not JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ProtocolError(next(name for name in names if names.count(name) > 1)[:80], "appears twice")
    return found


def load_object(data: bytes | str, *, limit: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """Parse one JSON object of at most `limit` bytes. NaN, Infinity, duplicate names, and anything but an object are refused."""
    size = len(data) if isinstance(data, bytes) else len(data.encode(errors="surrogatepass"))
    if size > limit:
        raise ProtocolError("", f"the message has {size} bytes, more than {limit}")
    try:
        found = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("", "the message is not JSON") from error
    if not isinstance(found, dict):
        raise ProtocolError("", "the message is not a JSON object")
    return found


def dump_canonical(value: Any) -> bytes:
    """The one byte string for a JSON value: sorted names, no blanks, ASCII. NaN and infinity raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


class Reader:
    """Takes the fields of one object one by one; `done()` refuses what nobody took."""

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, dict):
            raise ProtocolError(path, "is not an object")
        self._values: dict[str, Any] = dict(values)
        self._path = path

    def at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _take(self, name: str) -> Any:
        if name not in self._values:
            raise ProtocolError(self.at(name), "is missing")
        return self._values.pop(name)

    def optional(self, name: str, take: Callable[[str], T]) -> T | None:
        """`take(name)`, or None where the field is absent or null."""
        if self._values.get(name) is None:
            self._values.pop(name, None)
            return None
        return take(name)

    def text(self, name: str, *, longest: int = 200, empty: bool = False) -> str:
        value = self._take(name)
        if not isinstance(value, str):
            raise ProtocolError(self.at(name), "is not text")
        if len(value) > longest:
            raise ProtocolError(self.at(name), f"is longer than {longest} characters")
        if not value and not empty:
            raise ProtocolError(self.at(name), "is empty")
        if _UNPRINTABLE.search(value):
            raise ProtocolError(self.at(name), "has characters that cannot be printed")
        return value

    def lines(self, name: str, *, most_bytes: int) -> str:
        """Text of several lines, maybe empty; its size is that of its UTF-8."""
        value = self._take(name)
        if not isinstance(value, str):
            raise ProtocolError(self.at(name), "is not text")
        if _UNPRINTABLE_IN_LINES.search(value):
            raise ProtocolError(self.at(name), "has characters that cannot be printed")
        if len(value.encode()) > most_bytes:
            raise ProtocolError(self.at(name), f"has more than {most_bytes} bytes")
        return value

    def integer(self, name: str, *, low: int = 0, high: int = MAX_INTEGER) -> int:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ProtocolError(self.at(name), "is not a whole number")
        if not low <= value <= high:
            raise ProtocolError(self.at(name), f"{value if abs(value) < 1 << 64 else 'the number'} is not within {low}..{high}")
        return value

    def number(self, name: str, *, low: float = -1e18, high: float = 1e18) -> float:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ProtocolError(self.at(name), "is not a number")
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ProtocolError(self.at(name), "is too large")
        if not math.isfinite(value) or not low <= value <= high:
            raise ProtocolError(self.at(name), f"is not a number within {low:g}..{high:g}")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise ProtocolError(self.at(name), "is not true or false")
        return value

    def choice(self, name: str, kind: type[E]) -> E:
        value = self._take(name)
        try:
            if not isinstance(value, str):
                raise ValueError
            return kind(value)
        except ValueError:
            raise ProtocolError(self.at(name), f"is none of {', '.join(kind)}") from None

    def binary(self, name: str, *, shortest: int = 0, longest: int) -> bytes:
        text = self.text(name, longest=longest * 2 + 8, empty=shortest == 0)
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError(self.at(name), "is not base64") from None
        if not shortest <= len(value) <= longest:
            raise ProtocolError(self.at(name), f"has {len(value)} bytes; expected {shortest}..{longest}")
        return value

    def items(self, name: str, parse: Callable[[Reader], T], *, most: int) -> tuple[T, ...]:
        """A list of objects, each read by `parse`."""
        value = self._take(name)
        if not isinstance(value, list):
            raise ProtocolError(self.at(name), "is not a list")
        if len(value) > most:
            raise ProtocolError(self.at(name), f"has more than {most} entries")
        return tuple(parse(Reader(item, f"{self.at(name)}[{number}]")) for number, item in enumerate(value))

    def texts(self, name: str, *, most: int, longest: int = 80) -> tuple[str, ...]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > most:
            raise ProtocolError(self.at(name), f"is not a list of at most {most} texts")
        return tuple(Reader({str(number): item}, self.at(name)).text(str(number), longest=longest) for number, item in enumerate(value))

    def child(self, name: str) -> Reader:
        return Reader(self._take(name), self.at(name))

    def scalars(self, name: str, *, most: int = 40) -> dict[str, int | float | str | bool | None]:
        """A flat object of numbers, texts, booleans and nulls."""
        reader = self.child(name)
        names = list(reader._values)
        if len(names) > most:
            raise ProtocolError(self.at(name), f"has more than {most} fields")
        found: dict[str, int | float | str | bool | None] = {}
        for key in names:
            Reader({"name": key}, self.at(name)).text("name", longest=60)
            value = reader._values[key]
            if value is None or isinstance(value, bool):
                found[key] = value
            elif isinstance(value, str):
                found[key] = reader.text(key, longest=300, empty=True)
            elif isinstance(value, int):
                found[key] = reader.integer(key, low=-MAX_INTEGER)
            elif isinstance(value, float):
                found[key] = reader.number(key)
            else:
                raise ProtocolError(reader.at(key), "is not a number, a text or a boolean")
        return found

    def nested(self, name: str, *, limit: int) -> dict[str, Any]:
        """A free object, bounded by the size of its canonical JSON; every text in it is checked, every number finite."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise ProtocolError(self.at(name), "is not an object")
        try:
            self._check_free(value, name, 0)
            size = len(dump_canonical(value))
        except ValueError as error:
            raise ProtocolError(self.at(name), "has a number that is not finite") from error
        if size > limit:
            raise ProtocolError(self.at(name), f"has {size} bytes, more than {limit}")
        return value

    def _check_free(self, value: Any, name: str, depth: int) -> None:
        if depth > 6:
            raise ProtocolError(self.at(name), "is nested too deep")
        if isinstance(value, str) and _UNPRINTABLE.search(value):
            raise ProtocolError(self.at(name), "has characters that cannot be printed")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_INTEGER:
            raise ProtocolError(self.at(name), "has a number that is too large")
        if isinstance(value, dict):
            for key, item in value.items():
                self._check_free(key, name, depth + 1)
                self._check_free(item, name, depth + 1)
        elif isinstance(value, list):
            for item in value:
                self._check_free(item, name, depth + 1)

    def done(self) -> None:
        if self._values:
            raise ProtocolError(self.at(next(iter(self._values)))[:120], "is not a field of this message")
