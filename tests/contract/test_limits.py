"""How many units of a run and of a step run at once, and what may be changed while it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_builder import CPU, World, step_of


def test_a_step_has_at_most_its_limit_placed_and_running(world: World) -> None:
    world.boot(cpu=10)
    world.run("r1", step_of(total=6, max_concurrent=2))
    ended = 0

    while world.placed():
        assert len(world.placed()) <= 2
        world.finish(world.running(f"r1:train:{world.placed()[0]}"))
        ended += 1

    assert ended == 6
    assert world.client.hgetall("fc:limits") == {}


def test_others_are_not_held_up_by_a_limit(world: World) -> None:
    world.boot(cpu=4)
    world.run("r1", step_of(total=6, max_concurrent=1))

    world.run("r2", step_of(total=6))

    assert (world.placed(), world.placed(run="r2")) == ([0], [0, 1, 2])


def test_a_limit_of_the_run_holds_for_all_its_steps_together(world: World) -> None:
    world.boot(cpu=10)
    world.create("r1", step_of("a", total=3), step_of("b", total=3))
    world.calls.run_set("r1", name="max_concurrent_trials", value=4)

    world.add("r1", "a", n=3)
    world.add("r1", "b", n=3)

    assert (world.placed(step="a"), world.placed(step="b")) == ([0, 1, 2], [0])


def test_a_limit_of_the_run_holds_across_priorities(world: World) -> None:
    world.boot(cpu=10)
    world.create("r1", step_of("a", total=3), step_of("b", total=3, priority=5))
    world.calls.run_set("r1", name="max_concurrent_trials", value=2)
    world.calls.worker_drain("b1", reason="stops")
    world.add("r1", "a", n=3)
    world.add("r1", "b", n=3)

    world.boot("b2", cpu=10)

    assert (world.placed(step="a"), world.placed(step="b")) == ([], [0, 1])


def test_a_limit_holds_for_all_shapes_of_a_step(world: World) -> None:
    world.boot("b1", cpu=2, gpu=4)
    step = step_of(total=4, max_concurrent=2)
    other = step_of(gpu=1)
    world.create("r1", step)

    world.calls.trials_add(
        "r1",
        "train",
        first=0,
        groups=[(step["shape"], 1), (other["shape"], 3)],
        shapes={other["shape"]: other["shape_json"]},
    )

    assert world.placed() == [0, 1]


def test_a_retry_takes_its_turn_again_and_no_more(world: World) -> None:
    world.boot(cpu=4)
    world.run("r1", step_of(total=3, max_concurrent=1, max_failures=2))

    for _ in range(2):
        world.finish(world.running(), "pending", fails_up=1)
        world.tick()
        assert world.placed() == [0]


def test_a_delayed_retry_leaves_its_turn_to_the_next(world: World) -> None:
    world.boot(cpu=4)
    world.run("r1", step_of(total=3, max_concurrent=1))

    world.finish(world.running(), "pending", fails_up=1, delay_ms=60_000)

    assert world.placed() == [1]
    world.mature("r1:train:0")
    world.tick()
    assert world.placed() == [1]
    world.finish(world.running("r1:train:1"))
    assert world.placed() == [0]


def test_raising_a_limit_places_at_once_and_lowering_it_drains(world: World) -> None:
    world.boot(cpu=10)
    world.run("r1", step_of(total=6, max_concurrent=1))

    world.calls.run_set("r1", step="train", name="max_concurrent_trials", value=3)
    assert world.placed() == [0, 1, 2]
    world.calls.run_set("r1", step="train", name="max_concurrent_trials", value=1)
    fences = [world.running(f"r1:train:{index}") for index in range(3)]
    for fence in fences[:2]:
        world.finish(fence)
        world.tick()
    assert world.placed() == [2]
    world.calls.run_set("r1", step="train", name="max_concurrent_trials", value=None)

    assert world.placed() == [2, 3, 4, 5]
    assert world.client.hget("fc:step:r1:train", "max_concurrent") == ""


ENDS: dict[str, Callable[[World], object]] = {
    "finish": lambda world: world.finish(world.running()),
    "fails, and tries again later": lambda world: world.finish(world.running(), "pending", delay_ms=60_000, fails_up=1),
    "handback": lambda world: world.calls.trial_handback(world.running(), reason="why", delay_ms=60_000),
    "guardian died": lambda world: world.release(world.running()),
    "cancelled before its claim": lambda world: world.calls.unit_cancel("r1:train:0"),
    "its worker left": lambda world: (world.running(), world.calls.worker_leave("b1", text="stopped")),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("of_run", [True, False], ids=["run", "step"])
def test_a_turn_that_is_free_is_used_on_another_worker(world: World, name: str, of_run: bool) -> None:
    """The freed tokens go to another run that comes first; the limited one fits on a worker that did not change."""
    world.boot("b1", cpu=1, labels=["first"])
    world.create("r1", step_of(total=2, max_worker_losses=0))
    world.calls.run_set("r1", step="" if of_run else "train", name="max_concurrent_trials", value=1)
    world.add("r1", n=2)
    world.run("r2", step_of(priority=9, labels=["first"]))
    world.boot("b2", cpu=1)
    world.tick()
    world.tick()
    assert (world.placed(), world.placed(run="r2")) == ([0], [])

    ENDS[name](world)
    world.tick()

    assert (world.state("r1:train:1"), world.field("r1:train:1", "boot")) == ("placed", "b2")
    assert world.placed(run="r2") == ([] if name == "its worker left" else [0])


# --- run_set ---


def test_what_cannot_be_set_changes_nothing(world: World) -> None:
    world.boot()
    world.run("r1")
    before = world.dump()

    assert world.calls.run_set("r9", name="priority", value=1).word == "NOT_FOUND"
    assert world.calls.run_set("r1", step="no", name="priority", value=1).word == "NOT_FOUND"
    assert world.calls.run_set("r1", name="nonsense", value=1).word == "BAD_NAME"
    assert world.calls.run_set("r1", step="train", name="weight", value=1).word == "BAD_NAME"

    assert world.dump() == before


def test_what_has_ended_is_not_set(world: World) -> None:
    world.boot()
    world.run("r1", step_of("a"), step_of("b", after=["a"]))
    world.finish(world.running("r1:a:0"))

    reply = world.calls.run_set("r1", step="a", name="max_concurrent_trials", value=1)

    assert (reply.word, reply.rest) == ("ENDED", ("completed",))
    world.finish(world.running("r1:b:0"))
    assert world.calls.run_set("r1", name="max_concurrent_trials", value=1).word == "ENDED"
    assert world.client.hgetall("fc:limits") == {}


def test_what_is_set_is_an_event(world: World) -> None:
    world.boot()
    world.run("r1", step_of(total=20))

    world.calls.run_set("r1", step="train", name="max_concurrent_trials", value=3)

    (fields,) = [fields for _, fields in world.client.xrange("fc:events:r1") if fields["kind"] == "set"]
    assert (fields["step"], fields["name"], fields["value"]) == ("train", "max_concurrent_trials", "3")


def test_limits_and_weights_leave_with_their_run(world: World) -> None:
    world.boot()
    world.create("r1", step_of(max_concurrent=2), fields={"weight": 2})
    world.calls.run_set("r1", name="max_concurrent_trials", value=4)
    world.add("r1")
    assert (world.client.hlen("fc:limits"), world.client.hlen("fc:weights")) == (2, 1)

    world.finish(world.running())

    assert (world.client.hlen("fc:limits"), world.client.hlen("fc:weights")) == (0, 0)
    assert world.used(dim="cpu") == 0 * CPU
