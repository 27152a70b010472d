"""A reason why trials are pending, as a value: what lacks, where it is nearest, who holds it, what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flowctl.broker.view import RunView
from flowctl.broker.worker_view import DEVICE, GPU, Held

KINDS = (
    "waits_for_steps",
    "run_cancelled",
    "no_worker",
    "lost_contact",
    "not_accepting",
    "quarantined",
    "python",
    "key",
    "labels",
    "impossible",
    "shared",
    "limit",
    "pool",
    "device",
    "gang",
    "reserved",
    "avoided",
    "busy",
    "orphan",
    "delayed",
    "placing",
    "starting",
)
"""Every kind of reason; docs/resources.md explains each."""

LabelOf: TypeAlias = Callable[[str], str]
"""How a person names a unit (`run:step:index`)."""

MAX_NAMED = 2


@dataclass(frozen=True)
class Lacking:
    """One dimension that lacks: what was asked, and what the nearest worker (or the pool) offers and has free.

    Exact units. For a share of one GPU, `free` is that of its freest device; for whole ones, of those wholly free.
    """

    asked: int
    offered: int
    free: int


@dataclass(frozen=True)
class Holder:
    """Who holds some of what lacks: `units` of it (0: a turn, no token) since `since_ms`.

    The end of an orphan's attempt is not confirmed. `trial` is how a person names the unit, where it was looked up.
    """

    unit: str
    units: int
    since_ms: int | None
    is_orphan: bool = False
    trial: str = ""


@dataclass(frozen=True)
class Finding:
    """What stands between a request and a worker. `never`: no live worker could meet it, even idle."""

    kind: str
    text: str
    cure: str | None = None
    never: bool = False
    lacking: Mapping[str, Lacking] = field(default_factory=dict)
    nearest: str | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class Reason:
    """One reason with the number of trials of one step that it holds for.

    `kind` is one of KINDS. `cure` is a command or an action. `nearest` is the worker that lacks least, `lacking` what
    lacks there, `holders` who has most of it, the largest first.
    """

    kind: str
    text: str
    count: int
    step: str
    cure: str | None = None
    is_impossible: bool = False
    lacking: Mapping[str, Lacking] = field(default_factory=dict)
    nearest: str | None = None
    holders: tuple[Holder, ...] = ()

    @property
    def gist(self) -> str:
        """The text without who holds what and for how long: the same as long as nothing else changes."""
        return self.text.split("; held by ")[0]

    @classmethod
    def of(cls, finding: Finding, *, count: int, step: str) -> Reason:
        return cls(
            finding.kind,
            finding.text,
            count,
            step,
            finding.cure,
            finding.never,
            finding.lacking,
            finding.nearest,
            finding.holders,
        )


def who(reason: Reason, run: RunView) -> str:
    """The trials that a reason is about: `1 trial of train`, `stage prepare`."""
    step = run.step(reason.step)
    if step is not None and not step.is_experiment:
        return f"stage {reason.step}"
    return f"{reason.count} trial{'' if reason.count == 1 else 's'} of {reason.step}"


def as_path(unit: str) -> str:
    """A unit's longest name, which is always right: RUN/step/7."""
    return unit.replace(":", "/")


def holders_of(rows: Iterable[Held], dimension: str) -> tuple[Holder, ...]:
    """Who holds a dimension among these rows (`gpu`: any device), the largest first, then the longest."""
    found: dict[tuple[str, bool], Holder] = {}
    for row in rows:
        units = sum(
            n for dim, n in row.tokens.items() if dim == dimension or (dimension == GPU and dim.startswith(DEVICE))
        )
        _add(found, row, units)
    return _ordered(found)


def pool_holders(rows: Iterable[Held], pool: str) -> tuple[Holder, ...]:
    """Who holds tokens of a pool, the largest first, then the longest."""
    found: dict[tuple[str, bool], Holder] = {}
    for row in rows:
        _add(found, row, row.pools.get(pool, 0))
    return _ordered(found)


def held_text(holders: tuple[Holder, ...], *, at_ms: int, label_of: LabelOf) -> str:
    """`; held by digits/3 for 4 min, other/0 for 12 s and 3 more`, or nothing."""
    if not holders:
        return ""
    named = [
        label_of(each.unit) + (f" for {for_ms(at_ms - each.since_ms)}" if each.since_ms is not None else "")
        for each in holders[:MAX_NAMED]
    ]
    more = f" and {len(holders) - MAX_NAMED} more" if len(holders) > MAX_NAMED else ""
    return f"; held by {', '.join(named)}{more}"


def for_ms(ms: int) -> str:
    """A duration in one unit: 12 s, 4 min, 3 h, 2 days."""
    seconds = max(0, ms) // 1000
    for size, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


def _add(found: dict[tuple[str, bool], Holder], row: Held, units: int) -> None:
    if units:
        key = (row.unit, row.is_orphan)
        before = found.get(key)
        found[key] = Holder(row.unit, units + (before.units if before else 0), row.since_ms, row.is_orphan)


def _ordered(found: Mapping[tuple[str, bool], Holder]) -> tuple[Holder, ...]:
    return tuple(sorted(found.values(), key=lambda each: (-each.units, each.since_ms or 0, each.unit)))
