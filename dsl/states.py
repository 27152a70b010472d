"""The state machines of flowctl, once: which state may follow which.

Scripts of the broker take the allowed sources as arguments from here; they hold no list of their own. Early stopping is
`completed` with a reason; what a person wants (`Wanted`) stands beside the state of a run or a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar


class State(str, Enum):
    """A word of a state machine; reads and formats as its plain text on every Python version."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class RunState(State):
    SUBMITTED = "submitted"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(State):
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class TrialState(State):
    """The state of a unit: a trial of an experiment, or a stage."""

    PENDING = "pending"
    PLACED = "placed"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BootState(State):
    """The state of one start of a worker."""

    UP = "up"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    GONE = "gone"


class Wanted(State):
    """What a person wants of a run or a unit; finish and reap consult it: lost and wanted `cancel` is cancelled."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


AnyState = TypeVar("AnyState", RunState, StepState, TrialState, BootState)

# target -> the states that it may follow

RUN_SOURCES: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        RunState.SUBMITTED: frozenset(),
        RunState.RUNNING: frozenset({RunState.SUBMITTED, RunState.PAUSED}),
        RunState.PAUSED: frozenset({RunState.SUBMITTED, RunState.RUNNING}),
        RunState.COMPLETED: frozenset({RunState.RUNNING}),
        RunState.FAILED: frozenset({RunState.SUBMITTED, RunState.RUNNING}),
        RunState.CANCELLED: frozenset({RunState.SUBMITTED, RunState.RUNNING, RunState.PAUSED}),
    }
)

STEP_SOURCES: Mapping[StepState, frozenset[StepState]] = MappingProxyType(
    {
        StepState.WAITING: frozenset(),
        StepState.READY: frozenset({StepState.WAITING}),
        StepState.RUNNING: frozenset({StepState.READY}),
        StepState.COMPLETED: frozenset({StepState.RUNNING}),
        # from ready: every unit may fail before one was placed, as infeasible
        StepState.FAILED: frozenset({StepState.READY, StepState.RUNNING}),
        StepState.SKIPPED: frozenset({StepState.WAITING}),
        StepState.CANCELLED: frozenset({StepState.WAITING, StepState.READY, StepState.RUNNING}),
    }
)

TRIAL_SOURCES: Mapping[TrialState, frozenset[TrialState]] = MappingProxyType(
    {
        # placed: a missed dispatch; running: a retry, a loss, a hand-back; paused: resumed
        TrialState.PENDING: frozenset({TrialState.PLACED, TrialState.RUNNING, TrialState.PAUSED}),
        TrialState.PLACED: frozenset({TrialState.PENDING}),
        # from pending: only a guardian that still runs after the server lost its last seconds (it is adopted)
        TrialState.RUNNING: frozenset({TrialState.PLACED, TrialState.PENDING}),
        TrialState.PAUSED: frozenset({TrialState.RUNNING}),
        TrialState.COMPLETED: frozenset({TrialState.RUNNING}),
        # from pending: infeasible for too long, or its request could not be computed
        TrialState.FAILED: frozenset({TrialState.PENDING, TrialState.RUNNING}),
        TrialState.CANCELLED: frozenset(
            {TrialState.PENDING, TrialState.PLACED, TrialState.RUNNING, TrialState.PAUSED},
        ),
    }
)

BOOT_SOURCES: Mapping[BootState, frozenset[BootState]] = MappingProxyType(
    {
        # from quarantined: a person brought it back
        BootState.UP: frozenset({BootState.QUARANTINED}),
        BootState.QUARANTINED: frozenset({BootState.UP}),
        BootState.DRAINING: frozenset({BootState.UP, BootState.QUARANTINED}),
        BootState.GONE: frozenset({BootState.UP, BootState.QUARANTINED, BootState.DRAINING}),
    }
)

RUN_ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
STEP_ENDED = frozenset({StepState.COMPLETED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED})
TRIAL_ENDED = frozenset({TrialState.COMPLETED, TrialState.FAILED, TrialState.CANCELLED})


def sources(target: AnyState) -> tuple[AnyState, ...]:
    """The states from which `target` may be reached, in a fixed order."""
    table: Mapping[AnyState, frozenset[AnyState]] = _TABLES[type(target)]
    return tuple(sorted(table[target]))


def is_allowed(source: AnyState, target: AnyState) -> bool:
    """Whether the transition stands in the table; a state does not follow itself."""
    return source in sources(target)


_TABLES: Mapping[type, Any] = {
    RunState: RUN_SOURCES,
    StepState: STEP_SOURCES,
    TrialState: TRIAL_SOURCES,
    BootState: BOOT_SOURCES,
}
