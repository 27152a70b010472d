"""Everything that a person watching one run sees: counts, active and failed trials, best, reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowctl.broker.best_view import best_so_far
from flowctl.broker.reason import Reason
from flowctl.broker.reasons import pending_reasons, with_lacks
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

    def out_of_contact(self) -> list[WorkerView]:
        """Workers with trials of this run that were not heard of lately."""
        boots = {unit.boot for unit in self.active}
        return [worker for worker in self.workers if worker.boot in boots and not worker.has_contact(self.at_ms)]


def take_snapshot(client: Any, run: str) -> Snapshot | None:
    """Reads a run; None if the server knows no such run. The cost does not grow with the number of pending trials."""
    found = load_run(client, run)
    if found is None:
        return None
    at_ms = now_ms(client)
    workers = load_workers(client)
    best = {step.name: best_so_far(client, step) for step in found.experiments}
    return Snapshot(
        at_ms=at_ms,
        run=found,
        workers=tuple(workers),
        active=tuple(active_units(client, run)),
        failed=tuple(with_lacks(client, found, failed_units(client, run), workers, at_ms=at_ms)),
        best={name: unit for name, unit in best.items() if unit is not None},
        reasons=tuple(pending_reasons(client, found, workers, at_ms=at_ms)),
    )
