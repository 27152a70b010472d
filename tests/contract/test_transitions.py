"""The state table, asked through Lua: each allowed pair happens, every other is refused and writes nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from broker_builder import World, step_of
from redis.exceptions import ResponseError

from flowctl.broker import scripts
from flowctl.dsl.states import RunState, StepState, TrialState, is_allowed

PARTS = scripts.text("trial_finish").removesuffix(scripts.body("trial_finish"))


def change(client: Any, lua: str, *args: str) -> bool:
    """Runs a piece of Lua on the shared parts; False if it refused the transition."""
    try:
        client.eval(f"{PARTS}\n{lua}", 0, *args)
    except ResponseError as error:
        assert "no transition" in str(error)
        return False
    return True


@pytest.mark.parametrize(("source", "target"), [*product(TrialState, TrialState)])
def test_trial_changes_as_the_table_says(client: Any, source: TrialState, target: TrialState) -> None:
    world = World(client)
    world.run("r1")
    client.hset("fc:unit:r1:train:0", "state", source)
    client.hset("fc:step:r1:train", mapping={"pending": 0, source: 1})
    before = world.dump()

    happened = change(client, "move('r1:train:0', 'r1', 'train', ARGV[1], ARGV[2], now_ms())", source, target)

    assert happened == is_allowed(source, target)
    if happened:
        assert world.state() == target
        assert (world.count(source), world.count(target)) == (0, 1)
    else:
        assert world.dump() == before


@pytest.mark.parametrize(("source", "target"), [*product(StepState, StepState)])
def test_step_changes_as_the_table_says(client: Any, source: StepState, target: StepState) -> None:
    world = World(client)
    world.run("r1")
    client.hset("fc:step:r1:train", "state", source)
    before = world.dump()

    happened = change(client, "set_step('r1', 'train', ARGV[1], now_ms(), 'why')", target)

    assert happened == is_allowed(source, target)
    if happened:
        assert world.step_state() == target
        assert world.events(kind="step")[-1] == (source, target)
    else:
        assert world.dump() == before


@pytest.mark.parametrize(("source", "target"), [*product(RunState, RunState)])
def test_run_changes_as_the_table_says(client: Any, source: RunState, target: RunState) -> None:
    world = World(client)
    world.run("r1")
    client.hset("fc:run:r1", "state", source)
    before = world.dump()

    happened = change(client, "set_run('r1', ARGV[1], now_ms(), 'why')", target)

    assert happened == is_allowed(source, target)
    if happened:
        assert world.run_state() == target
        assert world.events(kind="run")[-1] == (source, target)
    else:
        assert world.dump() == before


@pytest.mark.parametrize("target", [*TrialState, "nonsense", ""])
def test_finish_takes_only_ends_and_retry(world: World, target: str) -> None:
    world.boot()
    world.run("r1", step_of(total=2))
    fence = world.running()
    before = world.dump()

    reply = world.finish(fence, target)

    if target in ("completed", "failed", "cancelled", "pending"):
        assert reply.word == "OK"
    else:
        assert reply.word == "BAD_STATE"
        assert world.dump() == before
