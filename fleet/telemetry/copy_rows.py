"""Numpy columns to PostgreSQL's binary COPY. Pure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
_EPOCH_SECONDS = 946_684_800  # 2000-01-01, where PostgreSQL's timestamps begin
_FORMATS = {"i": (">i4", 4), "q": (">i8", 8), "t": (">i8", 8), "d": (">f8", 8)}


def copy_rows(columns: Sequence[tuple[str, NDArray[np.generic]]]) -> bytes:
    """Rows of equally long columns [n], as the body of COPY … (FORMAT BINARY).

    Each column is (kind, values): "i" integer, "q" bigint, "d" double precision, "t" timestamptz from Unix seconds. Nothing is null: NaN stays NaN.
    """
    count = len(columns[0][1])
    layout: list[tuple[str, str]] = [("fields", ">i2")]
    for index, (kind, _) in enumerate(columns):
        layout += [(f"length{index}", ">i4"), (f"value{index}", _FORMATS[kind][0])]
    rows = np.empty(count, dtype=np.dtype(layout))
    rows["fields"] = len(columns)
    for index, (kind, values) in enumerate(columns):
        rows[f"length{index}"] = _FORMATS[kind][1]
        rows[f"value{index}"] = np.round((values.astype(np.float64) - _EPOCH_SECONDS) * 1e6).astype(np.int64) if kind == "t" else values
    return _HEADER + rows.tobytes() + _TRAILER
