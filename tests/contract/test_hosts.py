"""Hosts: code of a running attempt on its further bundles, and the repair of a bundle whose worker is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from broker_builder import CPU, World, step_of

from flowctl.broker.calls import Fence, HostFence
from flowctl.broker.host_view import load_bundle, load_host

UNIT = "r1:train:0"
ONE = {"cpu": CPU, "slot": CPU}


@pytest.fixture
def gang(world: World) -> tuple[World, Fence]:
    """A running attempt with a bundle on each of two machines."""
    world.boot("b1", cpu=1)
    world.boot("b2", cpu=1)
    world.run("r1", step_of(bundles=[{"cpu": 1}, {"cpu": 1}], strategy="STRICT_SPREAD", max_failures=1))
    return world, world.running(UNIT)


def other(world: World) -> str:
    """The boot of bundle 1."""
    return world.bundles(UNIT)[1][0]


def host(fence: Fence, *, number: int = 1, nonce: str = "e" * 16) -> HostFence:
    return HostFence(fence.unit, fence.epoch, 1, number, nonce)


def start(world: World, fence: Fence, *, number: int = 1) -> str:
    return world.calls.host_start(fence, bundle=1, number=number, digest="sha256:0").word


def row(world: World, fence: Fence, boot: str) -> dict[str, Any] | None:
    text = world.client.hget(f"fc:alloc:{boot}", f"{fence.unit}@{fence.epoch}#1")
    return json.loads(text) if text else None


def begin(world: World, fence: Fence) -> HostFence:
    """A host that runs on bundle 1."""
    assert start(world, fence) == "OK"
    assert world.calls.host_claim(host(fence), boot=other(world)).word == "OK"
    return host(fence)


def state(world: World, *, number: int = 1) -> str | None:
    found = load_host(world.client, UNIT, bundle=1, number=number)
    return None if found is None else str(found["state"])


def test_a_host_gets_one_message_on_the_worker_of_its_bundle(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    boot = other(world)

    assert [start(world, fence), start(world, fence)] == ["OK", "OK"]

    bodies = [json.loads(text) for text in world.client.lrange(f"fcq.{boot}", 0, -1)]
    assert bodies == [{"unit": UNIT, "epoch": f"{fence.epoch}#1.1"}]
    assert state(world) == "placed"


@pytest.mark.parametrize(("bundle", "word"), [(0, "NO_BUNDLE"), (2, "NO_BUNDLE")])
def test_only_a_further_bundle_can_host(gang: tuple[World, Fence], bundle: int, word: str) -> None:
    world, fence = gang

    assert world.calls.host_start(fence, bundle=bundle, number=1, digest="d").word == word


def test_a_stranger_asks_in_vain(gang: tuple[World, Fence]) -> None:
    world, fence = gang

    assert start(world, Fence(UNIT, fence.epoch, "f" * 16)) == "LOST"
    assert start(world, Fence(UNIT, fence.epoch + 1, fence.nonce)) == "LOST"


def test_one_host_at_a_time(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    begin(world, fence)

    assert start(world, fence, number=2) == "BUSY"


def test_a_claim_is_for_one_nonce_on_one_boot(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    boot = other(world)
    start(world, fence)

    assert world.calls.host_claim(host(fence), boot=fence.unit).word == "STALE"
    first = world.calls.host_claim(host(fence), boot=boot)
    assert first.word == "OK"
    assert first.value["tokens"] == ONE
    assert first.value["by"] == fence.nonce
    assert world.calls.host_claim(host(fence), boot=boot).word == "OK"
    assert world.calls.host_claim(host(fence, nonce="d" * 16), boot=boot).word == "STALE"


def test_a_host_that_ended_leaves_its_bundle_to_the_next(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    running = begin(world, fence)

    for _ in range(2):
        reply = world.calls.host_end(running, boot=other(world), state="completed", result={"value": 7})
        assert reply.word == "OK"

    assert load_host(world.client, UNIT, bundle=1, number=1) == {"state": "completed", "text": None, "value": 7}
    assert start(world, fence, number=2) == "OK"
    assert state(world) is None


def test_its_lease_is_its_own(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    running = begin(world, fence)
    assert world.calls.host_renew(running).word == "CONTINUE"
    assert world.calls.host_renew(host(fence, nonce="d" * 16)).word == "LOST"
    world.client.zadd("fc:deadlines", {f"{UNIT}@{fence.epoch}#1.1": 1})

    world.tick()

    assert state(world) == "lost"
    assert world.state(UNIT) == "running"
    assert world.calls.host_renew(running).word == "LOST"
    assert start(world, fence, number=2) == "BUSY"  # nobody knows yet that its process is gone
    world.beat(other(world), running=[f"{UNIT}@{fence.epoch}"])
    assert start(world, fence, number=2) == "OK"


def test_a_message_that_nobody_takes_is_withdrawn(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    start(world, fence)
    world.client.zadd("fc:deadlines", {f"{UNIT}@{fence.epoch}#1.1": 1})

    world.tick()

    assert state(world) == "lost"
    assert world.client.llen(f"fcq.{other(world)}") == 0
    assert world.calls.host_claim(host(fence), boot=other(world)).word == "STALE"
    assert start(world, fence, number=2) == "OK"


def test_stopping_is_told_to_its_guardian(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    running = begin(world, fence)

    assert world.calls.host_stop(fence, bundle=1, number=1).rest == ("running",)

    assert world.calls.host_renew(running).word == "CANCEL"
    assert f"{UNIT}@{fence.epoch}#1" in world.client.smembers(f"fc:attention:{other(world)}")


def test_a_host_that_is_stopped_before_it_began_runs_nothing(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    start(world, fence)

    world.calls.host_stop(fence, bundle=1, number=1)

    assert state(world) == "cancelled"
    assert world.calls.host_claim(host(fence), boot=other(world)).word == "STALE"


def test_the_bundle_of_a_host_outlives_its_attempt_until_the_host_is_gone(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    boot, running = other(world), begin(world, fence)

    world.finish(fence, "completed")

    assert world.used(boot) == CPU
    assert (row(world, fence, boot) or {})["s"] == "orphan"
    assert world.calls.host_renew(running).word == "LOST"
    world.beat(boot, running=[])  # a list that may be older than the host
    assert world.used(boot) == CPU
    assert world.calls.host_end(running, boot=boot, state="cancelled", result={}).word == "OK"
    assert world.used(boot) == 0
    assert world.calls.host_end(running, boot=boot, state="cancelled", result={}).word == "LOST"


def test_a_beat_frees_the_bundle_of_a_host_whose_guardian_died_too(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    boot = other(world)
    begin(world, fence)
    world.finish(fence, "failed")
    late = {**(row(world, fence, boot) or {}), "after": 1}
    world.client.hset(f"fc:alloc:{boot}", f"{UNIT}@{fence.epoch}#1", json.dumps(late))

    world.beat(boot, running=[f"{UNIT}@{fence.epoch}#1"])
    assert world.used(boot) == CPU
    world.beat(boot, running=[])

    assert world.used(boot) == 0


def test_a_host_that_was_not_claimed_ends_with_its_attempt(gang: tuple[World, Fence]) -> None:
    world, fence = gang
    boot = other(world)
    start(world, fence)

    world.finish(fence, "completed")

    assert world.client.llen(f"fcq.{boot}") == 0
    assert world.calls.host_claim(host(fence), boot=boot).word == "STALE"


# --- repair ---


@pytest.fixture
def mended(world: World) -> tuple[World, Fence]:
    """A running attempt of three bundles, each on a machine of its own, whose lost ones are replaced."""
    for name in ("b1", "b2", "b3"):
        world.boot(name, cpu=1)
    step = step_of(bundles=[{"cpu": 1}] * 3, strategy="STRICT_SPREAD")
    world.run("r1", {**step, "on_bundle_loss": "repair"})
    return world, world.running(UNIT)


def test_a_lost_bundle_waits_for_a_worker_that_its_strategy_allows(mended: tuple[World, Fence]) -> None:
    world, fence = mended
    boots = [boot for boot, _ in world.bundles(UNIT)]
    begin(world, fence)

    world.calls.worker_leave(boots[1], text="gone")

    assert world.state(UNIT) == "running"
    assert state(world) == "lost"
    assert load_bundle(world.client, UNIT, epoch=fence.epoch, bundle=1) is None
    assert start(world, fence, number=2) == "REPAIRING"
    world.boot("b4", cpu=4, machine=world.client.hget(f"fc:boot:{boots[0]}", "machine"))
    assert load_bundle(world.client, UNIT, epoch=fence.epoch, bundle=1) is None
    world.boot("b5", cpu=4, machine="another")
    found = load_bundle(world.client, UNIT, epoch=fence.epoch, bundle=1) or {}
    assert (found["machine"], found["tokens"]) == ("another", ONE)
    assert start(world, fence, number=2) == "OK"


def test_a_repair_comes_before_other_work_of_its_priority(mended: tuple[World, Fence]) -> None:
    world, fence = mended
    world.run("r2", step_of(total=5))
    world.run("r3", step_of(priority=1, total=1))
    boots = [boot for boot, _ in world.bundles(UNIT)]
    world.calls.worker_leave(boots[2], text="gone")

    world.boot("b4", cpu=2, machine="another")

    assert world.state("r3:train:0") == "placed"
    assert load_bundle(world.client, UNIT, epoch=fence.epoch, bundle=2) is not None
    assert world.count("placed", run="r2") == 0


@pytest.mark.parametrize("end", ["finish", "lose", "cancel"])
def test_the_end_of_the_attempt_ends_its_repairs(mended: tuple[World, Fence], end: str) -> None:
    world, fence = mended
    boots = [boot for boot, _ in world.bundles(UNIT)]
    world.calls.worker_leave(boots[1], text="gone")
    assert world.client.zcard("fc:repairs") == 1

    if end == "finish":
        world.finish(fence, "completed")
    elif end == "lose":
        world.calls.worker_leave(boots[0], text="gone too")
    else:
        world.calls.run_cancel("r1")
        world.finish(fence, "cancelled")

    assert world.client.zcard("fc:repairs") == 0
    assert [world.used(boot) for boot in boots] == [0, 0, 0]
