"""The culprit: what in a function cannot be pickled, found by trying its parts one by one.

The search is bounded in depth and number of trials; without a finding, the pickler's own words are all there is.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_DEPTH = 8
_TRIALS = 400
_ITEMS = 200


@dataclass(frozen=True)
class Culprit:
    """Where it is, outermost first (`("global 'model'", "attribute 'lock'")`), and the name of its type."""

    trail: tuple[str, ...]
    kind: str

    def __str__(self) -> str:
        return f"{', '.join(self.trail)} ({self.kind})" if self.trail else f"an object of type {self.kind}"


@dataclass
class _Search:
    can_pickle: Callable[[Any], bool]
    left: int = _TRIALS
    seen: set[int] = field(default_factory=set)

    def find(self, value: Any, trail: tuple[str, ...]) -> Culprit:
        """The deepest part of `value`, which cannot be pickled, that cannot be either."""
        self.seen.add(id(value))
        if len(trail) < _DEPTH:
            for label, part in _parts(value):
                if id(part) in self.seen or self.left <= 0:
                    continue
                self.left -= 1
                if not self.can_pickle(part):
                    return self.find(part, (*trail, label))
        return Culprit(trail, _kind(value))


def find(value: Any, can_pickle: Callable[[Any], bool]) -> Culprit:
    """The culprit in `value`, which `can_pickle` says cannot be pickled."""
    return _Search(can_pickle).find(value, ())


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield "its object", value.__self__
        yield "its function", value.__func__
    elif isinstance(value, dict):
        for key, inner in list(value.items())[:_ITEMS]:
            yield f"item {_short(key)}", inner
            yield f"key {_short(key)}", key
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value[:_ITEMS]):
            yield f"item {place}", inner
    elif isinstance(value, (set, frozenset)):
        for inner in list(value)[:_ITEMS]:
            yield f"item {_short(inner)}", inner
    elif isinstance(value, type):
        for name, inner in list(vars(value).items()):
            if name not in ("__dict__", "__weakref__"):
                plain = inner.__func__ if isinstance(inner, (staticmethod, classmethod)) else inner
                yield f"attribute {name!r} of the class", plain
    else:
        yield from _parts_of_object(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"closure variable {name!r}", cell.cell_contents
        except ValueError:  # an empty cell
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for name, inner in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True):
        yield f"default of argument {name!r}", inner
    for name, inner in (function.__kwdefaults__ or {}).items():
        yield f"default of argument {name!r}", inner
    for name, inner in vars(function).items():
        yield f"attribute {name!r}", inner
    for name, inner in function.__annotations__.items():
        yield f"annotation of {name!r}", inner


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        for name, inner in list(attributes.items())[:_ITEMS]:
            yield f"attribute {name!r}", inner
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield f"attribute {name!r}", getattr(value, name)
    yield "its class", type(value)


def _global_names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return list(dict.fromkeys(names))


def _kind(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"the class {name}" if isinstance(value, type) else name


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bytes, bool, type(None))) else type(value).__qualname__
    return text if len(text) <= 40 else f"{text[:37]}…"
