"""What trials ran when, as their own code wrote it: lines `PID TIME start WHAT` and `PID TIME end` of a side file.

`WHAT` is free text: a device, a worker, nothing. A trial may say `end` often, to show that it lives:
the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf


@dataclass(frozen=True)
class Interval:
    """One process: seconds since 1970 from its first line to its last."""

    pid: int
    what: str
    start: float
    end: float

    def overlaps(self, other: Interval) -> bool:
        return self.start < other.end and other.start < self.end


def intervals(lines: Sequence[str]) -> list[Interval]:
    """One per process, in order of their starts."""
    found: dict[int, Interval] = {}
    for line in lines:
        pid_text, at_text, word, *what = line.split(" ", 3)
        pid, at = int(pid_text), float(at_text)
        if word == "start":
            assert pid not in found, f"process {pid} served twice"
            found[pid] = Interval(pid, "".join(what), at, at)
        else:
            found[pid] = Interval(pid, found[pid].what, found[pid].start, at)
    return sorted(found.values(), key=lambda each: each.start)


def most_at_once(found: Sequence[Interval]) -> int:
    """How many there were at one instant at most."""
    changes = sorted([(each.start, 1) for each in found] + [(each.end, -1) for each in found])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def clashes(found: Sequence[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs that had the same thing at the same time."""
    return [(one, other) for one, other in combinations(found, 2) if one.what == other.what and one.overlaps(other)]


def busy_s(found: Sequence[Interval], *, since: float = -inf, until: float = inf) -> float:
    """The sum of their lengths within a span."""
    return sum(max(0.0, min(each.end, until) - max(each.start, since)) for each in found)
