"""Segments: the rows that a trial reported, as files of one JSON line each.

A row is a dictionary with the keys `epoch`, `nonce`, `seq`, `training_iteration`, `attempt`, `time_total_s`,
`timestamp`, `metrics`. On storage, `epoch` and `nonce` stand in the file's name and not in the lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from flowctl.dsl.errors import ValueRefused
from flowctl.dsl.jsonvalue import decode
from flowctl.storage.records import strict
from flowctl.storage.trial_files import Fence

Row: TypeAlias = dict[str, Any]
"""One report; metrics hold special floats as floats."""


@dataclass(frozen=True)
class Segment:
    """A file of rows: its name in the trial's folder, bytes, `sha256:…`, its first `seq` and how many rows."""

    path: str
    size: int
    digest: str
    first: int
    count: int

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size": self.size,
            "digest": self.digest,
            "first": self.first,
            "count": self.count,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Segment:
        return cls(value["path"], value["size"], value["digest"], value["first"], value["count"])


def digest_of(data: bytes) -> str:
    """`sha256:` and the hex digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The lines of a segment. Raises `ValueRefused` for what JSON cannot hold."""
    lines = []
    for row in rows:
        bare = strict({key: value for key, value in row.items() if key not in ("epoch", "nonce")}, "row")
        lines.append(json.dumps(bare, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return "".join(f"{one}\n" for one in lines).encode("utf-8", "backslashreplace")


def decode_rows(data: bytes, fence: Fence) -> tuple[list[Row], int]:
    """The rows of a segment, and how many lines could not be read."""
    rows: list[Row] = []
    bad = 0
    for text in data.split(b"\n"):
        if not text.strip():
            continue
        row = _row_of(text, fence)
        if row is None:
            bad += 1
        else:
            rows.append(row)
    return rows, bad


def clean_row(value: Mapping[str, Any], fence: Fence) -> Row | None:
    """The row that `value` holds, with its fence, or None if it is none."""
    if not isinstance(value.get("metrics"), Mapping):
        return None
    for key in ("seq", "training_iteration"):
        if not isinstance(value.get(key), int):
            return None
    try:
        return {**decode(dict(value)), "epoch": fence.epoch, "nonce": fence.nonce}
    except ValueRefused:
        return None


def _row_of(text: bytes, fence: Fence) -> Row | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return clean_row(value, fence) if isinstance(value, dict) else None
