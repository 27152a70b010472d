"""Requests that are functions of the configuration: computed at submission, each error its own (D13)."""

import sys
from typing import Any

import pytest

from flowctl.dsl import launcher
from flowctl.dsl.compile import compile_target
from flowctl.dsl.config import Config
from flowctl.dsl.experiment import experiment
from flowctl.dsl.request import placement_group
from flowctl.dsl.sample import config_at
from flowctl.dsl.space import grid, uniform
from flowctl.workers.runs.requests import Asks


def train(config: Any) -> None: ...


def asks_of(function: Any, *, n: int = 4, **keywords: Any) -> Asks:
    space = {"i": grid(list(range(n))), "net": {"lr": uniform(0, 1), "layers": [1, 2]}}
    compiled = compile_target(experiment(param_space=space, resources=function, **keywords)(train))
    return Asks(compiled.plan.steps[0], compiled.asking["train"])


def test_each_trial_asks_for_its_own_and_all_may_differ() -> None:
    asks = asks_of(lambda config: {"cpu": config.i + 1}, labels=["spot"])

    needs = [asks.of(index)["request"]["bundles"] for index in range(4)]
    assert [need[0]["need"]["cpu"] for need in needs] == [10000, 20000, 30000, 40000]
    assert all(need[0]["labels"] == ["spot"] for need in needs)


def test_a_function_is_called_once_per_trial_with_a_configuration_of_its_own() -> None:
    seen: list[Config] = []

    def asks(config: Config) -> Any:
        seen.append(config.copy())
        config.i = "changed"
        config.net.lr = 0
        config.net.layers.append(3)
        return placement_group([{"cpu": 1}, {"gpu": 1}])

    made = asks_of(asks)
    (shard,) = made.shards()

    plain = [config_at(made.step, index) for index in range(4)]
    assert len(seen) == 4 and all(type(config) is Config for config in seen)
    assert [config["i"] for config in seen] == [0, 1, 2, 3]
    assert list(shard.configs) == plain
    assert all(ask == made.of(0) for ask in shard.asks)


def test_an_error_is_that_trials_cause_with_the_persons_line() -> None:
    def asks(config: Any) -> Any:
        if config.i == 1:
            return {"cpu": 1 / (config.i - 1)}
        if config.i == 2:
            return {"gpu": 1.5}
        if config.i == 3:
            sys.exit("enough")
        return None

    made = asks_of(asks)

    assert made.of(0)["request"]["bundles"][0]["need"] == {"cpu": 10000, "slot": 10000}
    first, second, third = (made.of(index)["failed"] for index in (1, 2, 3))
    line = asks.__code__.co_firstlineno
    assert (first["kind"], first["type"]) == ("exception", "ZeroDivisionError")
    assert first["text"] == "in the function of its resources: division by zero"
    assert first["place"] == f"test_requests.py:{line + 2}"
    assert 'return {"cpu": 1 / (config.i - 1)}' in first["traceback"] and 'requests.py", line' not in first[
        "traceback"
    ].replace("test_requests.py", "")
    assert (second["type"], second["place"]) == ("DeclarationError", f"test_requests.py:{line}")
    assert "resources.gpu: is 1.5; above 1" in second["text"]
    assert (third["type"], third["place"]) == ("SystemExit", f"test_requests.py:{line + 6}")


class Odd(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("error", [Odd(), ValueError("half a pair \udc80"), RecursionError(), ValueError("x" * 10_000)])
def test_any_exception_becomes_a_cause_that_can_be_written(error: Exception) -> None:
    def asks(config: Any) -> Any:
        raise error

    cause = asks_of(asks, n=1).of(0)["failed"]

    assert cause["type"] == type(error).__name__
    assert all(len(text.encode()) < 5_000 for text in cause.values())


def test_an_interrupt_stops_the_submission() -> None:
    def asks(config: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asks_of(asks)


def test_a_function_does_not_submit() -> None:
    def asks(config: Any) -> Any:
        launcher.current()

    assert "a resource function does not submit" in asks_of(asks, n=1).of(0)["failed"]["text"]


def test_many_trials_are_recorded_a_thousand_at_a_time() -> None:
    made = asks_of(lambda config: {"cpu": 1 + config.i % 7}, n=2300)

    shards = list(made.shards())

    assert [(shard.number, len(shard.configs), len(shard.asks)) for shard in shards] == [
        (0, 1000, 1000),
        (1, 1000, 1000),
        (2, 300, 300),
    ]
    assert shards[2].configs[299]["i"] == 2299
    assert shards[2].asks[299] == made.of(2299)
