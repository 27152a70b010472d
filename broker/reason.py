"""A reason why trials are pending, as a value: what lacks, where it is nearest, who holds it, what helps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flowctl.broker.view import RunView
from flowctl.broker.worker_view import DEVICE, GPU, Held, WorkerView

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
_UNIT = re.compile(r"(?<![\w.:-])[A-Za-z0-9._-]+:[A-Za-z0-9_-]+:\d+(?![\w:])")
_HELD = re.compile(r"; (still )?held by ")
_DURATION = re.compile(r"\d+ (s|min|h|days)\b")


@dataclass(frozen=True)
class Lacking:
    """One dimension that lacks: what was asked, and what the nearest worker (or the pool) offers and has free.

    Exact units. For a share of one GPU, `free` is that of its freest device; for whole ones, of those wholly free.
    """

    asked: int
    offered: int
    free: int


@dataclass(frozen=True)
class Lost:
    """A worker that was not heard of lately; at `gone_ms` it is given up, where that is known."""

    gone_ms: int | None


@dataclass(frozen=True)
class Holder:
    """Who holds some of what lacks: `units` of it (0: a turn, no token) since `since_ms`.

    The end of an orphan's attempt is not confirmed by `worker`, where it ran; `lost`: nothing was heard of that lately.
    `trial` is how a person names the unit, where it was looked up.
    """

    unit: str
    units: int
    since_ms: int | None
    is_orphan: bool = False
    trial: str = ""
    worker: str = ""
    lost: Lost | None = None


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
        return _DURATION.sub("", _HELD.split(self.text)[0])

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


def label_units(text: str, label_of: LabelOf) -> str:
    """A text of the server with its units (`run:step:7`) as people name them."""
    return _UNIT.sub(lambda found: label_of(found[0]), text)


def out_of_service(worker: WorkerView, *, at_ms: int, label_of: LabelOf) -> str:
    """`w1 is out of service for 4 min: 3 trials in a row failed …: digits/3, …`."""
    since = f" for {for_ms(at_ms - worker.quarantined_ms)}" if worker.quarantined_ms is not None else ""
    return f"{worker.worker} is out of service{since}{why_out(worker, label_of)}"


def why_out(worker: WorkerView, label_of: LabelOf) -> str:
    """`: ` and why it is out of service, or nothing."""
    return f": {label_units(worker.reason, label_of)}" if worker.reason else ""


def restore_cure(worker: WorkerView) -> str:
    return f"bring it back: flowctl workers --restore {worker.worker}"


Rows: TypeAlias = Iterable[tuple[WorkerView, Held]]


def holders_of(rows: Rows, dimension: str, *, at_ms: int, gone_ms: int | None = None) -> tuple[Holder, ...]:
    """Who holds a dimension among these rows (`gpu`: any device), the largest first, then the longest.

    A worker is given up after `gone_ms` of silence.
    """

    def units_of(row: Held) -> int:
        return sum(
            n for dim, n in row.tokens.items() if dim == dimension or (dimension == GPU and dim.startswith(DEVICE))
        )

    return _holders(((worker, row, units_of(row)) for worker, row in rows), at_ms=at_ms, gone_ms=gone_ms)


def pool_holders(rows: Rows, pool: str, *, at_ms: int, gone_ms: int | None = None) -> tuple[Holder, ...]:
    """Who holds tokens of a pool, the largest first, then the longest."""
    found = ((worker, row, row.pools.get(pool, 0)) for worker, row in rows)
    return _holders(found, at_ms=at_ms, gone_ms=gone_ms)


def held_text(holders: tuple[Holder, ...], *, at_ms: int, label_of: LabelOf) -> str:
    """`; held by digits/3 for 4 min, other/0 for 12 s and 3 more`, or nothing.

    Of attempts whose end is not confirmed it says where they ran, and what confirms it.
    """
    if not holders:
        return ""
    named = []
    for each in holders[:MAX_NAMED]:
        since = f" for {for_ms(at_ms - each.since_ms)}" if each.since_ms is not None else ""
        named.append(f"what {label_of(each.unit)} ran{_on(each)}" if each.is_orphan else label_of(each.unit) + since)
    more = f" and {len(holders) - MAX_NAMED} more" if len(holders) > MAX_NAMED else ""
    still = "still " if all(each.is_orphan for each in holders) else ""
    free = next((_freed(each, at_ms) for each in holders[:MAX_NAMED] if each.is_orphan), "")
    return f"; {still}held by {', '.join(named)}{more}{free}"


def _on(holder: Holder) -> str:
    if not holder.worker:
        return ""
    return f" on {holder.worker}, which was lost" if holder.lost else f" on {holder.worker}"


def _freed(holder: Holder, at_ms: int) -> str:
    """When what is left of an attempt returns its tokens."""
    if holder.lost is None:
        return f"; free when {holder.worker or 'its worker'} says that it is gone"
    last = ""
    if holder.lost.gone_ms is not None:
        last = f", at the latest in {max(0, holder.lost.gone_ms - at_ms) // 1000} s"
    return (
        f"; free when {holder.worker} says that it is gone{last}, or at once when it is started again under that name"
    )


def for_ms(ms: int) -> str:
    """A duration in one unit: 12 s, 4 min, 3 h, 2 days."""
    seconds = max(0, ms) // 1000
    for size, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


def _holders(rows: Iterable[tuple[WorkerView, Held, int]], *, at_ms: int, gone_ms: int | None) -> tuple[Holder, ...]:
    found: dict[tuple[str, bool], Holder] = {}
    for worker, row, units in rows:
        if not units:
            continue
        key = (row.unit, row.is_orphan)
        before = found.get(key)
        lost = None
        if row.is_orphan and not worker.has_contact(at_ms):
            lost = Lost(worker.last_ms + gone_ms if gone_ms is not None else None)
        total = units + (before.units if before else 0)
        found[key] = Holder(row.unit, total, row.since_ms, row.is_orphan, worker=worker.worker, lost=lost)
    return tuple(sorted(found.values(), key=lambda each: (-each.units, each.since_ms or 0, each.unit)))
