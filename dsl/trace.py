"""The calls of one flow function, recorded while it runs: the nodes and edges of the graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowctl.dsl.errors import DeclarationError, ValueRefused
from flowctl.dsl.jsonvalue import JSON, encode, join
from flowctl.dsl.names import check_step_name
from flowctl.dsl.output import Output
from flowctl.dsl.place import at, caller_place
from flowctl.dsl.plan import EXPERIMENT

if TYPE_CHECKING:
    from flowctl.dsl.leaf import Leaf

_MAX_DEPTH = 64


@dataclass(frozen=True)
class Call:
    """One call of a leaf: its step name, its inputs as JSON with edges in them, and the steps it needs."""

    name: str
    leaf: Leaf
    inputs: tuple[JSON, ...] = ()
    keyword_inputs: Mapping[str, JSON] | None = None
    after: tuple[str, ...] = ()


class Trace:
    """The calls in the order in which they were made; names are given at the call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._places: dict[str, str | None] = {}

    def record(self, leaf: Leaf, args: tuple[Any, ...], keywords: dict[str, Any]) -> Output:
        """Add a call. Raises `DeclarationError` at the caller's line for wrong arguments."""
        place = caller_place()
        check_arguments(leaf, args, keywords, place=place)
        name = self._name(leaf, place)
        edges: set[str] = set()
        inputs = tuple(
            self._input(value, at(place, f"{name}(argument {i + 1})"), edges) for i, value in enumerate(args)
        )
        named = {key: self._input(value, at(place, f"{name}({key}=)"), edges) for key, value in keywords.items()}
        self.calls.append(Call(name, leaf, inputs, named, tuple(sorted(edges))))
        self._places[name] = place
        return Output(self, name, leaf.kind)

    def _name(self, leaf: Leaf, place: str | None) -> str:
        if leaf.name is not None:
            if leaf.name in self._places:
                what = f"two steps are named {leaf.name!r}, the other at {self._places[leaf.name]}"
                raise DeclarationError(what, place=place, cure="give one of them another .options(name=…)")
            return leaf.name
        base = check_step_name(leaf.step_name, place=leaf.place)
        name, number = base, 1
        while name in self._places:
            number += 1
            name = f"{base[: 59 - len(str(number))]}-{number}"
        return name

    def _input(self, value: Any, place: str, edges: set[str], depth: int = 0) -> JSON:
        if isinstance(value, Output):
            return self._edge(value, place, edges)
        if depth > _MAX_DEPTH:
            raise DeclarationError("is nested too deep", place=place, cure="does it hold itself?")
        if type(value) in (list, tuple):
            return [self._input(inner, f"{place}[{i}]", edges, depth + 1) for i, inner in enumerate(value)]
        try:
            if isinstance(value, Mapping):
                encode(dict.fromkeys(value), place)
                return {key: self._input(inner, join(place, key), edges, depth + 1) for key, inner in value.items()}
            return encode(value, place)
        except ValueRefused as error:
            raise DeclarationError(error.what, place=error.place, cure=error.cure) from None

    def _edge(self, value: Output, place: str, edges: set[str]) -> JSON:
        if value._trace is not self:
            cure = "call that step in this flow"
            raise DeclarationError(f"{value!r} belongs to another flow", place=place, cure=cure)
        if value._kind == EXPERIMENT and not value._path:
            raise DeclarationError(f"{value!r} is an experiment's", place=place, cure="pass its .best or its .results")
        edges.add(value._step)
        return {"$output": value._step, "path": list(value._path)}


def check_arguments(leaf: Leaf, args: tuple[Any, ...], keywords: Mapping[str, Any], *, place: str | None) -> None:
    """Raises `DeclarationError` if the leaf's function cannot be called so; an experiment's gets its config first."""
    first = (object(),) if leaf.kind == EXPERIMENT else ()
    try:
        inspect.signature(leaf.function).bind(*first, *args, **keywords)
    except TypeError as error:
        after_config = " after the configuration" if leaf.kind == EXPERIMENT else ""
        what = f"{leaf.step_name} cannot be called so: {error}"
        cure = f"its arguments{after_config} are {_parameters(leaf) or 'none'}"
        raise DeclarationError(what, place=place, cure=cure) from None


def _parameters(leaf: Leaf) -> str:
    names = list(inspect.signature(leaf.function).parameters)
    return ", ".join(names[1:] if leaf.kind == EXPERIMENT else names)


_current: ContextVar[Trace | None] = ContextVar("flowctl_trace", default=None)


def current() -> Trace | None:
    """The trace of the flow that is being compiled, if one is."""
    return _current.get()


@contextmanager
def tracing() -> Iterator[Trace]:
    """Within the block, calls of leaves are recorded instead of made."""
    trace = Trace()
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)
