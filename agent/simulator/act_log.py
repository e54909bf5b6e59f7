"""The act log: one JSON object a line, only ever appended. It judges what reached the hardware, and it is what the hardware remembers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class ActLogError(Exception):
    """The file is not an act log; the text names the line."""


class ActLog:
    """Appends are one `write` each, so a line is there whole or, after a crash, is the torn last one, which the next start cuts off."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.records: list[dict[str, Any]] = _read_and_repair(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, kind: str, at: float, **fields: Any) -> dict[str, Any]:
        """Writes a record `{"seq", "kind", "at", …}` before its effect is answered. Returns it."""
        record = {"seq": len(self.records) + 1, "kind": kind, "at": round(at, 3), **fields}
        os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self.records.append(record)
        return record

    def since(self, seq: int, *, node: str = "", kind: str = "", limit: int = 10_000) -> list[dict[str, Any]]:
        """Records after number `seq`, of one node or kind if given, oldest first."""
        found = (record for record in self.records[seq:] if (not node or record.get("node") == node) and (not kind or record["kind"] == kind))
        return [record for record, _ in zip(found, range(limit), strict=False)]

    def close(self) -> None:
        os.close(self._file)


def _read_and_repair(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    records = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = json.loads(line)
            if record["seq"] != number:
                raise ValueError(f"number {record['seq']}")
        except (ValueError, KeyError, TypeError) as error:
            raise ActLogError(f"{path}: line {number} is not record {number} of an act log ({error})") from error
        records.append(record)
    return records
