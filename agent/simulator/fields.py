"""Strict reading of JSON objects: every error names the field by its path."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ConfigError(Exception):
    """The configuration is wrong; the text starts with the path of the field."""


class Fields:
    """Reads one JSON object field by field and remembers its path for errors; `finish` refuses what was not asked for."""

    def __init__(self, data: object, path: str) -> None:
        if not isinstance(data, dict):
            raise ConfigError(f"{path or 'the whole'}: expected an object, found {type(data).__name__}")
        self.data: dict[str, Any] = data
        self.path = path
        self.known: set[str] = set()

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def raw(self, key: str, default: Any = ...) -> Any:
        self.known.add(key)
        if key in self.data:
            return self.data[key]
        if default is ...:
            raise ConfigError(f"{self.name(key)}: missing")
        return default

    def text(self, key: str, default: Any = ..., *, choices: tuple[str, ...] | None = None, empty: bool = True) -> str:
        value = self.raw(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.name(key)}: expected text, found {value!r}")
        if choices and value not in choices:
            raise ConfigError(f"{self.name(key)}: {value!r} is none of {', '.join(choices)}")
        if not empty and not value:
            raise ConfigError(f"{self.name(key)}: must not be empty")
        return value

    def integer(self, key: str, default: Any = ..., *, low: int, high: int) -> int:
        value = self.raw(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ConfigError(f"{self.name(key)}: expected a whole number {low}..{high}, found {value!r}")
        return value

    def number(self, key: str, default: Any = ..., *, low: float, high: float) -> float:
        value = self.raw(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ConfigError(f"{self.name(key)}: expected a number {low:g}..{high:g}, found {value!r}")
        return float(value)

    def optional_number(self, key: str, *, low: float, high: float) -> float | None:
        return None if self.raw(key, None) is None else self.number(key, low=low, high=high)

    def many(self, key: str, read: Callable[[Any, str], T], default: Any = ...) -> tuple[T, ...]:
        value = self.raw(key, default)
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{self.name(key)}: expected a list, found {type(value).__name__}")
        return tuple(read(item, f"{self.name(key)}[{number}]") for number, item in enumerate(value))

    def finish(self) -> None:
        unknown = sorted(set(self.data) - self.known)
        if unknown:
            raise ConfigError(f"{self.name(unknown[0])}: unknown field")
