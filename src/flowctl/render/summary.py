"""The parts of a run's summary as plain lines: what `status` prints, and what the live view draws with colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flowctl.broker.reasons import Reason, show_tokens
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import COUNTED, RunView, StepView
from flowctl.broker.worker_view import WorkerView
from flowctl.render.clock import clock, span_ms
from flowctl.render.failures import group_failures
from flowctl.render.table import cut, number, pairs

ConfigOf: TypeAlias = Callable[[str, int], Mapping[str, Any]]
"""The configuration of trial (step, index), or an empty mapping where it cannot be read."""

MAX_REASONS = 8
MAX_FAILURES = 5


def header(snap: Snapshot) -> str:
    """`digits  running  1m 03s  12 completed, 4 running, 8 pending of 24`."""
    run = snap.run
    wanted = " (cancelling)" if run.wanted == "cancel" and not run.ended else ""
    elapsed = span_ms(run.created_ms, run.ended_ms or snap.at_ms)
    return f"{run.run}  {run.state}{wanted}  {elapsed}  {count_text(run.counts())}"


def count_text(counts: Mapping[str, int]) -> str:
    """Counts per status, the ones that are zero left out."""
    order = ("completed", "failed", "cancelled", "running", "placed", "pending")
    parts = [f"{counts[state]} {state}" for state in order if counts.get(state)]
    return f"{', '.join(parts) or 'nothing yet'} of {counts['total']}"


def ended_count(counts: Mapping[str, int]) -> int:
    return counts["completed"] + counts["failed"] + counts["cancelled"]


def step_rows(run: RunView) -> list[list[str]]:
    """One row per step: name, kind, state, counts, and why it was skipped or what it waits for."""
    return [
        [step.name, step.kind, step.state, count_text({**step.counts, "total": step.total}), _note(step)]
        for step in run.steps
    ]


def best_lines(snap: Snapshot, config_of: ConfigOf) -> list[str]:
    """The best trial of each experiment: value, trial, iteration and configuration."""
    lines = []
    for step in snap.run.experiments:
        unit = snap.best.get(step.name)
        if unit is None or unit.best is None:
            continue
        label = snap.run.label(step.name, unit.index)
        config = pairs(config_of(step.name, unit.index))
        lines.append(
            f"best {step.metric} {number(unit.best)}  {label} (iteration {unit.best_iteration})  {config}".rstrip()
        )
    return lines


def running_rows(snap: Snapshot) -> list[list[str]]:
    """One row per trial that is placed or runs: trial, state, iteration, last metrics, worker, time."""
    names = {worker.boot: worker.worker for worker in snap.workers}
    rows = []
    for unit in snap.active:
        worker = names.get(unit.boot or "", unit.worker or "")
        since = unit.started_ms if unit.state == "running" else unit.since_ms
        attempt = f" (attempt {unit.attempts})" if unit.attempts > 1 else ""
        rows.append(
            [
                snap.run.label(unit.step, unit.index),
                f"{unit.state}{attempt}",
                str(unit.iteration or ""),
                cut(pairs(unit.last, limit=4, width=16), 60),
                worker,
                span_ms(since, snap.at_ms),
            ]
        )
    return rows


RUNNING_HEAD = ["trial", "state", "iteration", "last report", "worker", "time"]


def contact_lines(snap: Snapshot) -> list[str]:
    """Workers of this run that were not heard of lately."""
    return [lost_contact(worker) for worker in snap.out_of_contact()]


def lost_contact(worker: WorkerView) -> str:
    return f"lost contact with {worker.worker} since {clock(worker.last_ms)}"


def pending_lines(snap: Snapshot) -> list[str]:
    """Pending trials by reason, each with its count and its cure."""
    several = len(snap.run.steps) > 1
    lines = [reason_line(reason, several=several) for reason in snap.reasons[:MAX_REASONS]]
    hidden = sum(reason.count for reason in snap.reasons[MAX_REASONS:])
    return [*lines, f"{hidden} pending for other reasons"] if hidden else lines


def reason_line(reason: Reason, *, several: bool) -> str:
    where = f" of {reason.step}" if several else ""
    cure = f"; {reason.cure}" if reason.cure else ""
    return f"{reason.count} pending{where}: {reason.text}{cure}"


def failure_lines(snap: Snapshot) -> list[str]:
    """Failures grouped by cause and place, with the command that shows the log."""
    groups = group_failures(snap.run, snap.failed)
    lines = [line for group in groups[:MAX_FAILURES] for line in group.lines()]
    hidden = sum(group.count for group in groups[MAX_FAILURES:])
    return [*lines, f"{hidden} more failed for other reasons"] if hidden else lines


def token_text(offer: Mapping[str, int], used: Mapping[str, int]) -> str:
    """`cpu 1/2, slot 3/10`: used of offered."""
    dims = sorted(offer, key=lambda dim: (dim == "slot", dim))
    return ", ".join(f"{dim} {show_tokens(dim, used.get(dim, 0))}/{show_tokens(dim, offer[dim])}" for dim in dims)


def _note(step: StepView) -> str:
    if step.state == "waiting":
        return f"after {', '.join(step.after)}"
    return step.reason or ""


def zero_counts() -> dict[str, int]:
    """Counts of a run of which nothing is known yet."""
    return dict.fromkeys((*COUNTED, "total"), 0)
