"""Workers on which trials keep failing at once are taken out of service; a retry goes to another worker."""

from __future__ import annotations

import pytest
from broker_builder import World, step_of


def boot_state(world: World, boot: str) -> str:
    return str(world.client.hget(f"fc:boot:{boot}", "state"))


def fail(world: World, unit: str, *, after_ms: int = 0, to: str = "failed", place: str = "train.py:1") -> None:
    """The unit fails so long after its start, with an exception at this place."""
    fence = world.running(unit)
    world.client.hset(f"fc:unit:{unit}", "started_ms", world.now_ms() - after_ms)
    cause = {"kind": "exception", "type": "OSError", "text": f"of {unit}", "place": place}
    assert world.finish(fence, to, fails_up=1, cause=cause).word == "OK"


def on(world: World, boot: str, *, run: str = "r1") -> list[str]:
    """Units of the run that are placed or running on the boot."""
    found = [f"{run}:train:{index}" for index in world.placed(run=run)]
    return [unit for unit in found if world.field(unit, "boot") == boot]


def two(world: World, *, total: int = 20, cpu: int = 1) -> None:
    """A worker where things will fail, and another."""
    world.boot("bad", cpu=cpu)
    world.run("r1", step_of(total=total))
    world.boot("good", cpu=cpu)


# --- quarantine ---


def test_three_different_trials_in_a_row_take_a_worker_out_of_service(world: World) -> None:
    two(world)

    for _ in range(3):
        assert boot_state(world, "bad") == "up"
        fail(world, on(world, "bad")[0])

    assert (boot_state(world, "bad"), boot_state(world, "good")) == ("quarantined", "up")
    assert on(world, "bad") == []
    reason = world.client.hget("fc:boot:bad", "reason")
    assert reason == "3 trials in a row failed within 10 s of their start: r1:train:0, r1:train:2, r1:train:3"
    world.beat("bad")
    world.tick()
    assert (boot_state(world, "bad"), on(world, "bad")) == ("quarantined", [])


def test_a_broken_worker_costs_three_attempts_of_a_sweep(world: World) -> None:
    two(world, total=40)
    failed = 0

    while units := [f"r1:train:{index}" for index in world.placed()]:
        for unit in units:
            if world.field(unit, "boot") == "bad":
                fail(world, unit, to="pending")
                failed += 1
            else:
                world.finish(world.running(unit))
        world.tick()

    assert (failed, world.count("completed")) == (3, 40)


def test_the_same_trial_again_and_again_is_not_the_workers_fault(world: World) -> None:
    world.boot("bad", cpu=1, labels=["x"])
    world.boot("good", cpu=1)
    world.run("r1", step_of(labels=["x"], max_failures=-1))

    for _ in range(6):
        fail(world, "r1:train:0", to="pending")

    assert (boot_state(world, "bad"), on(world, "bad")) == ("up", ["r1:train:0"])


@pytest.mark.parametrize("between", ["one that succeeds", "one that fails late"])
def test_a_row_is_broken_by(world: World, between: str) -> None:
    two(world)
    fail(world, on(world, "bad")[0])
    fail(world, on(world, "bad")[0])

    unit = on(world, "bad")[0]
    if between == "one that succeeds":
        world.finish(world.running(unit))
    else:
        fail(world, unit, after_ms=10_001)
    fail(world, on(world, "bad")[0])
    fail(world, on(world, "bad")[0])

    assert boot_state(world, "bad") == "up"
    fail(world, on(world, "bad")[0])
    assert boot_state(world, "bad") == "quarantined"


def test_a_failure_at_exactly_ten_seconds_counts(world: World) -> None:
    two(world)

    for _ in range(2):
        fail(world, on(world, "bad")[0], after_ms=9_900)
    fail(world, on(world, "bad")[0], after_ms=9_900)

    assert boot_state(world, "bad") == "quarantined"


def test_trials_of_different_runs_count_together(world: World) -> None:
    world.boot("bad", cpu=3)
    for run in ("r1", "r2", "r3"):
        world.run(run)
    world.boot("good", cpu=1)

    for run in ("r1", "r2", "r3"):
        fail(world, f"{run}:train:0")

    assert boot_state(world, "bad") == "quarantined"


def test_a_worker_that_was_lost_is_not_blamed_for_failures(world: World) -> None:
    two(world)

    for _ in range(3):
        fence = world.running(on(world, "bad")[0])
        world.release(fence, boot="bad")

    assert boot_state(world, "bad") == "up"


@pytest.mark.parametrize("other", ["none", "drains", "does not accept", "is too small", "another key", "no such label"])
def test_the_last_that_could_take_them_stays(world: World, other: str) -> None:
    world.boot("bad", cpu=2, labels=["x"])
    world.run("r1", step_of(total=9, cpu=2, labels=["x"]))
    if other != "none":
        world.boot(
            "good",
            cpu=1 if other == "is too small" else 2,
            labels=[] if other == "no such label" else ["x"],
            keys=["k9"] if other == "another key" else ["k1"],
            beats=other != "does not accept",
        )
    if other == "drains":
        world.calls.worker_drain("good", reason="stops")

    for index in range(6):
        fail(world, f"r1:train:{index}")

    assert (boot_state(world, "bad"), on(world, "bad")) == ("up", ["r1:train:6"])


def test_what_fails_elsewhere_too_is_not_held_against_a_worker(world: World) -> None:
    two(world)

    for _ in range(3):
        fail(world, on(world, "bad")[0])
    assert boot_state(world, "bad") == "quarantined"
    fail(world, on(world, "good")[0])

    assert (boot_state(world, "bad"), boot_state(world, "good")) == ("up", "up")
    world.tick()
    for boot in ("bad", "good") * 4:
        fail(world, on(world, boot)[0])
    assert (boot_state(world, "bad"), boot_state(world, "good")) == ("up", "up")


def test_another_failure_elsewhere_acquits_nobody(world: World) -> None:
    two(world)

    for _ in range(3):
        fail(world, on(world, "bad")[0])
    fail(world, on(world, "good")[0], place="train.py:7")

    assert (boot_state(world, "bad"), boot_state(world, "good")) == ("quarantined", "up")


def test_failures_that_lie_far_apart_are_not_in_a_row(world: World) -> None:
    two(world)

    for _ in range(2):
        fail(world, on(world, "bad")[0])
    world.client.hincrby("fc:boot:bad", "quick_ms", -600_001)
    fail(world, on(world, "bad")[0])

    assert boot_state(world, "bad") == "up"


def test_it_goes_when_another_comes_and_it_fails_on(world: World) -> None:
    world.boot("bad", cpu=1)
    world.run("r1", step_of(total=9))
    for index in range(4):
        fail(world, f"r1:train:{index}")

    world.boot("good", cpu=1)
    assert boot_state(world, "bad") == "up"
    for _ in range(3):
        fail(world, on(world, "bad")[0])

    assert boot_state(world, "bad") == "quarantined"


def test_two_broken_workers_are_not_both_taken_out(world: World) -> None:
    world.boot("b1", cpu=1)
    world.boot("b2", cpu=1)
    world.run("r1", step_of(total=30))

    while world.placed():
        unit = f"r1:train:{world.placed()[0]}"
        fail(world, unit, place=str(world.field(unit, "boot")))
        world.tick()

    assert sorted(boot_state(world, boot) for boot in ("b1", "b2")) == ["quarantined", "up"]


def test_what_waits_there_unclaimed_goes_elsewhere_and_what_runs_stays(world: World) -> None:
    world.boot("bad", cpu=6)
    world.run("r1", step_of(total=6))
    running = world.running("r1:train:5")
    world.boot("good", cpu=6)

    for index in range(3):
        fail(world, f"r1:train:{index}")
    world.tick()

    assert on(world, "bad") == ["r1:train:5"]
    assert on(world, "good") == ["r1:train:3", "r1:train:4"]
    assert world.calls.trial_renew(running).word == "CONTINUE"
    assert world.field("r1:train:3", "losses") is None
    assert world.finish(running).word == "OK"


def test_a_quarantined_worker_that_registers_again_stays_so(world: World) -> None:
    two(world)
    for _ in range(3):
        fail(world, on(world, "bad")[0])

    world.boot("bad", cpu=1)
    world.tick()

    assert (boot_state(world, "bad"), on(world, "bad")) == ("quarantined", [])


# --- restore ---


def test_a_restored_worker_works_at_once_with_a_clean_record(world: World) -> None:
    two(world)
    for _ in range(3):
        fail(world, on(world, "bad")[0])

    assert world.calls.worker_restore("bad").word == "OK"

    assert (boot_state(world, "bad"), len(on(world, "bad"))) == ("up", 1)
    assert world.client.hmget("fc:boot:bad", "reason", "quick", "quarantined_ms") == [None, None, None]
    for _ in range(2):
        fail(world, on(world, "bad")[0])
    assert boot_state(world, "bad") == "up"
    fail(world, on(world, "bad")[0])
    assert boot_state(world, "bad") == "quarantined"


def test_restore_of_what_is_up_draining_or_unknown(world: World) -> None:
    world.boot("b1")
    world.boot("b2")
    world.calls.worker_drain("b2", reason="stops")
    world.boot("b3")
    world.calls.worker_leave("b3", text="stopped")
    before = world.dump()

    assert world.calls.worker_restore("b1").word == "OK"
    draining = world.calls.worker_restore("b2")
    assert (draining.word, draining.rest) == ("BAD_STATE", ("draining",))
    assert world.calls.worker_restore("b3").word == "UNKNOWN"
    assert world.calls.worker_restore("b9").word == "UNKNOWN"

    assert world.dump() == before


# --- a retry ---


def test_a_retry_goes_to_another_worker(world: World) -> None:
    world.boot("b1", cpu=1)
    world.run("r1")
    world.boot("b2", cpu=1)

    fail(world, "r1:train:0", to="pending", after_ms=60_000)
    world.tick()

    assert world.field("r1:train:0", "boot") == "b2"


def test_a_retry_waits_for_another_worker_that_is_busy(world: World) -> None:
    world.boot("b1", cpu=1)
    world.run("r1", step_of(total=2))
    world.boot("b2", cpu=1)
    busy = world.running("r1:train:1")

    fail(world, "r1:train:0", to="pending", after_ms=60_000)
    world.tick()
    assert (world.state("r1:train:0"), world.used("b1")) == ("pending", 0)
    world.finish(busy)

    assert world.field("r1:train:0", "boot") == "b2"


def test_those_behind_a_retry_do_not_wait_for_it(world: World) -> None:
    world.boot("b1", cpu=1)
    world.run("r1", step_of(total=3))
    world.boot("b2", cpu=1)
    world.running("r1:train:1")

    fail(world, "r1:train:0", to="pending", after_ms=60_000)

    assert on(world, "b1") == ["r1:train:2"]


def test_many_retries_do_not_hide_those_behind_them(world: World) -> None:
    world.boot("b1", cpu=70, slot=70)
    world.create("r1", step_of(total=72))
    world.add("r1", n=71)
    world.tick()
    world.boot("b2", cpu=1)
    world.running("r1:train:70")
    for index in range(70):
        fail(world, f"r1:train:{index}", to="pending", after_ms=60_000)

    world.add("r1", first=71, n=1)

    assert on(world, "b1") == ["r1:train:71"]


def test_a_retry_remembers_the_worker_and_not_its_start(world: World) -> None:
    world.boot("b1", worker="w1", machine="m", cpu=1)
    world.run("r1")
    world.boot("b2", worker="w2", cpu=1)
    world.run("r2")
    assert world.field("r2:train:0", "boot") == "b2"
    fail(world, "r1:train:0", to="pending", after_ms=60_000)

    world.boot("b1-again", worker="w1", machine="m", cpu=1)
    world.tick()

    assert world.state("r1:train:0") == "pending"
    world.boot("b3", worker="w3", cpu=1)
    assert world.field("r1:train:0", "boot") == "b3"


@pytest.mark.parametrize(
    "other", ["none", "is too small", "drains", "leaves", "falls silent", "is quarantined", "stops accepting"]
)
def test_a_retry_goes_where_it_failed_if_no_other_could_hold_it(world: World, other: str) -> None:
    world.boot("b1", cpu=2)
    world.run("r1", step_of(cpu=2, max_failures=-1))
    if other != "none":
        world.boot("b2", cpu=1 if other == "is too small" else 2)
    if other not in ("none", "is too small"):
        world.run("hold", step_of(cpu=2, max_worker_losses=0))
        fail(world, "r1:train:0", to="pending", after_ms=60_000)
        held = world.running("hold:train:0")
        world.tick()
        world.tick()
        assert world.state("r1:train:0") == "pending"
    else:
        fail(world, "r1:train:0", to="pending", after_ms=60_000)

    if other == "drains":
        world.calls.worker_drain("b2", reason="stops")
    elif other == "leaves":
        world.calls.worker_leave("b2", text="stopped")
    elif other == "falls silent":
        world.silence("b2", 6_000)
    elif other == "stops accepting":
        world.beat("b2", accepting=False)
    elif other == "is quarantined":
        world.boot("b3", cpu=2, only="hold")
        quick = {"quick": '["x:train:0","x:train:1"]', "quick_ms": world.now_ms()}
        world.client.hset("fc:boot:b2", mapping=quick)
        world.finish(held, "failed", fails_up=1)
        assert boot_state(world, "b2") == "quarantined"
    world.tick()

    assert (world.state("r1:train:0"), world.field("r1:train:0", "boot")) == ("placed", "b1")


def test_a_retry_avoids_all_workers_where_it_failed_while_one_is_left(world: World) -> None:
    world.boot("b1", cpu=1)
    world.run("r1", step_of(max_failures=-1))
    for boot in ("b2", "b3"):
        world.boot(boot, cpu=1)

    visited = []
    for _ in range(3):
        visited.append(world.field("r1:train:0", "boot"))
        fail(world, "r1:train:0", to="pending", after_ms=60_000)
        world.tick()

    assert (visited[0], sorted(map(str, visited))) == ("b1", ["b1", "b2", "b3"])
    assert world.state("r1:train:0") == "placed"  # no other is left: any will do


def test_a_lost_attempt_avoids_nobody(world: World) -> None:
    world.boot("b1", cpu=1)
    world.run("r1")
    world.boot("b2", cpu=1)

    world.release(world.running())

    assert world.field("r1:train:0", "boot") == "b1"
