"""The parts of a run's summary as plain lines: what `status` prints, and what the live view draws with colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flowctl.broker.reason import Reason
from flowctl.broker.shape_view import show_tokens
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import COUNTED, RunView, StepView
from flowctl.broker.worker_view import WorkerView
from flowctl.dsl.names import nearest
from flowctl.dsl.states import STEP_ENDED
from flowctl.dsl.stop import lookup
from flowctl.render.clock import clock, span_ms
from flowctl.render.failures import group_failures
from flowctl.render.table import cut, flatten, number, pairs

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
            if step.metric and step.state in STEP_ENDED and step.counts["completed"]:
                lines.append(f"no trial{_of(snap.run, step)} has a finite {step.metric}")
            continue
        label = snap.run.label(step.name, unit.index)
        config = pairs(config_of(step.name, unit.index))
        several = any(each.iteration > 1 for each in (unit, *snap.active) if each.step == step.name)
        when = f" (iteration {unit.best_iteration})" if several else ""
        lines.append(f"best {step.metric} {number(unit.best)}  {label}{when}  {config}".rstrip())
    return lines


def _of(run: RunView, step: StepView) -> str:
    return f" of {step.name}" if len(run.experiments) > 1 else ""


def notice_lines(snap: Snapshot) -> dict[str, str]:
    """What a person should know, by a key that stays the same: workers out of service, and per experiment that may have
    a misspelled metric, what its running trials report instead.

    A report may lack the metric at times, so this is no error, and nothing is said once some trial has reported it.
    """
    found = dict(snap.notices)
    for step in snap.run.experiments:
        if step.metric is None or step.name in snap.best:
            continue
        lacking = [
            unit
            for unit in snap.active
            if unit.step == step.name and unit.last and unit.best is None and lookup(unit.last, step.metric) is None
        ]
        if lacking:
            names = sorted({name for unit in lacking for name in flatten(unit.last)})
            label = snap.run.label(step.name, lacking[0].index)
            who = f"{label} reports" if len(lacking) == 1 else f"{len(lacking)} trials, such as {label}, report"
            found[step.name] = f"{who} {_listed(names)}; not the metric {step.metric!r}{_meant(step.metric, names)}"
    return found


def unreported_line(snap: Snapshot, step: StepView) -> str | None:
    """What to do about trials that failed because they never reported the metric; None if there are none."""
    silent = [
        unit
        for unit in snap.failed
        if unit.step == step.name and unit.cause is not None and unit.cause.type == "MissingMetric"
    ]
    if not silent or step.metric is None:
        return None
    names = sorted({name for unit in silent for name in flatten(unit.last)})
    if not names:
        return f"nothing was reported: call report({{{step.metric!r}: …}}) in the trial"
    who = "no trial" if step.name not in snap.best else f"{len(silent)} of the trials never"
    return f"{who} reported {step.metric!r}; they reported: {_listed(names)}{_meant(step.metric, names)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _meant(metric: str, names: list[str]) -> str:
    near = nearest(metric, names)
    return f"; did you mean {near!r}?" if near is not None else ""


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


def retry_lines(snap: Snapshot) -> list[str]:
    """Why trials that run again had to, equal causes once; at most three lines."""
    found: dict[str, list[str]] = {}
    for unit in snap.active:
        if unit.attempts > 1 and unit.cause is not None:
            found.setdefault(unit.cause.told(), []).append(snap.run.label(unit.step, unit.index))
    lines = []
    for told, labels in list(found.items())[:3]:
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        lines.append(f"tried again: {labels[0]}{more}, after {told}")
    return lines


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
    """`cpu 1/2, slot 3/10`: used of offered; what is not offered is left out."""
    dims = sorted((dim for dim in offer if offer[dim] or used.get(dim)), key=lambda dim: (dim == "slot", dim))
    return ", ".join(f"{dim} {show_tokens(dim, used.get(dim, 0))}/{show_tokens(dim, offer[dim])}" for dim in dims)


def _note(step: StepView) -> str:
    if step.state == "waiting":
        return f"after {', '.join(step.after)}"
    return step.reason if step.reason and step.reason != step.state else ""


def zero_counts() -> dict[str, int]:
    """Counts of a run of which nothing is known yet."""
    return dict.fromkeys((*COUNTED, "total"), 0)
