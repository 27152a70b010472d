"""Steps and runs: what becomes ready, what is skipped, how a run ends; and where units are placed."""

from __future__ import annotations

import pytest
from broker_builder import CPU, World, step_of

DIAMOND = (step_of("a"), step_of("b", after=["a"]), step_of("c", after=["a"]), step_of("d", after=["b", "c"]))


def end(world: World, step: str, *states: str) -> None:
    """Ends the units of a step, in order."""
    for index, state in enumerate(states):
        unit = f"r1:{step}:{index}"
        if state == "cancelled":
            world.calls.unit_cancel(unit)
        if world.placement(unit):
            world.finish(world.running(unit), state, fails_up=int(state == "failed"))


# --- order ---


def test_steps_run_in_the_order_of_their_edges(world: World) -> None:
    world.boot()
    world.run("r1", *DIAMOND)
    assert [world.step_state(step) for step in "abcd"] == ["ready", "waiting", "waiting", "waiting"]

    end(world, "a", "completed")
    world.tick()
    assert [world.step_state(step) for step in "abcd"] == ["completed", "ready", "ready", "waiting"]
    end(world, "b", "completed")
    world.tick()
    assert world.step_state("d") == "waiting"
    end(world, "c", "completed")
    world.tick()
    end(world, "d", "completed")

    assert world.run_state() == "completed"
    assert world.events(kind="run") == [("", "submitted"), ("submitted", "running"), ("running", "completed")]


def test_a_failed_step_skips_what_depends_on_it_and_only_that(world: World) -> None:
    world.boot()
    world.run("r1", *DIAMOND, step_of("e"))
    end(world, "a", "completed")
    world.tick()

    end(world, "b", "failed")
    assert (world.step_state("d"), world.run_state()) == ("skipped", "running")
    assert world.client.hget("fc:step:r1:d", "reason") == "b failed"
    end(world, "c", "completed")
    end(world, "e", "completed")

    assert (world.step_state("c"), world.step_state("e"), world.run_state()) == ("completed", "completed", "failed")


def test_a_chain_of_skipped_steps_may_be_long(world: World) -> None:
    world.boot()
    names = [f"s{number}" for number in range(300)]
    steps = [step_of(name, after=names[number - 1 : number] if number else []) for number, name in enumerate(names)]
    world.run("r1", *steps)

    end(world, "s0", "failed")

    assert (world.step_state("s299"), world.run_state()) == ("skipped", "failed")


# --- how a step and its run end ---


@pytest.mark.parametrize(
    ("units", "step", "run"),
    [
        (("completed", "completed"), "completed", "completed"),
        (("completed", "failed"), "completed", "completed"),
        (("completed", "cancelled"), "completed", "completed"),
        (("failed", "failed"), "failed", "failed"),
        (("failed", "cancelled"), "failed", "failed"),
        (("cancelled", "failed"), "failed", "failed"),
        (("cancelled", "cancelled"), "cancelled", "cancelled"),
    ],
)
def test_a_step_ends_by_its_units(world: World, units: tuple[str, ...], step: str, run: str) -> None:
    world.boot()
    world.run("r1", step_of(total=2))

    end(world, "train", *units)

    assert (world.step_state(), world.run_state()) == (step, run)


@pytest.mark.parametrize(
    ("first", "second", "run"),
    [
        ("completed", "completed", "completed"),
        ("completed", "failed", "failed"),
        ("completed", "cancelled", "cancelled"),
        ("failed", "cancelled", "failed"),
        ("cancelled", "cancelled", "cancelled"),
    ],
)
def test_a_run_ends_by_its_steps(world: World, first: str, second: str, run: str) -> None:
    world.boot()
    world.run("r1", step_of("a"), step_of("b"))

    end(world, "a", first)
    end(world, "b", second)

    assert world.run_state() == run


def test_an_ended_run_holds_nothing(world: World) -> None:
    world.boot()
    world.run("r1", *DIAMOND)

    end(world, "a", "failed")

    assert world.run_state() == "failed"
    assert (world.used(), world.client.hlen("fc:alloc:b1")) == (0, 0)
    kept = ("fc:buckets", "fc:deadlines", "fc:delayed", "fc:expanding", "fc:active:r1")
    assert not world.client.exists(*kept)
    assert world.client.keys("fc:bucket:*") == []


# --- placement ---


def test_units_are_placed_in_their_order_and_never_beyond_the_offer(world: World) -> None:
    world.run("r1", step_of(total=5))

    world.boot(cpu=3)

    assert world.messages() == [(f"r1:train:{index}", 1) for index in range(3)]
    assert world.used() == 3 * CPU


def test_runs_are_served_in_the_order_of_their_submission(world: World) -> None:
    world.run("r2")
    world.run("r1")

    world.boot(cpu=1)

    assert world.messages() == [("r2:train:0", 1)]


def test_every_dimension_counts(world: World) -> None:
    world.boot(cpu=8, license=1)

    world.run("r1", step_of(total=3, cpu=1, license=1))

    assert (world.count("placed"), world.used("b1", "license"), world.used("b1", "slot")) == (1, CPU, CPU)


def test_slots_bound_what_asks_for_nothing_else(world: World) -> None:
    world.boot(slot=2)

    world.run("r1", step_of(total=5, cpu=0))

    assert world.count("placed") == 2


def test_a_small_request_passes_a_large_one_that_does_not_fit(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", step_of(cpu=4))

    world.run("r2", step_of(cpu=1))

    assert (world.state("r1:train:0"), world.state("r2:train:0")) == ("pending", "placed")


def test_the_boot_with_most_free_slots_is_taken(world: World) -> None:
    world.boot("b1", cpu=4)
    world.boot("b2", cpu=4)

    world.run("r1", step_of(total=4))

    assert (world.used("b1"), world.used("b2")) == (2 * CPU, 2 * CPU)


@pytest.mark.parametrize("differs", [{"python": "3.12"}, {"keys": ["other"]}, {"keys": []}, {"only": "r2"}])
def test_a_boot_that_cannot_serve_a_unit_gets_none(world: World, differs: dict[str, object]) -> None:
    world.boot(**differs)  # type: ignore[arg-type]

    world.run("r1")

    assert world.state() == "pending"


def test_a_boot_of_one_run_takes_that_run(world: World) -> None:
    world.boot(only="r2")

    world.run("r1")
    world.run("r2")

    assert (world.state("r1:train:0"), world.state("r2:train:0")) == ("pending", "placed")


def test_a_boot_whose_record_vanished_is_passed_over(world: World) -> None:
    world.boot("b1", cpu=8, slot=20)
    world.client.delete("fc:boot:b1")
    world.boot("b2")

    world.run("r1")

    assert world.field("r1:train:0", "boot") == "b2"
    assert world.messages("b1") == []
    world.silence("b1", 10**6)
    world.tick()


def test_a_bucket_whose_shape_vanished_stops_nobody_else(world: World) -> None:
    odd = step_of(cpu=2)
    world.run("r1", odd)
    shape = world.client.hget("fc:shapes", odd["shape"])
    world.client.hdel("fc:shapes", odd["shape"])

    world.boot()
    world.run("r2")

    assert (world.state("r1:train:0"), world.state("r2:train:0")) == ("pending", "placed")
    world.client.hset("fc:shapes", odd["shape"], shape)


def test_a_pass_is_bounded_and_the_next_goes_on(world: World) -> None:
    world.boot(cpu=64, slot=64)
    world.run("r1", step_of(total=60), expand=False)

    world.add("r1", n=60)
    assert world.count("placed") == 50
    world.tick()

    assert world.count("placed") == 60


def test_more_shapes_than_one_pass_looks_at_are_all_served(world: World) -> None:
    for number in range(600):
        world.run(f"big-{number}", step_of(cpu=100 + number))
    world.run("small", step_of(cpu=1))

    world.boot()
    assert world.state("small:train:0") == "pending"
    world.tick()
    world.tick()

    assert world.state("small:train:0") == "placed"


def test_huge_amounts_stay_exact(world: World) -> None:
    world.boot(cpu=4, license=9_999_999_999)

    world.run("r1", step_of(total=2, license=9_999_999_998))

    assert (world.count("placed"), world.used("b1", "license")) == (1, 9_999_999_998 * CPU)
    world.finish(world.running())
    assert (world.count("placed"), world.used("b1", "license")) == (1, 9_999_999_998 * CPU)
