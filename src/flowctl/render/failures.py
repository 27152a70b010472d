"""Failures as people need them: what, where, which trials, and the command that shows the log; equal ones once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowctl.broker.view import RunView, UnitView


@dataclass(frozen=True)
class FailureGroup:
    """Trials that failed with one cause. `label` names the first of them."""

    headline: str
    place: str | None
    count: int
    label: str
    labels: tuple[str, ...]

    def lines(self) -> list[str]:
        """Two lines: the cause with its count and place, and the command that shows the log of the first."""
        times = f"{self.count} × " if self.count > 1 else ""
        where = f"  at {self.place}" if self.place else ""
        return [f"{times}{self.label}: {self.headline}{where}", f"    flowctl logs {self.label}"]


def group_failures(run: RunView, failed: Sequence[UnitView]) -> list[FailureGroup]:
    """Failed units grouped by cause and place, the most frequent first, then by first trial."""
    groups: dict[tuple[str, str | None], list[UnitView]] = {}
    for unit in failed:
        headline = unit.cause.headline() if unit.cause else unit.reason or "failed"
        groups.setdefault((headline, unit.cause.place if unit.cause else None), []).append(unit)
    found = [
        FailureGroup(
            headline=headline,
            place=place,
            count=len(units),
            label=run.label(units[0].step, units[0].index),
            labels=tuple(run.label(unit.step, unit.index) for unit in units),
        )
        for (headline, place), units in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)
