"""The search space: what a person writes in `param_space` for a value that differs between trials.

| name | gives |
|---|---|
| `grid(values)` | every entry, crossed with every other grid |
| `choice(values)` | one entry; distributions inside the chosen entry are drawn further |
| `uniform(lower, upper)` | a float, lower included, upper excluded |
| `loguniform(lower, upper)` | the same, uniform in the logarithm; lower > 0 |
| `quniform(lower, upper, q)` | a multiple of q, both ends included |
| `qloguniform(lower, upper, q)` | the same, nearly uniform in the logarithm |
| `randint(lower, upper)` | an integer, lower included, upper excluded |
| `lograndint(lower, upper)` | the same, uniform in the logarithm; lower ≥ 1 |
| `qrandint(lower, upper, q=1)` | an integer multiple of q, both ends included, also for q = 1 |
| `qlograndint(lower, upper, q=1)` | the same, nearly uniform in the logarithm |
| `randn(mean=0, sd=1)` | a normal float, not bounded |
| `qrandn(mean, sd, q)` | a normal float, rounded to the nearest multiple of q |

Edges of the quantised ones have their full weight, not half of it: every multiple of `quniform` and `qrandint` is
equally likely, and the logarithmic ones draw from half a step below `lower` to half a step above `upper` before they
round. Bounds of quantised ones are multiples of q. All bounds are checked here, at the line that declares them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.place import at, caller_place

_MAX_STEPS = 2**53


@dataclass(frozen=True)
class Domain:
    """A distribution: its name and its numbers, in the order of the constructor's arguments."""

    kind: str
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """One of these entries, each equally likely."""

    entries: tuple[Any, ...]


@dataclass(frozen=True)
class Grid:
    """Every one of these entries."""

    entries: tuple[Any, ...]


def grid(values: Iterable[Any]) -> Grid:
    """Every entry of `values`, in their order; grids stand at any depth, also inside a grid's entries."""
    return Grid(_entries(values, "grid"))


def choice(values: Iterable[Any]) -> Choice:
    """One entry of `values`; a distribution inside the chosen entry is drawn further."""
    return Choice(_entries(values, "choice"))


def uniform(lower: float, upper: float) -> Domain:
    """A float in [lower, upper)."""
    return _bounded("uniform", lower, upper)


def loguniform(lower: float, upper: float) -> Domain:
    """A float in [lower, upper) whose logarithm is uniform; lower > 0."""
    return _bounded("loguniform", lower, upper, is_log=True)


def quniform(lower: float, upper: float, q: float) -> Domain:
    """A multiple of q in [lower, upper], each equally likely; the bounds are multiples of q."""
    return _bounded("quniform", lower, upper, q)


def qloguniform(lower: float, upper: float, q: float) -> Domain:
    """A multiple of q in [lower, upper], nearly uniform in the logarithm; lower > 0; the bounds are multiples of q."""
    return _bounded("qloguniform", lower, upper, q, is_log=True)


def randint(lower: int, upper: int) -> Domain:
    """An integer in [lower, upper)."""
    return _bounded("randint", lower, upper, is_whole=True)


def lograndint(lower: int, upper: int) -> Domain:
    """An integer in [lower, upper) whose logarithm is uniform before it is rounded down; lower ≥ 1."""
    return _bounded("lograndint", lower, upper, is_whole=True, is_log=True)


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """An integer multiple of q in [lower, upper], upper included also for q = 1; the bounds are multiples of q."""
    return _bounded("qrandint", lower, upper, q, is_whole=True)


def qlograndint(lower: int, upper: int, q: int = 1) -> Domain:
    """An integer multiple of q in [lower, upper], nearly uniform in the logarithm; lower ≥ 1."""
    return _bounded("qlograndint", lower, upper, q, is_whole=True, is_log=True)


def randn(mean: float = 0, sd: float = 1) -> Domain:
    """A normal float; sd > 0. Not bounded."""
    return _normal("randn", mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """A normal float rounded to the nearest multiple of q; sd > 0. Not bounded."""
    return _normal("qrandn", mean, sd, q)


def _entries(values: Iterable[Any], kind: str) -> tuple[Any, ...]:
    place = at(caller_place(), kind)
    if isinstance(values, (set, frozenset)):
        raise DeclarationError("a set has no order", place=place, cure="use a list")
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise DeclarationError(f"needs a list of values, not {kind_of(values)}", place=place, cure=f"{kind}([1, 2])")
    entries = tuple(values)
    if not entries:
        raise DeclarationError("is empty, so there would be nothing to run", place=place, cure="give it a value")
    return entries


def _bounded(
    kind: str, lower: Any, upper: Any, q: Any = None, *, is_whole: bool = False, is_log: bool = False
) -> Domain:
    place = at(caller_place(), kind)
    low, high = _number(lower, "lower", place, is_whole), _number(upper, "upper", place, is_whole)
    if is_log and low <= 0:
        cure = "give the bound itself, not its logarithm" if low < 0 else "use a small positive bound"
        raise DeclarationError(f"lower is {low!r}, must be above 0", place=place, cure=cure)
    if low >= high:
        raise DeclarationError(f"the range is empty: lower {low!r}, upper {high!r}", place=place, cure="lower < upper")
    if not is_whole and not math.isfinite(high - low):
        raise DeclarationError("the range is too wide for a float", place=place)
    if q is None:
        return Domain(kind, (low, high))
    step = _step(q, place, is_whole)
    for name, bound in (("lower", low), ("upper", high)):
        if not is_multiple(bound, step):
            what = f"{name} is {bound!r}, not a multiple of q = {step!r}"
            raise DeclarationError(what, place=place, cure="choose bounds that the steps reach")
    if (high - low) / step > _MAX_STEPS:
        raise DeclarationError(f"q = {step!r} is too small for this range", place=place)
    return Domain(kind, (low, high, step))


def _normal(kind: str, mean: Any, sd: Any, q: Any = None) -> Domain:
    place = at(caller_place(), kind)
    middle, width = _number(mean, "mean", place, False), _number(sd, "sd", place, False)
    if width <= 0:
        raise DeclarationError(f"sd is {width!r}, must be above 0", place=place)
    return Domain(kind, (middle, width) if q is None else (middle, width, _step(q, place, False)))


def _number(value: Any, name: str, place: str, is_whole: bool) -> float:
    if not isinstance(value, bool) and hasattr(type(value), "__index__"):
        return int(value.__index__())
    if is_whole or isinstance(value, bool) or not isinstance(value, float):
        wanted = "a whole number" if is_whole else "a number"
        raise DeclarationError(f"{name} is {value!r} ({kind_of(value)}), not {wanted}", place=place)
    if not math.isfinite(value):
        raise DeclarationError(f"{name} is {value!r}, not a finite number", place=place)
    return float(value)


def _step(q: Any, place: str, is_whole: bool) -> float:
    step = _number(q, "q", place, is_whole)
    if step <= 0:
        raise DeclarationError(f"q is {step!r}, must be above 0", place=place)
    return step


@lru_cache(maxsize=1024, typed=True)
def as_written(value: float) -> Fraction:
    """The number that a person wrote: 0.1 is one tenth, not the nearest binary fraction."""
    return Fraction(repr(value))


def is_multiple(value: float, q: float) -> bool:
    """Whether `value` is a multiple of q, up to a rounding error of the last digits (`0.1 + 0.2` counts as 0.3)."""
    quotient = as_written(value) / as_written(q)
    tolerance = max(Fraction(1, 10**9), abs(quotient) / 10**15)
    return abs(quotient - round(quotient)) <= tolerance
