"""What follows from how an attempt ended: pure, from values to values (design: D9, D13)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowctl.dsl.names import nearest
from flowctl.workers.process import Exit


@dataclass(frozen=True)
class Ending:
    """What the guardian saw of an attempt."""

    exit: Exit
    said: Mapping[str, Any] | None
    """The trial's own last word, if it had one: status, reason, output, cause."""
    stop_reason: str | None
    """Why it was asked to end: None, a stop condition, 'cancelled', 'preempted'."""
    metric: str | None
    has_metric: bool
    metric_names: Sequence[str]
    over_limit: str | None = None
    """Why it was killed: it used more memory than it had asked for, and that is enforced."""


@dataclass(frozen=True)
class Budget:
    """How much a trial may fail: `max_failures` (-1: without limit) against the failures before this attempt."""

    max_failures: int
    fails: int


@dataclass(frozen=True)
class Decision:
    """The attempt's outcome, and the unit's next state."""

    outcome: str
    """completed | failed | cancelled | preempted"""
    to: str
    reason: str
    cause: dict[str, Any] | None
    fails_up: int = 0


CANCELLED = Decision("cancelled", "cancelled", "cancelled", {"kind": "cancelled", "text": "cancelled"})


def decide(ending: Ending, budget: Budget) -> Decision:
    """The one place where an ending becomes a state."""
    if ending.stop_reason == "cancelled":
        return CANCELLED
    said = ending.said
    if said is not None and said["status"] == "stopped" and said.get("signal") and ending.stop_reason is None:
        # A signal from outside, not from the guardian: it killed the trial, however politely the trial took it.
        ending = replace(ending, exit=Exit(code=None, signal=int(said["signal"])))
        said = None
    if ending.over_limit is not None and said is None:
        return _failed({"kind": "out_of_memory", "text": ending.over_limit}, budget, reason="out of memory")
    if ending.stop_reason == "preempted" and (said is None or said["status"] != "completed"):
        return Decision(
            "preempted", "pending", "its worker stopped", {"kind": "preempted", "text": "its worker stopped"}
        )
    if said is not None and said["status"] in ("completed", "stopped"):
        # Its function has returned: what the interpreter does while it ends (a late thread, a crash) changes nothing.
        if ending.metric is not None and not ending.has_metric:
            names = ", ".join(sorted(ending.metric_names)) or "nothing"
            near = nearest(ending.metric, ending.metric_names)
            meant = f"; did you mean '{near}'?" if near is not None else ""
            text = f"never reported the metric '{ending.metric}'; it reported: {names}{meant}"
            return Decision("failed", "failed", "error", {"kind": "no_metric", "type": "MissingMetric", "text": text})
        reason = "finished" if said["status"] == "completed" else str(said.get("reason"))
        if said.get("note"):
            reason = f"finished; {said['note']}"
        if ending.stop_reason is not None and ending.stop_reason != "preempted":
            reason = ending.stop_reason
        return Decision("completed", "completed", reason, None)
    cause = dict(said["cause"]) if said is not None and said["status"] == "failed" else cause_of_exit(ending.exit)
    return _failed(cause, budget, reason="error")


def _failed(cause: dict[str, Any], budget: Budget, *, reason: str) -> Decision:
    """A failure that counts: tried again within the budget."""
    fails = budget.fails + 1
    may_retry = budget.max_failures < 0 or fails <= budget.max_failures
    return Decision(
        "failed",
        "pending" if may_retry else "failed",
        f"retry after failure {fails}" if may_retry else reason,
        cause,
        fails_up=1,
    )


def hopeless(text: str) -> Decision:
    """The end of a unit whose input does not exist and never will; trying again would not help."""
    return Decision("failed", "failed", "error", {"kind": "no_metric", "type": "NoInput", "text": text}, fails_up=1)


def cause_of_exit(exit_: Exit) -> dict[str, Any]:
    """Of a process that ended without a last word."""
    if exit_.signal is not None:
        return {"kind": "signal", "signal": exit_.signal, "text": f"killed by signal {exit_.signal}"}
    if exit_.code == 0:
        return {
            "kind": "exit",
            "code": 0,
            "text": "the process ended with code 0 before its function returned (os._exit?)",
        }
    return {
        "kind": "exit",
        "code": exit_.code,
        "text": f"the process ended with code {exit_.code} before its function returned",
    }
