"""Typed readers for settings that come from the environment (12-factor).

Every reader takes the variable's full name and raises `ImproperlyConfigured` naming that variable when its text cannot be read.
"""

import json
import os
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def env_str(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def env_secret(name: str) -> str:
    """The variable, or the text of the file that `<name>_FILE` points at (container secrets). Empty when neither is set."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
    return os.environ.get(name, "")


def env_bool(name: str, default: bool) -> bool:
    text = os.environ.get(name)
    if text is None:
        return default
    if text.strip().lower() in _TRUE:
        return True
    if text.strip().lower() in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name}: {text!r} is neither true nor false")


def env_int(name: str, default: int, *, minimum: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {text!r} is not a whole number") from error
    if minimum is not None and value < minimum:
        raise ImproperlyConfigured(f"{name}: {value} is less than {minimum}")
    return value


def env_float(name: str, default: float) -> float:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return default
    try:
        return float(text)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {text!r} is not a number") from error


def env_list(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in os.environ.get(name, default).split(",") if part.strip()]


def env_object(name: str) -> dict[str, Any]:
    """A JSON object; {} when the variable is not set."""
    text = env_str(name).strip()
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ImproperlyConfigured(f"{name}: not a JSON object")
    return found
