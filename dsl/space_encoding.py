"""The search space as JSON, in the order in which it was written.

A dictionary becomes `{"$dict": [[key, value], …]}` (canonical JSON sorts keys, and the order of grids is the order of
the text), a grid `{"$grid": [entries]}`, a choice `{"$choice": [entries]}`, a distribution `{"$uniform": [0, 1]}`, a
special float `{"$float": "nan"}`; everything else is itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flowctl.dsl.errors import DeclarationError, NotYetError, ValueRefused
from flowctl.dsl.jsonvalue import JSON, encode, join, kind_of
from flowctl.dsl.space import Choice, Domain, Grid

_MAX_DEPTH = 64


def encode_space(space: object, *, place: str) -> JSON:
    """The checked space. Raises `DeclarationError` and `NotYetError` with the path of what cannot be in it."""
    if not isinstance(space, Mapping):
        what = f"is {kind_of(space)}, not a dictionary"
        raise DeclarationError(what, place=place, cure='use {"lr": loguniform(1e-4, 1e-1)}')
    return _encode(space, place, 0, is_in_choice=False)


def _encode(value: Any, place: str, depth: int, *, is_in_choice: bool) -> JSON:
    if depth > _MAX_DEPTH:
        what = f"is nested deeper than {_MAX_DEPTH} levels"
        raise DeclarationError(what, place=place, cure="does it hold itself?")
    if isinstance(value, Domain):
        return {f"${value.kind}": list(value.numbers)}
    if isinstance(value, Grid):
        if is_in_choice:
            what = "a grid inside a choice is not yet supported"
            raise NotYetError(what, place=place, cure="use choice inside, or grid outside")
        return {"$grid": _list(value.entries, place, depth, is_in_choice)}
    if isinstance(value, Choice):
        return {"$choice": _list(value.entries, place, depth, True)}
    if isinstance(value, Mapping):
        pairs = [
            [_key(key, place), _encode(inner, join(place, key), depth + 1, is_in_choice=is_in_choice)]
            for key, inner in value.items()
        ]
        return {"$dict": pairs}
    if type(value) in (list, tuple):
        return _list(value, place, depth, is_in_choice)
    return _constant(value, place)


def _list(entries: Any, place: str, depth: int, is_in_choice: bool) -> list[JSON]:
    return [
        _encode(entry, f"{place}[{number}]", depth + 1, is_in_choice=is_in_choice)
        for number, entry in enumerate(entries)
    ]


def _key(key: object, place: str) -> str:
    try:
        return next(iter(encode({key: None}, place)))  # type: ignore[no-any-return]
    except ValueRefused as error:
        raise DeclarationError(error.what, place=error.place, cure=error.cure) from None


def _constant(value: object, place: str) -> JSON:
    if dataclasses.is_dataclass(value):
        raise NotYetError("a dataclass is not yet supported", place=place, cure="use a dict")
    if callable(value):
        raise NotYetError("a function is not yet supported", place=place, cure="use a distribution or a constant")
    try:
        encoded = encode(value, place)
    except ValueRefused as error:
        raise DeclarationError(error.what, place=error.place, cure=error.cure) from None
    return encoded
