"""Views as the bodies of JSON documents; the shapes are pinned by render/schemas. Instants in ms since 1970, UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flowctl.broker.host_view import BundleView
from flowctl.broker.reason import LabelOf, Reason, label_units
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import AttemptView, RunView, StepView, UnitView
from flowctl.broker.worker_view import DEVICE, Device, WorkerView
from flowctl.render.amounts import amount, amounts
from flowctl.render.failures import group_failures
from flowctl.render.summary import ConfigOf, notice_lines
from flowctl.workers.trial_process import TrialPlace

NOTHING: Mapping[int, int | None] = MappingProxyType({})


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
        "best": best_bodies(snap, config_of),
        "notices": list(notice_lines(snap).values()),
        "active": [unit_body(run, unit) for unit in snap.active],
        "pending": [reason_body(reason) for reason in snap.reasons],
        "failed": [
            {"error": group.headline, "place": group.place, "count": group.count, "trials": list(group.labels)}
            for group in group_failures(run, snap.failed)
        ],
        "lost_contact": [{"worker": worker.worker, "since_ms": worker.last_ms} for worker in snap.out_of_contact()],
    }


def best_bodies(snap: Snapshot, config_of: ConfigOf) -> list[dict[str, Any]]:
    """The best trial of each experiment that has one, with its configuration."""
    return [
        {**unit_body(snap.run, unit), "config": dict(config_of(step, unit.index))} for step, unit in snap.best.items()
    ]


def trial_body(
    run: RunView,
    unit: UnitView,
    attempts: Sequence[AttemptView],
    config: Mapping[str, Any],
    reason: Reason | None,
    output: Any = None,
    began: Mapping[int, int | None] = NOTHING,
    process: TrialPlace | None = None,
    bundles: Sequence[BundleView] = (),
) -> dict[str, Any]:
    """Everything that `status RUN/7` shows."""
    return {
        **unit_body(run, unit),
        "run": run.run,
        "config": dict(config),
        "output": output,
        "pending": reason_body(reason) if reason else None,
        "process": {"host": process.host, "pid": process.pid} if process is not None else None,
        "bundles": [{"index": each.index, "worker": each.worker, "code": each.code} for each in bundles],
        "history": [{**attempt_body(each), "from_iteration": began.get(each.epoch)} for each in attempts],
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
        "impossible": reason.is_impossible,
        "nearest": reason.nearest,
        "lacking": {
            dim: {
                "asked": amount(dim, each.asked),
                "offered": amount(dim, each.offered),
                "free": amount(dim, each.free),
            }
            for dim, each in reason.lacking.items()
        },
        "holders": [
            {
                "trial": each.trial or each.unit,
                "tokens": amount(next(iter(reason.lacking), ""), each.units) if each.units else None,
                "since_ms": each.since_ms,
                "orphan": each.is_orphan,
                "worker": each.worker or None,
            }
            for each in reason.holders
        ],
    }


def worker_body(worker: WorkerView, *, at_ms: int, label_of: LabelOf) -> dict[str, Any]:
    """One worker; token amounts as people write them (cores, devices, MiB)."""
    return {
        "worker": worker.worker,
        "host": worker.host,
        "pid": worker.pid,
        "boot": worker.boot,
        "state": worker.state if worker.has_contact(at_ms) else "lost contact",
        "accepting": worker.is_accepting and not worker.is_quarantined,
        "python": worker.python,
        "version": worker.version,
        "only_run": worker.only_run,
        "started_ms": worker.started_ms,
        "last_beat_ms": worker.last_ms,
        "offer": amounts(worker.offer),
        "used": amounts({dim: worker.used.get(dim, 0) for dim in worker.offer}),
        "labels": list(worker.labels),
        "devices": [device_body(worker, device) for device in worker.devices],
        "reason": label_units(worker.reason, label_of) if worker.reason else None,
        "quarantined_ms": worker.quarantined_ms,
        "units": list(dict.fromkeys(held.unit for held in worker.held if not held.is_orphan)),
        "unconfirmed": list(dict.fromkeys(held.unit for held in worker.held if held.is_orphan)),
    }


def device_body(worker: WorkerView, device: Device) -> dict[str, Any]:
    """One GPU; `offered` is 0 while another worker of the machine offers it."""
    dim = f"{DEVICE}{device.id}"
    return {
        "id": device.id,
        "visible": device.visible,
        "name": device.name,
        "memory_mib": device.memory_mib,
        "offered": amount("gpu", worker.offer.get(dim, 0)),
        "used": amount("gpu", worker.used.get(dim, 0)),
    }
