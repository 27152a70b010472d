"""Failures as people need them: what, where, which trials, and the command that shows the log; equal ones once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flowctl.broker.view import RunView, UnitView

NUMBER = re.compile(r"(?<![A-Za-z_])-?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class FailureGroup:
    """Trials that failed with one cause. `label` names the first of them."""

    headline: str
    place: str | None
    count: int
    told: str
    label: str
    labels: tuple[str, ...]
    is_mixed: bool = False
    """Whether the texts differ, by numbers alone; shown is the first."""

    def lines(self) -> list[str]:
        """Two lines: the cause with its count and place, and the command that shows the log of the first."""
        times = f"{self.count} × " if self.count > 1 else ""
        mixed = "  (the numbers differ)" if self.is_mixed else ""
        return [f"{times}{self.label}: {self.told}{mixed}", f"    flowctl logs {self.label}"]


def group_failures(run: RunView, failed: Sequence[UnitView]) -> list[FailureGroup]:
    """Failed units grouped by cause and place, the most frequent first, then by first trial.

    Exceptions of one place whose texts differ by numbers alone, such as values of the configuration, are one group.
    """
    groups: dict[tuple[str, str | None], list[UnitView]] = {}
    for unit in failed:
        place = unit.cause.place if unit.cause else None
        groups.setdefault((_alike(_headline(unit), place), place), []).append(unit)
    found = [
        FailureGroup(
            headline=_headline(units[0]),
            place=place,
            told=units[0].cause.told() if units[0].cause else _headline(units[0]),
            count=len(units),
            label=run.label(units[0].step, units[0].index),
            labels=tuple(run.label(unit.step, unit.index) for unit in units),
            is_mixed=len({_headline(unit) for unit in units}) > 1,
        )
        for (_, place), units in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)


def _headline(unit: UnitView) -> str:
    return unit.cause.headline() if unit.cause else unit.reason or "failed"


def _alike(headline: str, place: str | None) -> str:
    """The text by which failures are grouped: without its numbers, where the place says that it is the same error."""
    return NUMBER.sub("#", headline) if place is not None else headline
