"""Plain tables, metrics and configurations as short text; no colours and no control codes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a head, in columns two spaces apart; the last column is not padded."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    )


def number(value: Any) -> str:
    """A value of a metric or a configuration: floats at five significant digits, large ones without a fraction."""
    if isinstance(value, float):
        return f"{value:.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.5g}"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list | tuple) else str(value)


def pairs(values: Mapping[str, Any], *, limit: int = 6, width: int = 32) -> str:
    """`lr=0.01 batch_size=32`, at most `limit` of them, long values cut."""
    flat = flatten(values)
    shown = [f"{key}={cut(number(value), width)}" for key, value in list(flat.items())[:limit]]
    return " ".join(shown) + (f" (+{len(flat) - limit})" if len(flat) > limit else "")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one level, keys joined by `/`: the same names that `stop` and `metric` use."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def cut(text: str, width: int) -> str:
    """The text in one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
