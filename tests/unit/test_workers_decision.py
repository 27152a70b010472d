"""What follows from how an attempt ended: the whole table, without any process."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.workers.decision import Budget, Decision, Ending, decide
from flowctl.workers.process import Exit

CLEAN = Exit(code=0, signal=None)
KILLED = Exit(code=None, signal=9)
COMPLETED = {"status": "completed", "output": None}
BOOM = {"kind": "exception", "type": "ValueError", "text": "boom"}
FAILED = {"status": "failed", "cause": BOOM}


def ended(exit_: Exit = CLEAN, said: dict[str, Any] | None = None, **changes: Any) -> Ending:
    fields: dict[str, Any] = {"stop_reason": None, "metric": None, "has_metric": False, "metric_names": ()}
    return Ending(exit=exit_, said=said, **{**fields, **changes})


def decided(ending: Ending, *, max_failures: int = 0, fails: int = 0) -> Decision:
    return decide(ending, Budget(max_failures, fails))


def test_a_returned_function_completes() -> None:
    assert decided(ended(said=COMPLETED)) == Decision("completed", "completed", "finished", None)


@pytest.mark.parametrize("exit_", [KILLED, Exit(code=139, signal=None), Exit(code=1, signal=None)])
def test_what_the_interpreter_does_after_the_last_word_changes_nothing(exit_: Exit) -> None:
    assert decided(ended(exit_, COMPLETED)).to == "completed"


@pytest.mark.parametrize(
    ("max_failures", "fails", "to"), [(0, 0, "failed"), (1, 0, "pending"), (1, 1, "failed"), (-1, 7, "pending")]
)
def test_failures_are_retried_within_the_budget(max_failures: int, fails: int, to: str) -> None:
    decision = decided(ended(said=FAILED), max_failures=max_failures, fails=fails)

    assert (decision.to, decision.cause, decision.fails_up) == (to, BOOM, 1)


def test_a_signal_names_itself() -> None:
    decision = decided(ended(KILLED))

    assert decision.cause == {"kind": "signal", "signal": 9, "text": "killed by signal 9"}


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_without_a_last_word_is_a_failure(code: int) -> None:
    decision = decided(ended(Exit(code=code, signal=None)))

    assert decision.to == "failed"
    assert decision.cause is not None
    assert (decision.cause["kind"], decision.cause["code"]) == ("exit", code)


def test_a_cancelled_attempt_is_cancelled_however_it_ended() -> None:
    for said in (None, FAILED, COMPLETED):
        assert decided(ended(KILLED, said, stop_reason="cancelled")).to == "cancelled"


def test_a_preempted_attempt_goes_back_uncounted() -> None:
    decision = decided(ended(KILLED, stop_reason="preempted"))

    assert (decision.outcome, decision.to, decision.fails_up) == ("preempted", "pending", 0)


def test_a_preempted_attempt_that_had_just_returned_is_completed() -> None:
    assert decided(ended(said=COMPLETED, stop_reason="preempted")) == Decision(
        "completed", "completed", "finished", None
    )


def test_a_stop_condition_completes_with_its_reason() -> None:
    said = {"status": "stopped", "reason": "stop condition: epoch"}

    assert decided(ended(said=said, stop_reason="stop condition: epoch")).reason == "stop condition: epoch"


def test_a_signal_from_outside_is_a_failure_however_politely_it_was_taken() -> None:
    decision = decided(ended(said={"status": "stopped", "reason": "asked to stop", "signal": 15}))

    assert decision.to == "failed"
    assert decision.cause is not None
    assert decision.cause["signal"] == 15


def test_a_metric_that_was_never_reported_fails_for_good_and_says_what_was() -> None:
    ending = ended(said=COMPLETED, metric="val_loss", metric_names=("train_loss", "epoch"))

    decision = decided(ending, max_failures=5)

    assert decision.to == "failed"
    assert decision.cause is not None
    assert (
        decision.cause["text"]
        == "never reported the metric 'val_loss'; it reported: epoch, train_loss; did you mean 'train_loss'?"
    )
