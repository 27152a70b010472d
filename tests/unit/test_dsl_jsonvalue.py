"""Values as strict JSON: what is kept, what changes, and what is refused with its key (B111, B128)."""

import json
import math
from dataclasses import dataclass
from datetime import date, datetime, timezone
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.dsl.errors import ValueRefused
from flowctl.dsl.jsonvalue import canonical, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")).filter(lambda k: k[:1] != "$"), inner)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_come_back_equal_through_strict_json(value: Any) -> None:
    text = canonical(encode(value, "value"))

    assert same(decode(json.loads(text, parse_constant=pytest.fail)), value)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)


def test_numpy_scalars_become_plain_and_special_floats_survive() -> None:
    now = datetime.now(timezone.utc)
    metrics = {
        "f": np.float32(0.1),
        "i": np.int64(3),
        "b": np.bool_(True),
        "z": np.array(2.0),
        "n": float("nan"),
        "p": np.float64("inf"),
        "m": -math.inf,
        "big": 2**80,
        "s": np.str_("x"),
        "d": now,
        "day": date(2024, 2, 29),
        "arr": np.arange(3),
        "mat": np.ones((2, 2)),
        "dt": np.datetime64("2024-02-29"),
        "t": (1, 2),
    }

    encoded = encode(metrics, "metrics")

    assert encoded["n"] == {"$float": "nan"}
    back = decode(json.loads(canonical(encoded)))
    assert back["f"] == float(np.float32(0.1)) and type(back["f"]) is float
    assert back["i"] == 3 and type(back["i"]) is int
    assert back["b"] is True and back["z"] == 2.0 and math.isnan(back["n"])
    assert back["p"] == math.inf and back["m"] == -math.inf and back["big"] == 2**80
    assert back["s"] == "x" and type(back["s"]) is str
    assert back["d"] == now.isoformat() and back["day"] == "2024-02-29" and back["dt"].startswith("2024-02-29")
    assert back["arr"] == [0, 1, 2] and back["mat"] == [[1.0, 1.0], [1.0, 1.0]] and back["t"] == [1, 2]


class Shade(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


@dataclass
class Settings:
    n: int


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        {1},
        b"x",
        1j,
        np.complex128(1),
        Shade.RED,
        Level.LOW,
        Settings(1),
        len,
        "\ud800",
        10**5000,
        np.timedelta64(1, "s"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused_with_their_key(bad: Any) -> None:
    with pytest.raises(ValueRefused) as caught:
        encode({"good": 1, "deep": [0, {"bad": bad}]}, "metrics")

    assert caught.value.place == "metrics.deep[1].bad"
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("key", [0, 1.5, None, True, ("a", 1), "$float"])
def test_keys_that_are_not_text_or_are_reserved_are_refused_by_name(key: Any) -> None:
    with pytest.raises(ValueRefused) as caught:
        encode({"layers": {key: 64}}, "config")

    assert caught.value.place == "config.layers"
    assert repr(key) in str(caught.value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(ValueRefused, match="deeper"):
        encode(loop, "metrics")


def test_tensors_are_recognised_by_what_they_can_do() -> None:
    class Tensor:
        dtype, shape = "float32", ()

        def item(self) -> float:
            return 0.5

        def tolist(self) -> float:
            return 0.5

    assert encode({"loss": Tensor()}, "metrics") == {"loss": 0.5}
