"""The state tables: complete, reachable, and ended states stay ended."""

import pytest

from flowctl.dsl import states
from flowctl.dsl.states import BootState, RunState, StepState, TrialState, is_allowed, sources


@pytest.mark.parametrize(
    ("kind", "start", "ended"),
    [
        (RunState, RunState.SUBMITTED, states.RUN_ENDED),
        (StepState, StepState.WAITING, states.STEP_ENDED),
        (TrialState, TrialState.PENDING, states.TRIAL_ENDED),
        (states.BootState, states.BootState.UP, {states.BootState.GONE}),
    ],
)
def test_every_state_is_reachable_and_an_end_is_an_end(
    kind: type[states.State], start: object, ended: set[object]
) -> None:
    reached = {start}
    for _ in kind:
        reached |= {target for target in kind if set(sources(target)) & reached}  # type: ignore[type-var]

    assert reached == set(kind)
    for target in kind:
        assert not set(sources(target)) & ended  # type: ignore[type-var]


def test_the_table_allows_what_the_design_draws() -> None:
    assert is_allowed(TrialState.PENDING, TrialState.PLACED)
    assert is_allowed(TrialState.PLACED, TrialState.PENDING)
    assert is_allowed(TrialState.RUNNING, TrialState.PENDING)
    assert is_allowed(TrialState.PAUSED, TrialState.PENDING)
    assert not is_allowed(TrialState.PENDING, TrialState.COMPLETED)
    assert not is_allowed(TrialState.PLACED, TrialState.COMPLETED)
    assert not is_allowed(TrialState.COMPLETED, TrialState.RUNNING)
    assert not is_allowed(StepState.WAITING, StepState.RUNNING)
    assert not is_allowed(RunState.RUNNING, RunState.RUNNING)


def test_quarantine_is_left_by_a_person_or_for_good() -> None:
    assert sources(BootState.QUARANTINED) == (BootState.UP,)
    assert sources(BootState.UP) == (BootState.QUARANTINED,)
    assert is_allowed(BootState.QUARANTINED, BootState.DRAINING)
    assert is_allowed(BootState.QUARANTINED, BootState.GONE)
    assert not is_allowed(BootState.DRAINING, BootState.QUARANTINED)


def test_a_state_reads_as_its_word_on_every_python() -> None:
    assert f"{TrialState.PENDING}" == str(TrialState.PENDING) == "pending"
    assert {"pending": 1}[TrialState.PENDING] == 1
    assert f"{TrialState.PENDING:>8}" == " pending"
    assert TrialState("pending") is TrialState.PENDING
