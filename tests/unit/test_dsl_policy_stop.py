"""Failure budgets, retry and checkpoint values, and stop conditions (rows 24, 25)."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.policy import CheckpointConfig, Policy, Retry, policy
from flowctl.dsl.stop import first_stop, parse_stop

any_retry: Any = Retry
any_checkpoint: Any = CheckpointConfig


@pytest.mark.parametrize("failures", [0, 3, -1])
@pytest.mark.parametrize("losses", [0, 3, -1, None])
def test_budgets_are_kept(failures: int, losses: int | None) -> None:
    assert policy(failures, losses) == Policy(failures, losses)


@pytest.mark.parametrize("value", [True, 1.5, "3", -2, None, [1]])
def test_a_failure_budget_that_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(DeclarationError, match="max_failures"):
        policy(value, 3)
    if value is not None:
        with pytest.raises(DeclarationError, match="max_worker_losses"):
            policy(0, value)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Retry(delay_s=-1),
        lambda: any_retry(delay_s="1"),
        lambda: Retry(backoff=0.5),
        lambda: Retry(max_delay_s=math.inf),
        lambda: Retry(jitter=2),
        lambda: any_retry(only=(3,)),
        lambda: CheckpointConfig(num_to_keep=0),
        lambda: any_checkpoint(num_to_keep=1.5),
        lambda: CheckpointConfig(checkpoint_score_order="best"),
        lambda: CheckpointConfig(checkpoint_score_attribute=""),
        lambda: CheckpointConfig(max_total_bytes=0),
        lambda: any_checkpoint(asynchronous=1),
    ],
)
def test_retry_and_checkpoint_values_are_checked_at_their_line(declare: Callable[[], Any]) -> None:
    with pytest.raises(DeclarationError, match=r"^test_dsl_policy_stop\.py:\d+: (Retry|CheckpointConfig)\."):
        declare()


def test_retry_and_checkpoint_defaults_are_those_of_the_design() -> None:
    assert Retry() == Retry(delay_s=0, backoff=2, max_delay_s=300, jitter=0.1, only=(), never=())
    assert any_retry(only=ValueError).only == (ValueError,)
    assert CheckpointConfig() == CheckpointConfig(None, None, "max", None, False)


def never(result: Any) -> bool:
    return False


def test_a_stop_is_a_dictionary_a_function_or_a_list_of_both() -> None:
    assert parse_stop(None).limits == {} and parse_stop(None).functions == ()
    assert parse_stop({"epoch": 50, "eval": {"acc": 0.9}}).limits == {"epoch": 50, "eval/acc": 0.9}
    assert parse_stop(never).functions == (never,)
    both = parse_stop([{"epoch": 50}, never, {"epoch": 20, "loss": 1}])
    assert both.limits == {"epoch": 20, "loss": 1} and both.functions == (never,)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "not a dictionary or a function"),
        ([3], "not a dictionary or a function"),
        ({"epoch": "50"}, "stop.epoch: is '50'"),
        ({"epoch": float("nan")}, "nothing reaches"),
        ({"epoch": float("inf")}, "nothing reaches"),
        ({1: 50}, "the key 1"),
        (lambda trial, result: True, "must take one argument"),
        (lambda: True, "must take one argument"),
    ],
)
def test_a_stop_that_cannot_be_is_refused(value: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        parse_stop(value)


def test_the_first_limit_that_holds_is_named() -> None:
    stop = {"epoch": 3, "eval/acc": 0.9}

    assert first_stop(stop, {"epoch": 2, "eval": {"acc": 0.5}}) is None
    assert first_stop(stop, {"epoch": 3}) == "epoch"
    assert first_stop(stop, {"epoch": 1, "eval": {"acc": 0.9}}) == "eval/acc"
    assert first_stop(stop, {"epoch": 1, "eval/acc": 0.95}) == "eval/acc"
    assert first_stop({"a/b/c": 1}, {"a/b": {"c": 1}}) == "a/b/c"
    assert first_stop(stop, {"epoch": math.nan, "other": 9}) is None
    assert first_stop(stop, {"epoch": "9"}) is None
    assert first_stop(stop, {"epoch": math.inf}) == "epoch"
    assert first_stop({"done": 1}, {"done": True}) == "done"
    assert first_stop(None, {"epoch": 3}) is None
