"""Who comes first: priority, then the run with the smallest share for its weight, then submission; within a run its
steps and trials as they are numbered."""

from __future__ import annotations

from collections import Counter

import pytest
from broker_builder import CPU, World, step_of


def sequence(world: World, n: int) -> list[str]:
    """Units in the order in which a worker with one slot gets them, each ended before the next begins."""
    world.boot("one", cpu=1, slot=1)
    found = []
    for _ in range(n):
        ((unit, _),) = world.messages("one")[-1:]
        found.append(unit)
        world.finish(world.running(unit))
    return found


def counts(world: World, *runs: str, step: str = "train") -> list[int]:
    return [len(world.placed(run=run, step=step)) for run in runs]


# --- priority ---


def test_a_higher_priority_goes_first_whenever_it_was_submitted(world: World) -> None:
    world.run("r1", step_of(total=2))
    world.run("r2", step_of(total=2, priority=-1))
    world.run("r3", step_of(total=2, priority=2))

    order = sequence(world, 6)

    assert [unit.partition(":")[0] for unit in order] == ["r3", "r3", "r1", "r1", "r2", "r2"]


def test_priorities_of_run_and_step_add_up(world: World) -> None:
    world.run("r1", step_of("a", priority=3), step_of("b", priority=-3), fields={"priority": 2})
    world.run("r2", step_of(priority=4))
    world.run("r3", step_of(priority=-2))

    assert sequence(world, 4) == ["r1:a:0", "r2:train:0", "r1:b:0", "r3:train:0"]


def test_a_priority_changed_live_counts_for_what_waits(world: World) -> None:
    world.run("r1", step_of("a"), step_of("b"))
    world.run("r2", step_of("a"), step_of("b"))

    world.calls.run_set("r2", name="priority", value=1)
    world.calls.run_set("r1", step="b", name="priority", value=2)
    world.calls.run_set("r2", step="b", name="priority", value=-5)

    assert sequence(world, 4) == ["r1:b:0", "r2:a:0", "r1:a:0", "r2:b:0"]


def test_a_priority_takes_nothing_from_who_runs(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1", step_of(total=2))
    fence = world.running("r1:train:0")

    world.run("r2", step_of(priority=9))

    assert world.calls.trial_renew(fence).word == "CONTINUE"
    world.finish(fence)
    assert counts(world, "r1", "r2") == [0, 1]


def test_priority_does_not_hold_up_what_fits(world: World) -> None:
    world.boot(cpu=4)
    world.run("r1", step_of(priority=5, cpu=8))

    world.run("r2", step_of(total=3))

    assert counts(world, "r1", "r2") == [0, 3]


# --- fair share ---


def test_equal_runs_share_alike_and_the_first_submitted_begins(world: World) -> None:
    world.run("r1", step_of(total=10))
    world.run("r2", step_of(total=10))

    world.boot(cpu=7, slot=20)

    assert counts(world, "r1", "r2") == [4, 3]


def test_shares_follow_weights(world: World) -> None:
    world.run("r1", step_of(total=20))
    world.run("r2", step_of(total=20), fields={"weight": 3})

    world.boot(cpu=8, slot=20)

    assert counts(world, "r1", "r2") == [2, 6]


def test_a_weight_changed_live_counts_from_the_next_placement(world: World) -> None:
    world.boot(cpu=4, slot=20)
    world.run("r1", step_of(total=20))
    world.run("r2", step_of(total=20))
    assert counts(world, "r1", "r2") == [4, 0]

    world.calls.run_set("r2", name="weight", value=3)
    for index in range(4):
        world.finish(world.running(f"r1:train:{index}"))

    assert counts(world, "r1", "r2") == [1, 3]


def test_a_run_submitted_later_gets_half_of_what_is_freed(world: World) -> None:
    world.boot(cpu=8, slot=20)
    world.run("r1", step_of(total=200))
    world.run("r2", step_of(total=200))
    assert counts(world, "r1", "r2") == [8, 0]

    for _ in range(8):
        world.finish(world.running(f"r1:train:{world.placed()[0]}"))

    assert counts(world, "r1", "r2") == [4, 4]


def test_a_share_is_that_of_the_scarcest_resource(world: World) -> None:
    """A device of four costs as much as two cores of eight."""
    world.run("r1", step_of(total=20, gpu=1))
    world.run("r2", step_of(total=20, cpu=1))

    world.boot(cpu=8, gpu=4, slot=9)
    assert counts(world, "r1", "r2") == [3, 6]


def test_a_share_of_a_pool_counts_like_any_other(world: World) -> None:
    world.calls.pool_set("license", 4 * CPU)
    world.run("r1", step_of(total=20, license=1))
    world.run("r2", step_of(total=20, cpu=1))

    world.boot(cpu=8, slot=9)

    assert counts(world, "r1", "r2") == [3, 6]


def test_a_gang_counts_with_all_its_bundles(world: World) -> None:
    world.run("r1", step_of(total=10, bundles=[{"cpu": 1}, {"cpu": 1}, {"cpu": 1}]))
    world.run("r2", step_of(total=10))

    world.boot(cpu=12, slot=40)

    assert counts(world, "r1", "r2") == [2, 6]


def test_what_a_run_got_at_one_priority_counts_at_the_next(world: World) -> None:
    world.run("r1", step_of("a", total=4, priority=1), step_of("b", total=8))
    world.run("r2", step_of("b", total=8))

    world.boot(cpu=8, slot=20)

    assert (counts(world, "r1", step="a"), counts(world, "r1", "r2", step="b")) == ([4], [0, 4])


def test_the_tokens_of_a_lost_attempt_count_until_they_return(world: World) -> None:
    world.boot("b1", cpu=2)
    world.run("r1", step_of(total=4, max_worker_losses=0))
    fences = [world.running(f"r1:train:{index}") for index in (0, 1)]
    for fence in fences:
        world.expire(fence.unit)
    world.tick()
    world.beat("b1", running=[f"{fence.unit}@{fence.epoch}" for fence in fences])
    world.run("r2", step_of(total=4))

    world.boot("b2", cpu=2)

    assert counts(world, "r1", "r2") == [0, 2]
    world.beat("b1", running=[])
    assert counts(world, "r1", "r2") == [2, 2]


def test_shares_end_with_what_holds_them(world: World) -> None:
    world.boot(cpu=3)
    world.run("r1", step_of(total=3))
    assert round(int(world.client.hget("fc:shares", "r1")) / 10**9, 6) == 1

    for index in range(3):
        world.finish(world.running(f"r1:train:{index}"))

    assert world.client.hgetall("fc:shares") == {}


def test_who_has_nothing_that_fits_leaves_its_turn(world: World) -> None:
    world.run("r1", step_of(total=4, cpu=3))
    world.run("r2", step_of(total=4))

    world.boot(cpu=5, slot=20)

    assert counts(world, "r1", "r2") == [1, 2]


# --- within a run ---


def test_steps_go_in_the_order_of_the_plan_and_trials_by_number(world: World) -> None:
    world.create("r1", step_of("z", total=3), step_of("a", total=2))
    world.add("r1", "a", n=2)
    world.add("r1", "z", n=3)

    assert sequence(world, 5) == ["r1:z:0", "r1:z:1", "r1:z:2", "r1:a:0", "r1:a:1"]


def test_trials_of_different_shapes_go_by_number(world: World) -> None:
    shapes = [step_of(cpu=1), step_of(cpu=0.5), step_of(cpu=0.25)]
    pattern = [0, 2, 1, 1, 0, 2, 0, 1]
    world.create("r1", step_of(total=len(pattern)))
    world.calls.trials_add(
        "r1",
        "train",
        first=0,
        groups=[(shapes[i]["shape"], 1) for i in pattern],
        shapes={step["shape"]: step["shape_json"] for step in shapes},
    )

    assert sequence(world, len(pattern)) == [f"r1:train:{index}" for index in range(len(pattern))]


def test_a_retry_comes_before_later_trials(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1", step_of(total=3, max_failures=1))

    world.finish(world.running(), "pending", fails_up=1)

    assert world.placed() == [0]


def test_a_trial_that_does_not_fit_is_passed_over_and_not_forgotten(world: World) -> None:
    big, small = step_of(cpu=2), step_of(cpu=1)
    world.boot(cpu=3)
    world.run("r0")
    world.create("r1", step_of(total=4))
    texts = {step["shape"]: step["shape_json"] for step in (big, small)}
    names = [big["shape"], small["shape"]]

    world.calls.trials_add("r1", "train", first=0, groups=[(names[i], 1) for i in (0, 0, 1, 1)], shapes=texts)

    assert world.placed() == [0]
    world.finish(world.running("r0:train:0"))
    assert world.placed() == [0, 2]
    world.finish(world.running("r1:train:0"))
    assert world.placed() == [1, 2]


@pytest.mark.parametrize("workers", [1, 3])
def test_all_of_it_together(world: World, workers: int) -> None:
    world.run("low", step_of(total=9, priority=-1))
    world.run("r1", step_of("a", total=9), step_of("b", total=9, priority=1))
    world.run("r2", step_of("a", total=9), fields={"weight": 2})

    for number in range(workers):
        world.boot(f"b{number}", cpu=12 // workers, slot=20)

    found = Counter(
        (run, step)
        for run, step in (("low", "train"), ("r1", "a"), ("r1", "b"), ("r2", "a"))
        for _ in world.placed(run=run, step=step)
    )
    assert found[("r1", "b")] == 9
    assert found[("low", "train")] == 0
    assert found[("r1", "a")] + found[("r2", "a")] == 3
    assert found[("r1", "a")] == 0
