"""Why pending trials are pending: one reason for each, gathered from the server (D14).

A reason names the lacking resource, how much was asked, the nearest worker and who holds what it has. It explains; it
decides nothing: placement does not read this module.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from flowctl.broker.cluster_view import ClusterView, cluster_of
from flowctl.broker.explain import explain, is_able
from flowctl.broker.reason import Finding, Holder, Reason, held_text
from flowctl.broker.shape_view import Shape, load_shapes, show_shape
from flowctl.broker.unit_names import UnitNames
from flowctl.broker.view import RunView, StepView, UnitView
from flowctl.broker.worker_view import WorkerView
from flowctl.dsl.states import STEP_ENDED

_SAMPLE = 200
_MAX_HOLDERS = 10
_WRITING = "its records are being written"


def pending_reasons(
    client: Any, run: RunView, workers: Sequence[WorkerView], *, at_ms: int, gone_ms: int | None = None
) -> list[Reason]:
    """The reasons of all pending units of a run, grouped; the counts add up to the run's pending units.

    A worker is given up after `gone_ms` of silence, where that is known.
    """
    gathering = Gathering(client, run, cluster_of(client, workers, at_ms=at_ms, gone_ms=gone_ms))
    reasons: list[Reason] = []
    for step in run.steps:
        pending = step.counts["pending"]
        if not pending or step.state not in ("waiting", "ready", "running"):
            continue
        early = _before_placement(run, step)
        if early is not None:
            reasons.append(Reason.of(early, count=pending, step=step.name))
        else:
            reasons += gathering.of_step(step)
    return sorted(reasons, key=lambda reason: (-reason.count, reason.step, reason.text))


def unit_reason(
    client: Any,
    run: RunView,
    step: StepView,
    unit: UnitView,
    workers: Sequence[WorkerView],
    *,
    at_ms: int,
    gone_ms: int | None = None,
) -> Reason:
    """The reason of one pending unit."""
    early = _before_placement(run, step)
    if early is not None:
        return Reason.of(early, count=1, step=step.name)
    if unit.not_before_ms is not None and unit.not_before_ms > at_ms:
        return Reason("delayed", _delay_text(unit.reason, unit.not_before_ms, at_ms), 1, step.name)
    found = Gathering(client, run, cluster_of(client, workers, at_ms=at_ms, gone_ms=gone_ms)).of_unit(step, unit)
    return Reason.of(found, count=1, step=step.name)


def with_lacks(
    client: Any, run: RunView, units: Sequence[UnitView], workers: Sequence[WorkerView], *, at_ms: int
) -> list[UnitView]:
    """The units, with what those lack that were pending for too long: as it stands now, a cause of its own time it has
    none.
    """
    if not any(unit.cause is not None and unit.cause.kind == "infeasible" for unit in units):
        return list(units)
    gathering = Gathering(client, run, cluster_of(client, workers, at_ms=at_ms))
    return [gathering.with_lack(unit) for unit in units]


def able_workers(client: Any, run: RunView, workers: Sequence[WorkerView], *, at_ms: int) -> list[WorkerView]:
    """Those that could take something of what is left of a run if they were idle; all while its needs are not known."""
    pipe = client.pipeline(transaction=False)
    for step in run.steps:
        if step.state not in STEP_ENDED:
            pipe.smembers(f"fc:stepshapes:{run.run}:{step.name}")
    shapes = load_shapes(client, sorted(set().union(*pipe.execute()))).values()
    cluster = cluster_of(client, workers, at_ms=at_ms)
    return [each for each in workers if not shapes or any(is_able(each, shape, cluster) for shape in shapes)]


class Gathering:
    """One look at the cluster for the pending units of one run; what was read once is not read again."""

    def __init__(
        self, client: Any, run: RunView, cluster: ClusterView, *, shared: dict[Any, Finding] | None = None
    ) -> None:
        """`shared` keeps what was found for a shape, for all runs that one look is about."""
        self._client = client
        self._run = run
        self._cluster = cluster
        self._names = UnitNames(client, run)
        self._found: dict[tuple[str, str], str] = {}
        self._shared = {} if shared is None else shared
        kept = cluster.reservation
        is_special = any(worker.only_run for worker in cluster.workers) or (
            kept is not None and kept.bucket.startswith(f"{run.run}:")
        )
        self._owner = run.run if is_special else ""

    def of_shape(self, step: StepView, shape_id: str, shape: Shape) -> Finding:
        """What keeps a step's trials of one shape waiting, wherever they failed before."""
        full = self._full(step)
        key = (self._owner, step.name if self._owner else "", shape_id, full is not None)
        if key not in self._shared:
            self._shared[key] = self._explain(step, shape_id, shape, full=full)
        found = self._shared[key]
        return full if full is not None and found.kind == "limit" else found

    def of_step(self, step: StepView) -> list[Reason]:
        client, run = self._client, self._run.run
        ids = sorted(cast(set[str], client.smembers(f"fc:stepshapes:{run}:{step.name}")))
        pipe = client.pipeline(transaction=False)
        for shape in ids:
            pipe.zcard(f"fc:bucket:{run}:{step.name}:{shape}")
        sizes = pipe.execute() if ids else []
        shapes = load_shapes(client, ids)
        full = self._full(step)

        reasons: list[Reason] = []
        left = step.counts["pending"]
        for shape_id, size in zip(ids, sizes, strict=True):
            count = min(left, size)
            if not count or shape_id not in shapes:
                continue
            left -= count
            reasons += self._of_bucket(step, shape_id, shapes[shape_id], count, full)
        for reason in _delayed(client, run, step.name, at_ms=self._cluster.at_ms) if left else ():
            reasons.append(replace(reason, count=min(left, reason.count)))
            left -= reasons[-1].count
        if left:
            reasons.append(Reason("placing", _WRITING, left, step.name))
        return reasons

    def of_unit(self, step: StepView, unit: UnitView) -> Finding:
        shapes = load_shapes(self._client, [unit.shape] if unit.shape else [])
        if not unit.shape or not shapes:
            return Finding("placing", _WRITING)
        avoid = _names(self._client.hget(f"fc:unit:{unit.unit}", "avoid"))
        return self._explain(step, unit.shape, shapes[unit.shape], full=self._full(step), avoid=avoid)

    def with_lack(self, unit: UnitView) -> UnitView:
        step = self._run.step(unit.step)
        if unit.cause is None or unit.cause.kind != "infeasible" or step is None or not unit.shape:
            return unit
        key = (unit.step, unit.shape)
        if key not in self._found:
            self._found[key] = self._lack(step, unit)
        return replace(unit, cause=replace(unit.cause, text=f"{unit.cause.text}: {self._found[key]}"))

    def _lack(self, step: StepView, unit: UnitView) -> str:
        shapes = load_shapes(self._client, [unit.shape or ""])
        found = self.of_unit(step, unit)
        if found.kind != "placing":
            return found.text
        asked = show_shape(next(iter(shapes.values()))) if shapes else "what it asked for"
        return f"{asked} was not free; it is now"

    def _of_bucket(
        self, step: StepView, shape_id: str, shape: Shape, count: int, full: Finding | None
    ) -> Iterator[Reason]:
        found = self._explain(step, shape_id, shape, full=full)
        left = count
        if found.kind == "placing" and not shape.is_gang:
            for avoid, units in self._avoiding(step, shape_id).items():
                other = self._explain(step, shape_id, shape, full=full, avoid=avoid)
                if other.kind == "avoided" and left:
                    yield Reason.of(other, count=min(units, left), step=step.name)
                    left -= min(units, left)
        if left:
            yield Reason.of(found, count=left, step=step.name)

    def _avoiding(self, step: StepView, shape_id: str) -> Counter[tuple[str, ...]]:
        """The workers that the first units of a bucket avoid, with how many units avoid them."""
        key = f"fc:bucket:{self._run.run}:{step.name}:{shape_id}"
        pipe = self._client.pipeline(transaction=False)
        units = cast(list[str], self._client.zrange(key, 0, _SAMPLE - 1))
        for unit in units:
            pipe.hget(f"fc:unit:{unit}", "avoid")
        told = pipe.execute() if units else []
        return Counter(names for text in told if (names := _names(text)))

    def _explain(
        self, step: StepView, shape_id: str, shape: Shape, *, full: Finding | None, avoid: Sequence[str] = ()
    ) -> Finding:
        found = explain(
            shape,
            self._cluster,
            run=self._run.run,
            bucket=f"{self._run.run}:{step.name}:{shape_id}",
            full=full,
            avoid=avoid,
            label_of=self._names.label,
        )
        return replace(found, holders=tuple(self._named(each) for each in found.holders[:_MAX_HOLDERS]))

    def _named(self, holder: Holder) -> Holder:
        return replace(holder, trial=self._names.label(holder.unit))

    def _full(self, step: StepView) -> Finding | None:
        """The limit that the step or its run has reached, if any."""
        run = self._run.run
        values = self._client.hmget("fc:limits", [f"{run}:{step.name}", run])
        active = {f"{run}:{step.name}": _active(step), run: sum(map(_active, self._run.steps))}
        for (name, at_once), text in zip(active.items(), values, strict=True):
            if text is not None and at_once >= int(float(text)):
                return self._limit(name, int(float(text)), at_once)
        return None

    def _limit(self, name: str, limit: int, at_once: int) -> Finding:
        rows = [row for _, row in self._cluster.held() if row.unit.startswith(f"{name}:") and not row.is_orphan]
        holders = tuple(Holder(row.unit, 0, row.since_ms) for row in rows if row.bundle == 0)
        told = held_text(holders, at_ms=self._cluster.at_ms, label_of=self._names.label)
        whose = name.replace(":", "/")
        text = f"max_concurrent_trials of {whose} is {limit}, and {at_once} {'runs' if at_once == 1 else 'run'}{told}"
        return Finding("limit", text, f"flowctl set {whose} max_concurrent_trials={limit + 1}", holders=holders)


def _active(step: StepView) -> int:
    return step.counts["placed"] + step.counts["running"]


def _before_placement(run: RunView, step: StepView) -> Finding | None:
    """What comes before any question of room."""
    if run.wanted == "cancel":
        return Finding("run_cancelled", "the run is being cancelled")
    if step.state == "waiting":
        return Finding("waits_for_steps", f"waits for {', '.join(_unfinished(run, step)) or 'its turn'}")
    return None


def _unfinished(run: RunView, step: StepView) -> list[str]:
    states = {each.name: each.state for each in run.steps}
    return [name for name in step.after if states.get(name) != "completed"]


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(sorted(json.loads(text))) if text else ()


def _delayed(client: Any, run: str, step: str, *, at_ms: int) -> list[Reason]:
    """Units that wait for an instant, grouped by what made them wait (read from the first of them only)."""
    mine = sorted(
        (ms, unit) for unit, ms in client.zscan_iter("fc:delayed", match=f"{_literal(run)}:{step}:*", count=1000)
    )
    pipe = client.pipeline(transaction=False)
    for _, unit in mine[:_SAMPLE]:
        pipe.hget(f"fc:unit:{unit}", "reason")
    told = pipe.execute() if mine else []
    groups: dict[str, list[float]] = {}
    for i, (ms, _) in enumerate(mine):
        groups.setdefault((told[i] if i < len(told) else None) or "delayed", []).append(ms)
    return [Reason("delayed", _delay_text(text, times[0], at_ms), len(times), step) for text, times in groups.items()]


def _delay_text(reason: str | None, not_before_ms: float, at_ms: int) -> str:
    return f"{reason or 'delayed'}; the next attempt in {max(0.0, not_before_ms - at_ms) / 1000:.0f} s"


def _literal(text: str) -> str:
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in text)
