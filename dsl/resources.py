"""Amounts of resources in exact integers: 1/10,000 of a core, device or custom token; MiB of memory.

Fractions are rounded down to 1/10,000 and smaller ones refused. Names: `cpu`, `gpu`, `memory` (bytes, or text such as
"16GiB"), and custom ones such as `license`. A request of several bundles is `flowctl.dsl.request`. This is bookkeeping
for placement, not a limit on what a process uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from types import MappingProxyType
from typing import Any

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.jsonvalue import canonical, kind_of
from flowctl.dsl.labels import NOT, is_label, show_labels
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at

UNITS_PER_TOKEN = 10_000
ONE_CPU: Mapping[str, float] = MappingProxyType({"cpu": 1})
BUILT_IN = ("cpu", "gpu", "memory")
PACK = "PACK"
STRATEGIES = (PACK, "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
SLOT = "slot"
AUTO = "auto"
"""In an offer: what the machine has."""
LABELS = "labels"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,59}")
_MAX_TOKENS = 10**9
_MAX_MIB = 2**40
_MEMORY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGTP]i?B?|B|)\s*")
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES |= {"K": 10**3, "Ki": 2**10, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_ALIASES = {
    "cpus": "cpu",
    "num_cpus": "cpu",
    "cores": "cpu",
    "gpus": "gpu",
    "num_gpus": "gpu",
    "mem": "memory",
    "ram": "memory",
}


@dataclass(frozen=True)
class Bundle:
    """What is needed together on one worker: exact units by name, one slot included, and labels wanted of it."""

    need: Mapping[str, int]
    labels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"need": dict(self.need), "labels": list(self.labels)}


@dataclass(frozen=True)
class Request:
    """What one trial asks for: bundles that are granted all or none. The first is the trial's own.

    `strategy` says how the bundles lie on machines: PACK and SPREAD as far as possible, STRICT_PACK and STRICT_SPREAD
    always. Made by `placement_group`, or from a dictionary, which is one bundle.
    """

    bundles: tuple[Bundle, ...]
    strategy: str = PACK

    @property
    def is_group(self) -> bool:
        """Whether it is more than one bundle."""
        return len(self.bundles) > 1

    def to_json(self) -> dict[str, Any]:
        return {"bundles": [bundle.to_json() for bundle in self.bundles], "strategy": self.strategy}

    def canonical(self) -> bytes:
        """The one byte string of this request."""
        return canonical(self.to_json())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Raises `ValueError`, `KeyError` or `TypeError` for what `to_json` did not write."""
        bundles = tuple(Bundle(dict(each["need"]), tuple(each["labels"])) for each in data["bundles"])
        sound = bool(bundles) and data["strategy"] in STRATEGIES
        for bundle in bundles:
            sound = sound and all(_NAME.fullmatch(name) and type(n) is int and n > 0 for name, n in bundle.need.items())
            sound = sound and SLOT in bundle.need and all(is_label(each.removeprefix(NOT)) for each in bundle.labels)
        if not sound:
            raise ValueError("a damaged request")
        return cls(bundles, data["strategy"])


def parse_amounts(value: Mapping[str, object], *, place: str) -> dict[str, int]:
    """A dictionary of amounts as exact integers, sorted by name, zeros kept.

    Raises `DeclarationError` with the key for what cannot be.
    """
    units = {check_name(name, place=place): _amount(name, amount, f"{place}.{name}") for name, amount in value.items()}
    return dict(sorted(units.items()))


def parse_offer(text: str, *, place: str | None = None) -> dict[str, int]:
    """What a worker declares, such as `cpu=2,memory=16GiB,license=1`, as exact integers; zeros are kept.

    `cpu`, `gpu` and `memory` may be `auto`, which is the same as not naming them: they are left out. `gpu` counts whole
    devices. Raises `DeclarationError`; the same name twice is refused.
    """
    place = at(place, "resources")
    offer: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise DeclarationError(f"{part!r} is not NAME=AMOUNT", place=place, cure="write cpu=2,license=1")
        check_name(name, place=place)
        if name in offer:
            raise DeclarationError(f"names {name!r} twice", place=place)
        offer[name] = None if name in BUILT_IN and amount == AUTO else _offered(name, amount, f"{place}.{name}")
    if not offer:
        raise DeclarationError("offers nothing", place=place, cure="write cpu=2,license=1")
    return {name: units for name, units in sorted(offer.items()) if units is not None}


def _offered(name: str, amount: str, place: str) -> int:
    if name == "memory":
        return _amount(name, amount, place)
    try:
        number = float(amount)
    except ValueError:
        auto = ' or "auto"' if name in BUILT_IN else ""
        raise DeclarationError(f"is {amount!r}, not a number{auto}", place=place) from None
    if name == "gpu" and number != int(number if math.isfinite(number) else 0):
        raise DeclarationError(f"is {amount!r}; a worker offers whole devices", place=place, cure="use 1 or 2")
    return _amount(name, number, place)


def format_resources(units: Mapping[str, int]) -> str:
    """A vector as a person writes it: `cpu=1, license=0.5`; the slot, which every unit takes, is left out."""
    parts = [f"{name}={format_amount(name, amount)}" for name, amount in sorted(units.items()) if name != SLOT]
    return ", ".join(parts) or "a slot"


def format_request(request: Request, *, vector: Callable[[Mapping[str, int]], str] = format_resources) -> str:
    """A request as a person reads it: `cpu=1, gpu=0.5 on spot`, `SPREAD of cpu=1 + 2 × (cpu=1, gpu=1)`."""
    if not request.is_group:
        return _format_bundle(request.bundles[0], vector)
    parts = []
    for text, same in groupby(_format_bundle(bundle, vector) for bundle in request.bundles):
        count = len(list(same))
        whole = f"({text})" if "," in text or " on " in text else text
        parts.append(f"{count} × {whole}" if count > 1 else whole)
    return f"{request.strategy} of {' + '.join(parts)}"


def _format_bundle(bundle: Bundle, vector: Callable[[Mapping[str, int]], str]) -> str:
    text = vector(bundle.need)
    return f"{text} on {show_labels(bundle.labels)}" if bundle.labels else text


def as_declared(units: Mapping[str, int]) -> dict[str, float]:
    """A vector in the units of a declaration: cores, devices (all cards together), tokens; memory in bytes.

    The slot, which every unit takes, is left out.
    """
    found: dict[str, float] = {}
    for name, amount in sorted(units.items()):
        plain = name.partition(":")[0]
        if plain != SLOT:
            found[plain] = found.get(plain, 0) + (amount * 2**20 if plain == "memory" else amount / UNITS_PER_TOKEN)
    return found


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
    if name == LABELS:
        raise DeclarationError("'labels' is reserved", place=place, cure="labels are no amount")
    if not _NAME.fullmatch(name):
        what = f"{name!r} cannot name a resource"
        cure = did_you_mean(name, BUILT_IN) if name.lower() in BUILT_IN else "use a-z 0-9 _ - , a letter first"
        raise DeclarationError(what, place=place, cure=cure)
    return name


def memory_mib(value: object, *, place: str) -> int:
    """Memory in MiB, rounded up: a number is bytes, text has a unit (`16GiB`, `500MB`). Zero, or at least 1 MiB."""
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value)
        if match is None:
            raise DeclarationError(f"{value!r} is not an amount of memory", place=place, cure=_memory_meant(value))
        size = Fraction(match[1]) * _BYTES[match[2].rstrip("B")]
        if not match[2] and size:
            raise DeclarationError(f"{value!r} has no unit", place=place, cure=f'did you mean "{match[1]}GiB"?')
    else:
        size = _exact(value, place)
    if 0 < size < 2**20:
        what = f"is {value!r}{'' if isinstance(value, str) else ' bytes'}, less than 1 MiB"
        raise DeclarationError(what, place=place, cure='a number is bytes: write "16GiB"')
    return math.ceil(size / 2**20)


def _memory_meant(text: str) -> str:
    """The cure for a unit that is written otherwise: `16gb`."""
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    if parts is not None:
        unit = next((unit for unit in _BYTES if unit and parts[2] in (unit.lower(), f"{unit.lower()}b")), None)
        if unit is not None:
            return f'did you mean "{parts[1]}{unit}B"?'
    return 'write "16GiB"'


def _amount(name: str, value: object, place: str) -> int:
    if name == "memory":
        mib = memory_mib(value, place=place)
        if mib > _MAX_MIB:
            raise DeclarationError(f"is {value!r}, more than an exbibyte", place=place)
        return mib
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
