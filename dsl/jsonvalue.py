"""Values as strict JSON and back: what a configuration, a metric or a plan may hold.

Kept: None, booleans, integers of any size, floats, text, lists, dictionaries with text keys. NaN and the infinities
become `{"$float": "nan" | "inf" | "-inf"}`, so that the text stays strict JSON. Changed, and nothing else is: numpy and
torch scalars become plain ones, arrays and tensors lists, tuples lists, dates and times ISO 8601 text. Everything else
is refused with the key that holds it. Arrays are recognised by what they can do; numpy is not imported.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from flowctl.dsl.errors import ValueRefused

JSON: TypeAlias = Any
"""A strict JSON value; an alias that documents, since recursive types would make every list invariant."""

_MAX_DEPTH = 64
_MAX_INT_BITS = 14_000  # Python's own limit for reading decimal text is 4,300 digits
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: object, place: str) -> JSON:
    """`value` as strict JSON; `place` names it in an error, such as `metrics` or `param_space`.

    Raises `ValueRefused`, whose place is the path of the key, for example `metrics.model`.
    """
    return _encode(value, place, 0)


def decode(value: JSON) -> Any:
    """The value that `encode` wrote, with NaN and the infinities as floats; containers are new."""
    if isinstance(value, dict):
        if len(value) == 1 and "$float" in value:
            return decode_float(value)
        return {key: decode(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [decode(inner) for inner in value]
    return value


def encode_float(value: float) -> JSON:
    """A float as strict JSON."""
    if math.isfinite(value):
        return value
    return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}


def decode_float(value: Mapping[str, Any]) -> float:
    """The float that `encode_float` wrote as a dictionary."""
    name = value["$float"]
    if name not in _FLOATS:
        raise ValueRefused(f"{name!r} is not a special float", place="$float")
    return _FLOATS[name]


def canonical(value: JSON) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces, UTF-8, no special floats."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _encode(value: object, place: str, depth: int) -> JSON:
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is float:
        return encode_float(value)  # type: ignore[arg-type]
    if kind is int:
        return _integer(value, place)  # type: ignore[arg-type]
    if kind is str:
        return _text(value, place)  # type: ignore[arg-type]
    if depth >= _MAX_DEPTH:
        raise ValueRefused(f"is nested deeper than {_MAX_DEPTH} levels", place=place, cure="does it hold itself?")
    if isinstance(value, Mapping):
        return {_key(key, place): _encode(inner, join(place, key), depth + 1) for key, inner in value.items()}
    if kind is list or kind is tuple:
        return [_encode(inner, f"{place}[{i}]", depth + 1) for i, inner in enumerate(value)]  # type: ignore[arg-type,var-annotated]
    return _encode_other(value, place, depth)


def _encode_other(value: object, place: str, depth: int) -> JSON:
    if isinstance(value, Enum):
        raise ValueRefused(f"not a JSON value: an enum member {value}", place=place, cure="use its .value")
    if isinstance(value, str):
        return _text(str.__str__(value), place)
    if isinstance(value, int):
        return _integer(int(value), place)
    if isinstance(value, float):
        return encode_float(float(value))
    if isinstance(value, (list, tuple)):
        return [_encode(inner, f"{place}[{i}]", depth + 1) for i, inner in enumerate(value)]
    loaded = sys.modules.get("datetime")  # without it there is no such value; every trial imports this module
    if loaded is not None and isinstance(value, (loaded.date, loaded.time)):
        return value.isoformat()
    if _is_array(value):
        return _array(value, place, depth)
    raise ValueRefused(f"not a JSON value: {kind_of(value)}", place=place, cure=_cure(value))


def _is_array(value: object) -> bool:
    parts = ("dtype", "shape", "item", "tolist")
    return not isinstance(value, type) and all(hasattr(value, part) for part in parts)


def _array(value: Any, place: str, depth: int) -> JSON:
    kind = getattr(value.dtype, "kind", "")
    if kind == "M":
        import_free = value.astype("datetime64[us]").tolist()
        return _encode(import_free, place, depth + 1)
    plain = value.tolist()
    if type(plain) is type(value) or kind in ("m", "c"):
        raise ValueRefused(f"not a JSON value: {kind_of(value)} of {value.dtype}", place=place, cure=_cure(value))
    return _encode(plain, place, depth + 1)


def _integer(value: int, place: str) -> int:
    if value.bit_length() > _MAX_INT_BITS:
        raise ValueRefused("the integer has more than 4,200 digits", place=place, cure="keep it as text")
    return value


def _text(value: str, place: str) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueRefused("the text holds half a surrogate pair", place=place, cure="keep bytes as hex") from None
    return value


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        what = f"the key {key!r} is not text but {kind_of(key)}"
        raise ValueRefused(what, place=place, cure=f"write {str(key)!r}")
    if key.startswith("$"):
        raise ValueRefused(f"the key {key!r} starts with '$', which is reserved", place=place, cure="rename it")
    return _text(str.__str__(key), place)


def join(place: str, key: object) -> str:
    """The path of `key` in `place`, as a person reads it."""
    return f"{place}.{key}" if place else str(key)


def kind_of(value: object) -> str:
    """The type of a value, as a person reads it: `int`, `numpy.ndarray`, `function`."""
    kind = type(value)
    is_plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"


def _cure(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        return "use a sorted list"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "use text, such as .hex()"
    return "use numbers, text, booleans, None, lists and dictionaries"
