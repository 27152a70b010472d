"""When a trial has done enough: `{"epoch": 50}`, a function of the result, or a list of both; the first that holds.

A limit holds as soon as the value is at least it. A nested metric is named `"eval/accuracy"`. A metric that a row does
not hold, and NaN, stop nothing. Limits are part of the plan; functions travel in the payload and are called in the
trial process.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.place import at

StopFunction = Callable[[Any], Any]


@dataclass(frozen=True)
class Stop:
    """The checked conditions; of two limits for one metric the lower stands."""

    limits: Mapping[str, float] = field(default_factory=dict)
    functions: tuple[StopFunction, ...] = ()


def parse_stop(value: object, *, place: str | None = None) -> Stop:
    """The checked conditions. Raises `DeclarationError`."""
    place = at(place, "stop")
    if value is None:
        return Stop()
    entries = list(value) if isinstance(value, (list, tuple)) else [value]
    limits: dict[str, float] = {}
    functions: list[StopFunction] = []
    for entry in entries:
        if isinstance(entry, Mapping):
            for name, limit in _limits(entry, place, ""):
                limits[name] = min(limit, limits.get(name, limit))
        elif callable(entry):
            functions.append(_function(entry, place))
        else:
            what = f"holds {entry!r} ({kind_of(entry)}), not a dictionary or a function of the result"
            raise DeclarationError(what, place=place, cure='use {"epoch": 50}')
    return Stop(dict(sorted(limits.items())), tuple(functions))


def first_stop(stop: Mapping[str, float] | None, row: Mapping[str, Any]) -> str | None:
    """The name of the first limit (by name) that holds for a row of metrics, else None.

    `row` is what the trial's `report` shows: metrics and automatic keys side by side.
    """
    for name in sorted(stop or {}):
        value = lookup(row, name)
        if isinstance(value, (int, float)) and value >= (stop or {})[name]:
            return name
    return None


def lookup(row: Mapping[str, Any], name: str) -> Any:
    """The metric of that name, `a/b` also as `b` inside `a`; None if there is none."""
    if name in row:
        return row[name]
    head, slash, rest = name.partition("/")
    while slash:
        inner = row.get(head)
        if isinstance(inner, Mapping):
            found = lookup(inner, rest)
            if found is not None:
                return found
        more, slash, rest = rest.partition("/")
        head = f"{head}/{more}"
    return None


def _limits(value: Mapping[Any, Any], place: str, prefix: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, limit in value.items():
        if not isinstance(key, str) or not key:
            raise DeclarationError(f"the key {key!r} is not the name of a metric", place=place)
        name = f"{prefix}{key}"
        if isinstance(limit, Mapping):
            found += _limits(limit, place, f"{name}/")
        elif not isinstance(limit, (int, float)):
            raise DeclarationError(f"is {limit!r} ({kind_of(limit)}), not a number", place=f"{place}.{name}")
        elif not math.isfinite(limit):
            raise DeclarationError(f"is {limit!r}, which nothing reaches", place=f"{place}.{name}")
        else:
            found.append((name, int(limit) if isinstance(limit, int) else float(limit)))
    return found


def _function(function: StopFunction, place: str) -> StopFunction:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        what = f"the function {name} must take one argument, the result"
        raise DeclarationError(what, place=place, cure="write def stop(result): …") from None
    except ValueError:  # some builtins tell no signature
        pass
    return function
