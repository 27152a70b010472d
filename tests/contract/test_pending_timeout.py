"""How long a trial may be pending: a limit turns waiting into failure, with its cause."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from broker_builder import World, step_of

UNIT = "r1:train:0"
TIMEOUT_MS = 10_000


def limited(name: str = "train", **more: object) -> dict[str, object]:
    return step_of(name, pending_timeout_ms=TIMEOUT_MS, **more)  # type: ignore[arg-type]


def test_what_waited_too_long_fails_and_says_so(world: World) -> None:
    world.boot()
    world.run("r1", limited(npu=1))

    world.age(UNIT, TIMEOUT_MS)
    world.tick()

    assert (world.state(), world.field(UNIT, "reason")) == ("failed", "infeasible")
    assert json.loads(world.field(UNIT, "cause") or "") == {"kind": "infeasible", "text": "was pending for 10 s"}
    assert world.events()[-1] == ("pending", "failed")
    assert (world.step_state(), world.run_state(), world.attempts()) == ("failed", "failed", [])
    assert world.client.zcard("fc:timeouts") == 0


def test_it_does_not_fail_a_moment_before(world: World) -> None:
    world.boot()
    world.run("r1", limited(npu=1))

    world.age(UNIT, TIMEOUT_MS - 1000)
    world.tick()

    assert world.state() == "pending"


def test_only_those_fail_that_wait(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", limited(total=4))
    world.running("r1:train:0")

    world.age("r1:train:2", TIMEOUT_MS)
    world.tick()

    assert [world.state(f"r1:train:{index}") for index in range(4)] == ["running", "placed", "failed", "pending"]
    assert world.count("failed") == 1


def test_the_last_of_its_bucket_leaves_no_bucket_behind(world: World) -> None:
    world.boot()
    world.run("r1", limited(npu=1), step_of("other"))

    world.age(UNIT, TIMEOUT_MS)
    world.tick(is_full=False)

    assert world.complaints() == []
    assert (world.step_state(), world.step_state("other")) == ("failed", "ready")


def test_a_worker_that_comes_in_time_makes_it_run(world: World) -> None:
    world.run("r1", limited(npu=1))
    world.age(UNIT, TIMEOUT_MS - 1000)

    world.boot(npu=1)
    world.client.zadd("fc:timeouts", {UNIT: world.now_ms()})
    world.tick()

    assert (world.state(), world.client.zcard("fc:timeouts")) == ("placed", 0)


def test_a_retry_may_wait_as_long_again(world: World) -> None:
    world.boot()
    world.run("r1", limited(max_failures=1))
    fence = world.running()
    world.calls.worker_drain("b1", reason="stops")
    world.finish(fence, "pending", fails_up=1)
    world.client.zadd("fc:timeouts", {UNIT: world.now_ms()})

    world.tick()
    assert world.state() == "pending"
    world.age(UNIT, TIMEOUT_MS)
    world.tick()

    assert (world.state(), world.field(UNIT, "attempts")) == ("failed", "1")


def test_the_delay_of_a_retry_does_not_count(world: World) -> None:
    world.boot()
    world.run("r1", limited(max_failures=1))
    world.finish(world.running(), "pending", fails_up=1, delay_ms=60_000)
    due = world.client.zscore("fc:timeouts", UNIT) - world.now_ms()
    assert 60_000 + TIMEOUT_MS - 5_000 < due <= 60_000 + TIMEOUT_MS

    world.client.zadd("fc:timeouts", {UNIT: world.now_ms()})
    world.tick()

    assert world.state() == "pending"


def test_the_time_before_a_step_may_run_does_not_count(world: World) -> None:
    world.boot()
    world.run("r1", step_of("a"), limited("b", after=["a"], npu=1))
    world.age("r1:b:0", 100 * TIMEOUT_MS)
    for _ in range(3):
        world.tick()
        assert world.state("r1:b:0") == "pending"

    world.finish(world.running("r1:a:0"))
    world.client.zadd("fc:timeouts", {"r1:b:0": world.now_ms()})
    world.tick()
    assert world.state("r1:b:0") == "pending"
    world.age("r1:b:0", TIMEOUT_MS)
    world.tick()

    assert world.state("r1:b:0") == "failed"


def test_a_lost_attempt_may_wait_as_long_again(world: World) -> None:
    world.boot()
    world.run("r1", limited())
    world.running()

    world.calls.worker_leave("b1", text="died")
    assert world.state() == "pending"
    world.age(UNIT, TIMEOUT_MS)
    world.tick()

    assert (world.state(), world.field(UNIT, "reason")) == ("failed", "infeasible")


def test_who_waits_for_a_limit_or_a_pool_times_out_too(world: World) -> None:
    world.boot()
    world.calls.pool_set("license", 0)
    world.run("r1", limited(total=2, max_concurrent=1))
    world.run("r2", limited(license=1))

    world.age("r1:train:1", TIMEOUT_MS)
    world.age("r2:train:0", TIMEOUT_MS)
    world.tick()

    assert (world.state("r1:train:1"), world.state("r2:train:0")) == ("failed", "failed")


def test_a_gang_times_out_whole(world: World) -> None:
    world.boot()
    world.run("r1", limited(bundles=[{"cpu": 1}, {"npu": 1}]))

    world.age(UNIT, TIMEOUT_MS)
    world.tick()

    assert (world.state(), world.client.hgetall("fc:used:b1")) == ("failed", {})


ENDS: dict[str, Callable[[World], object]] = {
    "cancelled": lambda world: world.calls.unit_cancel(UNIT),
    "run cancelled": lambda world: world.calls.run_cancel("r1"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_was_cancelled_does_not_fail_later(world: World, name: str) -> None:
    world.run("r1", limited(total=2))

    ENDS[name](world)
    world.client.zadd("fc:timeouts", {UNIT: world.now_ms()}, xx=True)
    world.tick()

    assert world.count("failed") == 0
    assert world.client.zscore("fc:timeouts", UNIT) is None


def test_many_that_time_out_at_once_are_worked_off(world: World) -> None:
    world.run("r1", limited(total=120))
    for index in range(120):
        world.age(f"r1:train:{index}", TIMEOUT_MS)

    ticks = 0
    while world.count("pending"):
        world.tick(limit=50)
        ticks += 1

    assert (ticks, world.count("failed"), world.run_state()) == (3, 120, "failed")


def test_a_step_after_a_stage_that_timed_out_is_skipped(world: World) -> None:
    world.boot()
    world.run("r1", limited("a", kind="stage", npu=1), step_of("b", after=["a"]))

    world.age("r1:a:0", TIMEOUT_MS)
    world.tick()

    assert (world.step_state("a"), world.step_state("b"), world.run_state()) == ("failed", "skipped", "failed")
