"""What a benchmark says: one value beside a floor that was measured in the same run, as one JSON line."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

ROUNDS = 5


@dataclass(frozen=True)
class Measurement:
    """`floor` and `budget` are in `unit` too. `others` are figures with budgets of their own: (value, budget)."""

    benchmark: str
    value: float
    unit: str
    floor: float
    budget: float
    others: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_within(self) -> bool:
        """Whether the value and all others are within their budgets."""
        return self.value <= self.budget and all(value <= budget for value, budget in self.others.values())

    def say(self) -> None:
        """Prints the line."""
        others = {name: {"value": value, "budget": budget} for name, (value, budget) in self.others.items()}
        line = {
            "benchmark": self.benchmark,
            "value": self.value,
            "unit": self.unit,
            "floor": self.floor,
            "ratio": self.value / self.floor if self.floor else None,
            "budget": self.budget,
            "within": self.is_within,
            "details": {**({"others": others} if others else {}), **self.details},
        }
        print(json.dumps(_rounded(line), allow_nan=False), flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and extremes: what a single figure hides."""
    ordered = sorted(values)
    return {
        "median": median(ordered),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "min": ordered[0],
        "max": ordered[-1],
    }


def note(text: str) -> None:
    """Progress, for a person who waits: on stderr, so that stdout holds the line alone."""
    print(text, file=sys.stderr, flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
