"""What `flowctl status` prints: a run, or one trial with all its attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowctl.broker.reasons import Reason
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import AttemptView, RunView, UnitView
from flowctl.render.clock import clock, span_ms
from flowctl.render.summary import (
    RUNNING_HEAD,
    ConfigOf,
    best_lines,
    contact_lines,
    failure_lines,
    header,
    pending_lines,
    running_rows,
    step_rows,
)
from flowctl.render.table import flatten, number, table


def run_text(snap: Snapshot, config_of: ConfigOf) -> str:
    """A run: its head, its steps, the best, what runs, what waits and why, what failed."""
    run = snap.run
    parts = [header(snap)]
    if run.reason and run.ended:
        parts.append(f"reason: {run.reason}")
    if run.name != run.run:
        parts.append(f"name: {run.name}")
    parts.append(f"stored in {run.location}")
    if len(run.steps) > 1:
        parts += ["", table(["step", "kind", "state", "trials", ""], step_rows(run))]
    for lines in (best_lines(snap, config_of), contact_lines(snap), pending_lines(snap)):
        parts += ["", *lines] if lines else []
    rows = running_rows(snap)
    if rows:
        parts += ["", table(RUNNING_HEAD, rows)]
    failures = failure_lines(snap)
    if failures:
        parts += ["", "failed:", *failures]
    return "\n".join(parts)


def trial_text(
    run: RunView,
    unit: UnitView,
    attempts: Sequence[AttemptView],
    config: Mapping[str, Any],
    *,
    at_ms: int,
    reason: Reason | None,
    output: Any = None,
) -> str:
    """One trial: state and why, configuration, last report, checkpoint, every attempt with its cause."""
    label = run.label(unit.step, unit.index)
    end_ms = unit.ended_ms or at_ms
    lines = [f"{label}  {unit.state}  {span_ms(unit.first_started_ms or unit.started_ms, end_ms)}".rstrip()]
    if unit.reason:
        lines.append(f"reason: {unit.reason}")
    if unit.state == "failed" and unit.cause:
        lines.append(f"error: {unit.cause.headline()}" + (f"  at {unit.cause.place}" if unit.cause.place else ""))
    if reason is not None:
        lines.append(f"pending: {reason.text}" + (f"; {reason.cure}" if reason.cure else ""))
    lines += _values("config", config)
    lines += _values(f"last report (iteration {unit.iteration})", unit.last)
    if unit.best is not None:
        lines.append(f"best: {number(unit.best)} at iteration {unit.best_iteration}")
    if output is not None:
        lines += _values("output", output if isinstance(output, Mapping) else {"": output})
    if unit.checkpoint:
        lines.append(f"checkpoint: iteration {unit.checkpoint.get('iteration')}")
    if attempts:
        lines += [
            "",
            table(
                ["attempt", "worker", "started", "time", "outcome"], [_attempt_row(each, at_ms) for each in attempts]
            ),
        ]
    traces = [each.cause.traceback for each in attempts if each.cause and each.cause.traceback]
    if traces:
        lines += ["", traces[-1].rstrip()]
    return "\n".join([*lines, "", f"flowctl logs {label}"])


def _attempt_row(attempt: AttemptView, at_ms: int) -> list[str]:
    cause = f": {attempt.cause.headline()}" if attempt.cause else ""
    return [
        str(attempt.attempt),
        attempt.worker or "",
        clock(attempt.started_ms) if attempt.started_ms else "",
        span_ms(attempt.started_ms, attempt.ended_ms or at_ms),
        f"{attempt.outcome or 'running'}{cause}",
    ]


def _values(title: str, values: Mapping[str, Any]) -> list[str]:
    flat = flatten(values)
    return (
        [f"{title}:", *(f"  {key} = {number(value)}".replace("   = ", "  ") for key, value in flat.items())]
        if flat
        else []
    )
