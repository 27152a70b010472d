"""A flow's parameters: read from text by their annotation, else by the type of their default."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Union

from flowctl.dsl.errors import DeclarationError, ValueRefused
from flowctl.dsl.jsonvalue import JSON, encode
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at, function_place

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", list: "a JSON list"}
_NAMES |= {dict: "a JSON object"}


def check_defaults(function: FunctionType, *, place: str | None) -> None:
    """Raises `DeclarationError` for a parameter that has no default, or one that is not a JSON value."""
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            raise DeclarationError(
                f"the parameter {each} has no name to set it by", place=place, cure="use name=default"
            )
        if each.default is each.empty:
            what = f"the parameter {each.name!r} has no default"
            raise DeclarationError(what, place=place, cure=f"write {each.name}=…; inputs are made by stages")
        _encode(each.default, at(place, f"parameter {each.name}"))


def read_parameters(function: FunctionType, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, JSON]]:
    """All parameters of a flow: as arguments for its function, and as JSON for the plan.

    A value that is text is read by the parameter's type. Raises `DeclarationError` for unknown names and bad values.
    """
    parameters = inspect.signature(function).parameters
    kinds = _kinds(function)
    for name in given:
        if name not in parameters:
            cure = did_you_mean(name, parameters, kind="parameters")
            what = f"the flow has no parameter {name!r}"
            raise DeclarationError(what, place=function_place(function), cure=cure)
    values = {name: each.default for name, each in parameters.items()}
    for name, value in given.items():
        place = f"-p {name}"
        values[name] = _read(value, kinds.get(name, Any), place) if isinstance(value, str) else value
    recorded = {name: _encode(value, f"parameter {name}") for name, value in values.items()}
    return values, recorded


def _kinds(function: FunctionType) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # an annotation that cannot be read here
        hints = {}
    parameters = inspect.signature(function).parameters
    return {name: hints.get(name, _kind_of_default(each.default)) for name, each in parameters.items()}


def _kind_of_default(default: Any) -> Any:
    return Any if default is None else type(default)


def _read(text: str, kind: Any, place: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        arms = typing.get_args(kind)
        if type(None) in arms and text.lower() in ("null", "none"):
            return None
        arms = tuple(arm for arm in arms if arm is not type(None))
        return _read(text, arms[0] if len(arms) == 1 else Any, place)
    kind = origin or kind
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise _wrong(text, kind, place)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise _wrong(text, kind, place) from None
    value = read_value(text)
    if kind in (tuple, list) and isinstance(value, list):
        return kind(value)
    if kind in (list, tuple, dict) and not isinstance(value, kind):
        raise _wrong(text, list if kind is tuple else kind, place)
    return value


def read_value(text: str) -> Any:
    """The JSON value that `text` holds, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _wrong(text: str, kind: type, place: str) -> DeclarationError:
    return DeclarationError(f"is {text!r}, not {_NAMES[kind]}", place=place, cure="see the flow's default")


def _encode(value: object, place: str) -> JSON:
    try:
        return encode(value, place)
    except ValueRefused as error:
        raise DeclarationError(error.what, place=error.place, cure=error.cure) from None
