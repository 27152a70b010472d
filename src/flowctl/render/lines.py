"""One line per change of a run, for pipes, terminals without control codes, and logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowctl.broker.event_view import Event
from flowctl.broker.view import RunView, UnitView
from flowctl.render.clock import clock
from flowctl.render.table import pairs


def event_line(event: Event, run: RunView, *, unit: UnitView | None, worker: str | None) -> str | None:
    """The line for one event, or None for one that people need not see.

    `unit` is the trial as it stands now, for its error and last metrics; `worker` the name of the event's worker.
    """
    what = _what(event, run, unit=unit, worker=worker)
    return f"{clock(event.at_ms)}  {what}" if what else None


def _what(event: Event, run: RunView, *, unit: UnitView | None, worker: str | None) -> str | None:
    if event.kind == "run":
        return f"run {run.run} {event.to}{_because(event)}"
    if event.kind == "step":
        return f"step {event.step} {event.to}{_because(event)}" if len(run.steps) > 1 else None
    if event.kind == "wanted":
        subject = run.label(event.step, event.index) if event.step and event.index is not None else f"run {run.run}"
        return f"{subject}: {event.to} asked for"
    if event.kind != "trial" or event.step is None or event.index is None:
        return None
    label = run.label(event.step, event.index)
    if event.to == "running":
        attempt = event.fields.get("attempt", "1")
        again = f", attempt {attempt}" if attempt not in ("", "1") else ""
        return f"{label} running{f' on {worker}' if worker else ''}{again}"
    if event.to == "failed":
        return f"{label} failed: {_error(event, unit)}; flowctl logs {label}"
    if event.to == "completed":
        metrics = pairs(unit.last, limit=4) if unit else ""
        early = f" ({event.reason})" if event.reason not in ("", "finished") else ""
        return f"{label} completed{early}  {metrics}".rstrip()
    if event.to == "cancelled":
        return f"{label} cancelled"
    if event.to == "pending" and event.source == "running":
        why = event.cause.told() if event.cause else event.reason
        return f"{label} pending again: {why or 'handed back'}"
    return None


def _error(event: Event, unit: UnitView | None) -> str:
    cause = event.cause or (unit.cause if unit else None)
    return cause.told() if cause is not None else event.reason or "no cause recorded"


def _because(event: Event) -> str:
    return f": {event.reason}" if event.reason not in ("", event.to) else ""


def event_body(event: Event, run: RunView, *, unit: UnitView | None, worker: str | None) -> Mapping[str, Any]:
    """An event as the body of one JSON line; `metrics` are those of the last report of a trial that has ended."""
    cause = event.cause or (unit.cause if unit is not None else None)
    trial = run.label(event.step, event.index) if event.step and event.index is not None else None
    return {
        "run": run.run,
        "at_ms": event.at_ms,
        "event": event.kind,
        "step": event.step,
        "trial": trial,
        "from": event.source or None,
        "to": event.to or None,
        "reason": event.reason or None,
        "worker": worker,
        "attempt": int(event.fields["attempt"]) if event.fields.get("attempt", "").isdigit() else None,
        "cause": cause.to_json() if cause else None,
        "metrics": dict(unit.last) if unit is not None else None,
    }
