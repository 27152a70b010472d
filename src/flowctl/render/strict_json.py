"""JSON for people's tools: one strict object per command, one per line in follow modes.

JSON has no NaN and no infinities: they are written as the strings "NaN", "Infinity" and "-Infinity" (docs/cli.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

FORMAT = 1


def document(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A body with the two keys that every document starts with."""
    return {"format": FORMAT, "kind": kind, **body}


def dumps(kind: str, body: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """One document as text. `indent=None` writes it on one line, for follow modes."""
    return json.dumps(plain(document(kind, body)), ensure_ascii=False, allow_nan=False, indent=indent)


def plain(value: Any) -> Any:
    """The same value with special floats as strings and every container as a list or a dictionary."""
    if isinstance(value, float):
        return value if math.isfinite(value) else special(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def special(value: float) -> str:
    """The name of a float that JSON cannot hold."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
