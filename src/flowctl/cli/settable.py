"""What `flowctl set` may change, and which values each takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flowctl.client import MAX_WEIGHT
from flowctl.dsl.declaration import MAX_PRIORITY
from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.names import did_you_mean

UNLIMITED = ("", "0", "none", "None")


@dataclass(frozen=True)
class Settable:
    """One name: how its text is read (None: cannot be), what may stand there, and how it is shown."""

    read: Callable[[str], float | None]
    hint: str

    def show(self, value: float | None) -> str:
        return "no limit" if value is None else f"{value:g}"


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else None


def _limit(text: str) -> int | None:
    value = _whole(text)
    return value if value is not None and value > 0 else None


def _priority(text: str) -> int | None:
    value = _whole(text)
    return value if value is not None and abs(value) <= MAX_PRIORITY else None


def _weight(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= MAX_WEIGHT else None


SETTABLE: Mapping[str, Settable] = {
    "max_concurrent_trials": Settable(_limit, "a whole number, 0 or none for no limit"),
    "priority": Settable(_priority, f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"),
    "weight": Settable(_weight, f"a number above 0, at most {MAX_WEIGHT:g}"),
}


def parse_values(texts: tuple[str, ...]) -> dict[str, float | None]:
    """`NAME=VALUE` texts, all checked; None is no limit. Raises DeclarationError for the first that cannot be."""
    values: dict[str, float | None] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if name not in SETTABLE:
            raise DeclarationError(f"{name!r} cannot be set", place=text, cure=did_you_mean(name, list(SETTABLE)))
        if not equals:
            raise DeclarationError("is not NAME=VALUE", place=text, cure=f"write {name}={SETTABLE[name].hint}")
        if name in values:
            raise DeclarationError(f"{name} is given twice", place=text)
        if name == "max_concurrent_trials" and value in UNLIMITED:
            values[name] = None
            continue
        values[name] = SETTABLE[name].read(value)
        if values[name] is None:
            raise DeclarationError(f"{name} cannot be {value!r}", place=text, cure=f"use {SETTABLE[name].hint}")
    return values
