"""What a trial asks for, in exact integers: 1/10,000 of a core, device or custom token; MiB of memory.

Fractions are rounded down to 1/10,000 and smaller ones refused. A dictionary that asks for `gpu` or a custom token and
does not name `cpu` asks for no core; any other asks for one. Names: `cpu`, `gpu`, `memory` (bytes, or text such as
"16GiB"), and custom ones such as `license`. This is bookkeeping for placement, not a limit on what a process uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at

UNITS_PER_TOKEN = 10_000
ONE_CPU: Mapping[str, float] = MappingProxyType({"cpu": 1})
BUILT_IN = ("cpu", "gpu", "memory")
SLOT = "slot"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,59}")
_MAX_TOKENS = 10**9
_MEMORY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]i?B?|B|)\s*")
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES |= {"ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_ALIASES = {
    "cpus": "cpu",
    "num_cpus": "cpu",
    "cores": "cpu",
    "gpus": "gpu",
    "num_gpus": "gpu",
    "mem": "memory",
    "ram": "memory",
}


def parse_resources(value: object, *, place: str | None = None) -> dict[str, int]:
    """The request as exact integers, sorted by name, zeros left out; `{}` is one core.

    Raises `DeclarationError` for what cannot be and `NotYetError` for devices, memory, functions and bundles.
    """
    place = at(place, "resources")
    if callable(value):
        raise NotYetError("a function of the configuration is not yet supported", place=place, cure="use a dictionary")
    if not isinstance(value, Mapping):
        if isinstance(value, (list, tuple)) or hasattr(value, "bundles"):
            raise NotYetError("placement groups are not yet supported", place=place, cure="use one dictionary")
        raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a dictionary", place=place, cure='use {"cpu": 1}')
    units = {check_name(name, place=place): _amount(name, amount, f"{place}.{name}") for name, amount in value.items()}
    for name in ("gpu", "memory"):
        if units.get(name):
            raise NotYetError("is not yet supported", place=f"{place}.{name}", cure="leave it out")
    asks_for_device_or_token = any(amount for name, amount in units.items() if name not in ("cpu", "memory"))
    if "cpu" not in units and not asks_for_device_or_token:
        units["cpu"] = UNITS_PER_TOKEN
    request = {name: amount for name, amount in sorted(units.items()) if amount}
    if not request:
        raise DeclarationError("asks for nothing", place=place, cure='use {"cpu": 1}')
    return request


def parse_offer(text: str, *, place: str | None = None) -> dict[str, int]:
    """What a worker declares, such as `cpu=2,license=1`, as exact integers; zeros are kept.

    Raises like `parse_resources`; the same name twice is refused.
    """
    place = at(place, "resources")
    offer: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise DeclarationError(f"{part!r} is not NAME=AMOUNT", place=place, cure="write cpu=2,license=1")
        check_name(name, place=place)
        if name in offer:
            raise DeclarationError(f"names {name!r} twice", place=place)
        if name in ("gpu", "memory"):
            raise NotYetError("is not yet supported", place=f"{place}.{name}", cure="leave it out")
        try:
            number = float(amount)
        except ValueError:
            raise DeclarationError(f"is {amount!r}, not a number", place=f"{place}.{name}") from None
        offer[name] = _amount(name, number, f"{place}.{name}")
    if not offer:
        raise DeclarationError("offers nothing", place=place, cure="write cpu=2,license=1")
    return dict(sorted(offer.items()))


def format_resources(units: Mapping[str, int]) -> str:
    """A vector as a person writes it: `cpu=1, license=0.5`; the slot, which every unit takes, is left out."""
    parts = [f"{name}={format_amount(name, amount)}" for name, amount in sorted(units.items()) if name != SLOT]
    return ", ".join(parts) or "a slot"


def format_amount(name: str, units: int) -> str:
    """One amount as a person writes it: `0.5`, `16GiB`."""
    if name == "memory":
        return f"{units // 1024}GiB" if units % 1024 == 0 and units else f"{units}MiB"
    whole, rest = divmod(units, UNITS_PER_TOKEN)
    return f"{whole}.{rest:04d}".rstrip("0") if rest else str(whole)


def check_name(name: object, *, place: str) -> str:
    """Return `name` if it can name a resource. Raises `DeclarationError` with the name that was meant."""
    if not isinstance(name, str):
        raise DeclarationError(f"the name {name!r} is not text", place=place)
    meant = _ALIASES.get(name.lower(), name.lower() if name.lower() in BUILT_IN else None)
    if name not in BUILT_IN and meant is not None:
        raise DeclarationError(f"unknown name {name!r}", place=place, cure=f"write {meant!r}")
    if name == SLOT:
        raise DeclarationError("'slot' is reserved", place=place, cure="every trial takes one slot by itself")
    if not _NAME.fullmatch(name):
        what = f"{name!r} cannot name a resource"
        cure = did_you_mean(name, BUILT_IN) if name.lower() in BUILT_IN else "use a-z 0-9 _ - , a letter first"
        raise DeclarationError(what, place=place, cure=cure)
    return name


def memory_mib(value: object, *, place: str) -> int:
    """Memory in MiB, rounded up: a number is bytes, text has a unit (`16GiB`, `500MB`)."""
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        if match is None:
            raise DeclarationError(f"{value!r} is not an amount of memory", place=place, cure='write "16GiB"')
        size = Fraction(match[1]) * _BYTES[match[2].rstrip("B")]
    else:
        size = _exact(value, place)
    return math.ceil(size / 2**20)


def _amount(name: str, value: object, place: str) -> int:
    if name == "memory":
        return memory_mib(value, place=place)
    exact = _exact(value, place)
    if name == "gpu" and exact > 1 and exact.denominator != 1:
        raise DeclarationError(f"is {value!r}; above 1 a trial gets whole devices", place=place, cure="use 1 or 2")
    if exact > _MAX_TOKENS:
        raise DeclarationError(f"is {value!r}, more than {_MAX_TOKENS:,}", place=place)
    units = math.floor(exact * UNITS_PER_TOKEN)
    if exact and not units:
        raise DeclarationError(f"is {value!r}; the smallest amount is 0.0001", place=place)
    return units


def _exact(value: object, place: str) -> Fraction:
    """The number as it was written: 0.29 is 29/100, whatever its nearest binary fraction is."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DeclarationError(f"is {value!r}, not a finite number", place=place)
        exact = Fraction(repr(float(value)))
    elif isinstance(value, Fraction):
        exact = value
    elif not isinstance(value, bool) and hasattr(type(value), "__index__"):
        exact = Fraction(int(value.__index__()))  # type: ignore[attr-defined]
    else:
        raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a number", place=place)
    if exact < 0:
        raise DeclarationError(f"is {value}, must not be negative", place=place)
    return exact
