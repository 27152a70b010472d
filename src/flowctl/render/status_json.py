"""Views as the bodies of JSON documents; the shapes are pinned by render/schemas. Instants in ms since 1970, UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowctl.broker.reasons import Reason
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import AttemptView, RunView, StepView, UnitView
from flowctl.broker.worker_view import WorkerView
from flowctl.render.failures import group_failures
from flowctl.render.summary import ConfigOf


def run_body(run: RunView, *, at_ms: int) -> dict[str, Any]:
    """A run without its steps."""
    return {
        "run": run.run,
        "name": run.name,
        "state": run.state,
        "wanted": run.wanted,
        "reason": run.reason,
        "flow": run.flow,
        "location": run.location,
        "python": run.python,
        "created_ms": run.created_ms,
        "ended_ms": run.ended_ms,
        "duration_s": ((run.ended_ms or at_ms) - run.created_ms) / 1000,
        "counts": run.counts(),
    }


def status_body(snap: Snapshot, config_of: ConfigOf) -> dict[str, Any]:
    """Everything that `status RUN` shows."""
    run = snap.run
    return {
        **run_body(run, at_ms=snap.at_ms),
        "steps": [step_body(step) for step in run.steps],
        "best": [
            {**unit_body(run, unit), "config": dict(config_of(step, unit.index))} for step, unit in snap.best.items()
        ],
        "active": [unit_body(run, unit) for unit in snap.active],
        "pending": [reason_body(reason) for reason in snap.reasons],
        "failed": [
            {"error": group.headline, "place": group.place, "count": group.count, "trials": list(group.labels)}
            for group in group_failures(run, snap.failed)
        ],
        "lost_contact": [{"worker": worker.worker, "since_ms": worker.last_ms} for worker in snap.out_of_contact()],
    }


def trial_body(
    run: RunView,
    unit: UnitView,
    attempts: Sequence[AttemptView],
    config: Mapping[str, Any],
    reason: Reason | None,
    output: Any = None,
) -> dict[str, Any]:
    """Everything that `status RUN/7` shows."""
    return {
        **unit_body(run, unit),
        "run": run.run,
        "config": dict(config),
        "output": output,
        "pending": reason_body(reason) if reason else None,
        "history": [attempt_body(attempt) for attempt in attempts],
    }


def step_body(step: StepView) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "after": list(step.after),
        "metric": step.metric,
        "mode": step.mode,
        "reason": step.reason,
        "started_ms": step.started_ms,
        "ended_ms": step.ended_ms,
        "counts": {**step.counts, "total": step.total},
    }


def unit_body(run: RunView, unit: UnitView) -> dict[str, Any]:
    return {
        "trial": run.label(unit.step, unit.index),
        "step": unit.step,
        "index": unit.index,
        "state": unit.state,
        "reason": unit.reason,
        "cause": unit.cause.to_json() if unit.cause else None,
        "attempts": unit.attempts,
        "failures": unit.fails,
        "losses": unit.losses,
        "worker": unit.worker,
        "started_ms": unit.first_started_ms or unit.started_ms,
        "ended_ms": unit.ended_ms,
        "iteration": unit.iteration,
        "metrics": dict(unit.last),
        "best": best_body(unit),
        "checkpoint": dict(unit.checkpoint) if unit.checkpoint else None,
    }


def best_body(unit: UnitView) -> dict[str, Any] | None:
    if unit.best is None:
        return None
    return {"value": unit.best, "iteration": unit.best_iteration, "metrics": dict(unit.best_metrics)}


def attempt_body(attempt: AttemptView) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "epoch": attempt.epoch,
        "worker": attempt.worker,
        "started_ms": attempt.started_ms,
        "ended_ms": attempt.ended_ms,
        "outcome": attempt.outcome,
        "cause": attempt.cause.to_json() if attempt.cause else None,
    }


def reason_body(reason: Reason) -> dict[str, Any]:
    return {
        "step": reason.step,
        "count": reason.count,
        "kind": reason.kind,
        "text": reason.text,
        "cure": reason.cure,
    }


def worker_body(worker: WorkerView, *, at_ms: int) -> dict[str, Any]:
    """One worker; token amounts as people write them (cores, devices, MiB)."""
    return {
        "worker": worker.worker,
        "host": worker.host,
        "pid": worker.pid,
        "boot": worker.boot,
        "state": worker.state if worker.has_contact(at_ms) else "lost contact",
        "accepting": worker.is_accepting,
        "python": worker.python,
        "version": worker.version,
        "only_run": worker.only_run,
        "started_ms": worker.started_ms,
        "last_beat_ms": worker.last_ms,
        "offer": {dim: amount(dim, units) for dim, units in sorted(worker.offer.items())},
        "used": {dim: amount(dim, worker.used.get(dim, 0)) for dim in sorted(worker.offer)},
        "units": [held.unit for held in worker.held if not held.is_orphan],
        "unconfirmed": [held.unit for held in worker.held if held.is_orphan],
    }


def amount(dimension: str, units: int) -> float | int:
    """Tokens as an amount: MiB of memory, cores or devices of everything else."""
    if dimension == "memory":
        return units
    return units // 10_000 if units % 10_000 == 0 else units / 10_000
