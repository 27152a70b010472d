"""Random numbers that depend on nothing but (seed, index, path): the same on every machine and Python version.

A draw is a SHA-256 digest of the three. Logarithms and exponentials are taken in decimal arithmetic, which is correctly
rounded everywhere, where a C library's are not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from flowctl.dsl.space import as_written

Path: TypeAlias = "tuple[str | int, ...]"

_CONTEXT = Context(prec=28, rounding=ROUND_HALF_EVEN)
_DIGEST_BITS = 256


class Draws:
    """The draws of one value of one trial; each call of a method is the next draw."""

    def __init__(self, seed: str, index: int, path: Path) -> None:
        self._key = json.dumps(["flowctl-draw-1", seed, index, list(path)], separators=(",", ":")).encode()
        self._count = 0

    def _bits(self) -> int:
        digest = hashlib.sha256(self._key + b"#%d" % self._count).digest()
        self._count += 1
        return int.from_bytes(digest, "big")

    def unit(self) -> float:
        """A float in [0, 1) with 53 random bits."""
        return (self._bits() >> (_DIGEST_BITS - 53)) / 2**53

    def below(self, count: int) -> int:
        """An integer in [0, count), each equally likely up to count / 2**256."""
        return (self._bits() * count) >> _DIGEST_BITS

    def log_between(self, lower: Decimal, upper: Decimal) -> Decimal:
        """A number in [lower, upper] whose logarithm is uniform; lower > 0."""
        low, high = _ln(lower), _ln(upper)
        span = _CONTEXT.multiply(_CONTEXT.subtract(high, low), Decimal(self.unit()))
        return _CONTEXT.exp(_CONTEXT.add(low, span))

    def normal(self) -> float:
        """A standard normal float, by the polar method of Marsaglia and Bray (1964)."""
        while True:
            x, y = 2 * self.unit() - 1, 2 * self.unit() - 1
            square = x * x + y * y
            if 0 < square < 1:
                return x * math.sqrt(-2 * float(_CONTEXT.ln(Decimal(square))) / square)


def draw(kind: str, numbers: list[float], draws: Draws) -> float:
    """A value of the distribution `kind`, whose numbers stand in the order of its constructor's arguments."""
    return _KINDS[kind](draws, *numbers)


def _uniform(draws: Draws, lower: float, upper: float) -> float:
    return _inside(lower + (upper - lower) * draws.unit(), float(lower), float(upper))


def _loguniform(draws: Draws, lower: float, upper: float) -> float:
    return _inside(float(draws.log_between(Decimal(lower), Decimal(upper))), float(lower), float(upper))


def _quniform(draws: Draws, lower: float, upper: float, q: float) -> float:
    first, last = _multiple(lower, q), _multiple(upper, q)
    return float((first + draws.below(last - first + 1)) * as_written(q))


def _qloguniform(draws: Draws, lower: float, upper: float, q: float) -> float:
    return float(_log_multiple(draws, lower, upper, q) * as_written(q))


def _randint(draws: Draws, lower: int, upper: int) -> int:
    return lower + draws.below(upper - lower)


def _lograndint(draws: Draws, lower: int, upper: int) -> int:
    return min(max(int(draws.log_between(Decimal(lower), Decimal(upper))), lower), upper - 1)


def _qrandint(draws: Draws, lower: int, upper: int, q: int) -> int:
    return lower + q * draws.below((upper - lower) // q + 1)


def _qlograndint(draws: Draws, lower: int, upper: int, q: int) -> int:
    return _log_multiple(draws, lower, upper, q) * q


def _randn(draws: Draws, mean: float, sd: float) -> float:
    return mean + sd * draws.normal()


def _qrandn(draws: Draws, mean: float, sd: float, q: float) -> float:
    return float(round(as_written(_randn(draws, mean, sd)) / as_written(q)) * as_written(q))


def _log_multiple(draws: Draws, lower: float, upper: float, q: float) -> int:
    """k such that k·q is in [lower, upper]: log-uniform over half a step more on each side, then rounded."""
    first, last, half = _multiple(lower, q), _multiple(upper, q), Decimal("0.5")
    drawn = draws.log_between(_CONTEXT.subtract(Decimal(first), half), _CONTEXT.add(Decimal(last), half))
    return min(max(int(_CONTEXT.add(drawn, half)), first), last)


@lru_cache(maxsize=1024)
def _ln(value: Decimal) -> Decimal:
    return _CONTEXT.ln(value)


@lru_cache(maxsize=1024)
def _multiple(value: float, q: float) -> int:
    return round(as_written(value) / as_written(q))


def _inside(value: float, lower: float, upper: float) -> float:
    """`value` kept in [lower, upper) where rounding took it to an end."""
    return max(lower, min(value, math.nextafter(upper, lower)))


_KINDS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "uniform": _uniform,
        "loguniform": _loguniform,
        "quniform": _quniform,
        "qloguniform": _qloguniform,
        "randint": _randint,
        "lograndint": _lograndint,
        "qrandint": _qrandint,
        "qlograndint": _qlograndint,
        "randn": _randn,
        "qrandn": _qrandn,
    }
)

KINDS = frozenset(_KINDS)
