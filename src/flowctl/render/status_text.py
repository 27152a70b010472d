"""What `flowctl status` prints: a run, or one trial with all its attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flowctl.broker.host_view import BundleView
from flowctl.broker.reason import Reason
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import AttemptView, RunView, UnitView
from flowctl.render.clock import clock, span_ms
from flowctl.render.outputs import OutputOf, output_lines
from flowctl.render.summary import (
    RUNNING_HEAD,
    ConfigOf,
    best_lines,
    contact_lines,
    failure_lines,
    header,
    notice_lines,
    pending_lines,
    retry_lines,
    running_rows,
    step_rows,
)
from flowctl.render.table import flatten, number, table

NOTHING: Mapping[int, int | None] = MappingProxyType({})


def run_text(snap: Snapshot, config_of: ConfigOf, output_of: OutputOf | None = None) -> str:
    """A run: its head, its steps, the best, what runs, what waits and why, what failed."""
    run = snap.run
    parts = [header(snap)]
    if run.reason and run.ended and run.reason != run.state:
        parts.append(f"reason: {run.reason}")
    if run.name != run.run:
        parts.append(f"name: {run.name}")
    parts.append(f"stored in {run.location}")
    if len(run.steps) > 1:
        parts += ["", table(["step", "kind", "state", "trials", ""], step_rows(run))]
    for lines in (
        output_lines(run, output_of, only_last=False) if output_of is not None else [],
        best_lines(snap, config_of),
        list(notice_lines(snap).values()),
        contact_lines(snap),
        pending_lines(snap),
    ):
        parts += ["", *lines] if lines else []
    rows = running_rows(snap)
    if rows:
        parts += ["", table(RUNNING_HEAD, rows), *retry_lines(snap)]
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
    began: Mapping[int, int | None] = NOTHING,
    bundles: Sequence[BundleView] = (),
    process: str | None = None,
) -> str:
    """One trial: state and why, configuration, last report, checkpoint, every attempt with its cause.

    `began`: per epoch the iteration of the checkpoint that the attempt went on from, None for the start; `process`
    where the trial's process runs.
    """
    label = run.label(unit.step, unit.index)
    end_ms = unit.ended_ms or at_ms
    lines = [f"{label}  {unit.state}  {span_ms(unit.first_started_ms or unit.started_ms, end_ms)}".rstrip()]
    if process is not None:
        lines.append(f"process: {process}")
    lines += [_bundle(each) for each in bundles]
    if unit.reason and unit.reason != unit.state and not unit.is_active:
        lines.append(f"reason: {unit.reason}")
    if unit.state == "failed" and unit.cause:
        lines.append(f"error: {unit.cause.told()}")
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
                ["attempt", "worker", "started", "from", "time", "outcome"],
                [_attempt_row(each, at_ms, began) for each in attempts],
            ),
        ]
    traces = [each.cause.traceback for each in attempts if each.cause and each.cause.traceback]
    if traces:
        lines += ["", traces[-1].rstrip()]
    return "\n".join([*lines, "", f"flowctl logs {label}"])


def _bundle(bundle: BundleView) -> str:
    where = f"on {bundle.worker}" if bundle.worker else "lost its worker, waits for another"
    what = "the trial itself" if bundle.index == 0 else f"its code: {bundle.code}" if bundle.code else "no code started"
    return f"bundle {bundle.index}: {where} ({what})"


def _attempt_row(attempt: AttemptView, at_ms: int, began: Mapping[int, int | None]) -> list[str]:
    outcome = attempt.outcome or "running"
    if attempt.cause is not None:
        told = attempt.cause.told()
        outcome = told if told.startswith(outcome) else f"{outcome}: {told}"
    base = began.get(attempt.epoch)
    return [
        str(attempt.attempt),
        attempt.worker or "",
        clock(attempt.started_ms) if attempt.started_ms else "",
        "" if attempt.epoch not in began else "the start" if base is None else f"iteration {base}",
        span_ms(attempt.started_ms, attempt.ended_ms or at_ms),
        outcome,
    ]


def _values(title: str, values: Mapping[str, Any]) -> list[str]:
    flat = flatten(values)
    return (
        [f"{title}:", *(f"  {key} = {number(value)}".replace("   = ", "  ") for key, value in flat.items())]
        if flat
        else []
    )
