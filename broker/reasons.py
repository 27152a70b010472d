"""Why pending trials are pending: pure functions over a snapshot, and one reader that gathers it.

Every pending trial gets a reason that names the lacking resource and the nearest worker (D14). A reason explains; it
decides nothing: placement does not read this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from flowctl.broker.view import RunView, StepView, UnitView
from flowctl.broker.worker_view import WorkerView

TOKEN = 10_000
_SAMPLE = 200
_PLURAL = {"cpu": "cores", "gpu": "GPUs"}


@dataclass(frozen=True)
class Shape:
    """What a group of trials needs: tokens by dimension, a Python minor version, and the key that signed their run."""

    need: Mapping[str, int]
    python: str
    key: str


@dataclass(frozen=True)
class Reason:
    """One reason with the number of trials of one step that it holds for.

    `kind`: waits_for_steps, run_cancelled, no_worker, lost_contact, not_accepting, python, key, impossible, shared,
    busy, orphan, delayed, placing. `cure` is a command or an action.
    """

    kind: str
    text: str
    count: int
    step: str
    cure: str | None = None

    @property
    def is_impossible(self) -> bool:
        """No live worker could meet the request even if it were idle and alone on its machine."""
        return self.kind in ("impossible", "python", "key")


def show_tokens(dimension: str, units: int) -> str:
    """An amount as a person writes it: cpu 0.5, memory 2048 MiB."""
    if dimension == "memory":
        return f"{units} MiB"
    return f"{units / TOKEN:.4f}".rstrip("0").rstrip(".")


def show_need(need: Mapping[str, int]) -> str:
    """A request in one line, `cpu 1, gpu 0.5`; the slot that every trial takes is left out."""
    parts = [f"{dim} {show_tokens(dim, units)}" for dim, units in sorted(need.items()) if dim != "slot" and units]
    return ", ".join(parts) or "nothing but a slot"


def who(reason: Reason, run: RunView) -> str:
    """The trials that a reason is about: `1 trial of train`, `stage prepare`."""
    step = run.step(reason.step)
    if step is not None and not step.is_experiment:
        return f"stage {reason.step}"
    return f"{reason.count} trial{'' if reason.count == 1 else 's'} of {reason.step}"


def reason_for(shape: Shape, workers: Sequence[WorkerView], *, at_ms: int, run: str) -> tuple[str, str, str | None]:
    """The first thing that stands between a shape and a worker, as (kind, text, cure).

    Looks from the outside in: is any worker there, heard of, accepting, of the right Python, with the right key, on a
    machine that is large enough, offering enough of it, free enough. Ties between workers go to the one that lacks
    least, then to the first by name.
    """
    there = [worker for worker in workers if worker.state != "gone" and worker.only_run in (None, run)]
    if not there:
        return "no_worker", "no worker is up", "start one: flowctl worker"
    heard = [worker for worker in there if worker.has_contact(at_ms)]
    if not heard:
        last = max(there, key=lambda worker: worker.last_ms)
        return "lost_contact", f"lost contact with {last.worker}", "start another: flowctl worker"
    accepting = [worker for worker in heard if worker.state == "up" and worker.is_accepting]
    if not accepting:
        return "not_accepting", _not_accepting(heard), None
    same_python = [worker for worker in accepting if not shape.python or worker.python == shape.python]
    if not same_python:
        runs = ", ".join(f"{worker.worker} runs {worker.python}" for worker in accepting[:3])
        text = f"needs a worker on Python {shape.python}; {runs}"
        return "python", text, f"start a worker with Python {shape.python}"
    trusted = [worker for worker in same_python if not shape.key or shape.key in worker.keys]
    if not trusted:
        cure = "give the worker the key: the line that flowctl up --listen prints, or FLOWCTL_SECRET_KEY"
        return "key", f"no worker holds the key {shape.key} that signed this run", cure
    return _room(shape, trusted, workers)


def pending_reasons(client: Any, run: RunView, workers: Sequence[WorkerView], *, at_ms: int) -> list[Reason]:
    """The reasons of all pending units of a run, grouped; the counts add up to the run's pending units."""
    reasons: list[Reason] = []
    for step in run.steps:
        pending = step.counts["pending"]
        if not pending or step.state not in ("waiting", "ready", "running"):
            continue
        if run.wanted == "cancel":
            reasons.append(Reason("run_cancelled", "the run is being cancelled", pending, step.name))
        elif step.state == "waiting":
            text = f"waits for {', '.join(_unfinished(run, step)) or 'its turn'}"
            reasons.append(Reason("waits_for_steps", text, pending, step.name))
        else:
            reasons += _of_step(client, run, step, workers, at_ms=at_ms)
    return sorted(reasons, key=lambda reason: (-reason.count, reason.step, reason.text))


def unit_reason(
    client: Any, run: RunView, step: StepView, unit: UnitView, workers: Sequence[WorkerView], *, at_ms: int
) -> Reason:
    """The reason of one pending unit."""
    if run.wanted == "cancel":
        return Reason("run_cancelled", "the run is being cancelled", 1, step.name)
    if step.state == "waiting":
        return Reason("waits_for_steps", f"waits for {', '.join(_unfinished(run, step)) or 'its turn'}", 1, step.name)
    if unit.not_before_ms is not None and unit.not_before_ms > at_ms:
        return Reason("delayed", _delay_text(unit.reason, unit.not_before_ms, at_ms), 1, step.name)
    shapes = load_shapes(client, [unit.shape] if unit.shape else [])
    if not shapes:
        return Reason("placing", "its records are being written", 1, step.name)
    kind, text, cure = reason_for(next(iter(shapes.values())), workers, at_ms=at_ms, run=run.run)
    return Reason(kind, text, 1, step.name, cure)


def load_shapes(client: Any, ids: Sequence[str]) -> dict[str, Shape]:
    """Shapes by id; unknown ids are left out."""
    rows = cast(list[str | None], client.hmget("fc:shapes", ids)) if ids else []
    return {shape: _shape(json.loads(row)) for shape, row in zip(ids, rows, strict=True) if row}


def _of_step(client: Any, run: RunView, step: StepView, workers: Sequence[WorkerView], *, at_ms: int) -> list[Reason]:
    ids = sorted(cast(set[str], client.smembers(f"fc:stepshapes:{run.run}:{step.name}")))
    pipe = client.pipeline(transaction=False)
    for shape in ids:
        pipe.zcard(f"fc:bucket:{run.run}:{step.name}:{shape}")
    sizes = pipe.execute() if ids else []
    shapes = load_shapes(client, ids)

    reasons: list[Reason] = []
    left = step.counts["pending"]
    for shape_id, size in zip(ids, sizes, strict=True):
        count = min(left, size)
        if not count or shape_id not in shapes:
            continue
        left -= count
        kind, text, cure = reason_for(shapes[shape_id], workers, at_ms=at_ms, run=run.run)
        reasons.append(Reason(kind, text, count, step.name, cure))
    for reason in _delayed(client, run.run, step.name, at_ms=at_ms) if left else ():
        reasons.append(replace(reason, count=min(left, reason.count)))
        left -= reasons[-1].count
    if left:
        reasons.append(Reason("placing", "its records are being written", left, step.name))
    return reasons


def _room(shape: Shape, workers: Sequence[WorkerView], everyone: Sequence[WorkerView]) -> tuple[str, str, str | None]:
    able = [worker for worker in workers if not _lacking(shape.need, worker.offer)]
    if not able:
        lacks = {worker.boot: _lacking(shape.need, _reach(worker)) for worker in workers}
        later = [worker for worker in workers if not lacks[worker.boot]]
        if later:
            return _shared(shape, later, everyone)
        nearest = min(workers, key=lambda worker: _distance(shape.need, lacks[worker.boot]))
        dim = max(lacks[nearest.boot], key=lambda name: lacks[nearest.boot][name] / shape.need[name])
        most = _reach(nearest).get(dim, 0)
        has = "offers" if most == nearest.offer.get(dim, 0) else "can offer at most"
        text = (
            f"needs {dim} {show_tokens(dim, shape.need[dim])}; "
            f"the nearest worker, {nearest.worker}, {has} {show_tokens(dim, most)}"
        )
        return (
            "impossible",
            text,
            f"start one that does: flowctl worker --resources {dim}={_as_option(dim, shape.need[dim])}",
        )
    free = {worker.boot: _lacking(shape.need, {dim: worker.free(dim) for dim in worker.offer}) for worker in able}
    if any(not lacking for lacking in free.values()):
        return "placing", "about to be placed", None
    nearest = min(able, key=lambda worker: _distance(shape.need, free[worker.boot]))
    lacking = free[nearest.boot]
    dim = max(lacking, key=lambda name: lacking[name] / shape.need[name])
    orphaned = sum(held.tokens.get(dim, 0) for held in nearest.held if held.is_orphan)
    if orphaned >= lacking[dim]:
        held_text = f"{dim} {show_tokens(dim, orphaned)}"
        text = f"{nearest.worker} still holds {held_text} of attempts whose end it has not confirmed"
        return "orphan", text, None
    free_units = max(0, nearest.free(dim))
    text = (
        f"waits for {dim}: needs {show_tokens(dim, shape.need[dim])}, "
        f"{nearest.worker} has {show_tokens(dim, free_units)} of {show_tokens(dim, nearest.offer[dim])} free"
    )
    return "busy", text, None


def _reach(worker: WorkerView) -> dict[str, int]:
    """What a worker offers once it is alone on its machine: what was declared, and all that it detected."""
    return {**worker.offer, **{dim: max(units, worker.offer.get(dim, 0)) for dim, units in worker.detected.items()}}


def _shared(shape: Shape, workers: Sequence[WorkerView], everyone: Sequence[WorkerView]) -> tuple[str, str, str | None]:
    """Why workers that could offer enough do not: others of their machine offer it until they leave."""
    nearest = min(workers, key=lambda worker: _distance(shape.need, _lacking(shape.need, worker.offer)))
    lacking = _lacking(shape.need, nearest.offer)
    dim = max(lacking, key=lambda name: lacking[name] / shape.need[name])
    holders = [
        each
        for each in everyone
        if each.boot != nearest.boot and each.machine == nearest.machine and each.offer.get(dim, 0) > 0
    ]
    if not holders:
        return "placing", "about to be placed", None
    named = [f"{each.worker} (run {each.only_run})" if each.only_run else each.worker for each in holders[:3]]
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    text = (
        f"the {_PLURAL.get(dim, dim)} of {nearest.worker}'s machine are offered by "
        f"{'worker' if len(holders) == 1 else 'workers'} {', '.join(named)}{more}; waits for them"
    )
    return "shared", text, None


def _lacking(need: Mapping[str, int], have: Mapping[str, int]) -> dict[str, int]:
    return {dim: units - have.get(dim, 0) for dim, units in need.items() if units > have.get(dim, 0)}


def _distance(need: Mapping[str, int], lacking: Mapping[str, int]) -> tuple[int, float]:
    return len(lacking), sum(units / need[dim] for dim, units in lacking.items())


def _as_option(dimension: str, units: int) -> str:
    return f"{units}MiB" if dimension == "memory" else show_tokens(dimension, units)


def _unfinished(run: RunView, step: StepView) -> list[str]:
    states = {each.name: each.state for each in run.steps}
    return [name for name in step.after if states.get(name) != "completed"]


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


def _shape(data: Mapping[str, object]) -> Shape:
    need = cast(Mapping[str, int], data.get("need") or {})
    return Shape(
        need={dim: int(units) for dim, units in need.items()},
        python=str(data.get("python") or ""),
        key=str(data.get("key") or ""),
    )


def _not_accepting(workers: Sequence[WorkerView]) -> str:
    starting = [worker for worker in workers if worker.state == "up"]
    if starting:
        return f"{_list(starting)} {'has' if len(starting) == 1 else 'have'} not begun to take work"
    return f"{_list(workers)} {'is' if len(workers) == 1 else 'are'} draining"


def _list(workers: Sequence[WorkerView]) -> str:
    names = [worker.worker for worker in workers]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
