"""Everything that a person watching one run sees: counts, active and failed trials, best, reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowctl.broker.best_view import best_so_far
from flowctl.broker.reason import Reason, out_of_service, restore_cure
from flowctl.broker.reasons import pending_reasons, with_lacks
from flowctl.broker.unit_names import UnitNames
from flowctl.broker.view import RunView, UnitView, active_units, failed_units, load_run, now_ms
from flowctl.broker.worker_view import WorkerView, load_workers


@dataclass(frozen=True)
class Snapshot:
    """One look at a run. `best`: the best trial per experiment step that has one; `at_ms`: the server's clock."""

    at_ms: int
    run: RunView
    workers: tuple[WorkerView, ...]
    active: tuple[UnitView, ...]
    failed: tuple[UnitView, ...]
    best: Mapping[str, UnitView]
    reasons: tuple[Reason, ...]
    notices: Mapping[str, str] = field(default_factory=dict)
    """What is to be known of workers that are out of service; the key stays the same while that lasts."""

    def out_of_contact(self) -> list[WorkerView]:
        """Workers with trials of this run, or tokens held by what is left of some, that were not heard of lately; also
        those that hold what it waits for.
        """
        boots = {unit.boot for unit in self.active}
        waited = {each.worker for reason in self.reasons for each in reason.holders if each.lost is not None}
        return [
            worker
            for worker in self.workers
            if not worker.has_contact(self.at_ms)
            and (worker.boot in boots or worker.worker in waited or _holds(worker, self.run.run))
        ]


def take_snapshot(client: Any, run: str, *, gone_ms: int | None = None) -> Snapshot | None:
    """Reads a run; None if the server knows no such run. The cost does not grow with the number of pending trials.

    A worker is given up after `gone_ms` of silence, where that is known.
    """
    found = load_run(client, run)
    if found is None:
        return None
    at_ms = now_ms(client)
    workers = load_workers(client)
    best = {step.name: best_so_far(client, step) for step in found.experiments}
    active = tuple(active_units(client, run))
    label_of = UnitNames(client, found).label
    return Snapshot(
        at_ms=at_ms,
        run=found,
        workers=tuple(workers),
        active=active,
        failed=tuple(with_lacks(client, found, failed_units(client, run), workers, at_ms=at_ms)),
        best={name: unit for name, unit in best.items() if unit is not None},
        reasons=tuple(pending_reasons(client, found, workers, at_ms=at_ms, gone_ms=gone_ms)),
        notices={
            f"quarantine: {worker.boot} {worker.quarantined_ms}": (
                f"{out_of_service(worker, at_ms=at_ms, label_of=label_of)}; {restore_cure(worker)}"
            )
            for worker in workers
            if worker.is_quarantined and _concerns(worker, found, active)
        },
    )


def _concerns(worker: WorkerView, run: RunView, active: Sequence[UnitView]) -> bool:
    """Whether a run's trials use a worker: they failed or run there, or wait and could run there."""
    if f" {run.run}:" in (worker.reason or "") or _holds(worker, run.run):
        return True
    if any(unit.boot == worker.boot for unit in active):
        return True
    is_open = not run.ended and run.counts()["pending"] > 0
    return is_open and worker.only_run in (None, run.run) and worker.python == run.python


def _holds(worker: WorkerView, run: str) -> bool:
    return any(row.unit.startswith(f"{run}:") for row in worker.held)
