"""Cluster-wide pools: tokens that belong to no worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_builder import CPU, World, step_of


def test_a_pool_is_shared_by_all_workers(world: World) -> None:
    world.boot("b1", cpu=2)
    world.boot("b2", cpu=2)
    world.calls.pool_set("license", 3 * CPU)

    world.run("r1", step_of(total=4, license=1, cpu=1))

    assert (world.placed(), world.pool_used("license")) == ([0, 1, 2], 3 * CPU)
    assert "license" not in world.client.hgetall("fc:used:b1") | world.client.hgetall("fc:used:b2")


def test_a_claim_is_told_its_pool_tokens(world: World) -> None:
    world.boot()
    world.calls.pool_set("license", CPU)
    world.run("r1", step_of(license=0.5))

    placed = world.placement()
    assert placed is not None

    assert world.claim(world.fence(placed)).value["tokens"] == {"license": 5000, "slot": CPU}


def test_fractions_of_a_pool_add_up_exactly(world: World) -> None:
    world.boot(slot=20)
    world.calls.pool_set("license", CPU)

    world.run("r1", step_of(total=12, license=0.1))

    assert (world.placed(), world.pool_used("license")) == (list(range(10)), CPU)


def test_an_unknown_pool_is_asked_of_the_workers(world: World) -> None:
    world.boot("b1")
    world.boot("b2", license=1)

    world.run("r1", step_of(total=2, license=1))

    assert (world.placed(), world.field("r1:train:0", "boot")) == ([0], "b2")


def test_a_pool_goes_before_tokens_of_that_name_that_workers_offer(world: World) -> None:
    world.boot(license=5)
    world.calls.pool_set("license", CPU)

    world.run("r1", step_of(total=2, license=1))

    assert (world.placed(), world.pool_used("license"), world.used(dim="license")) == ([0], CPU, 0)


def test_growing_places_at_once(world: World) -> None:
    world.boot("b1", cpu=1)
    world.boot("b2", cpu=1)
    world.calls.pool_set("license", 0)
    world.run("r1", step_of(total=2, license=1, cpu=1))
    world.tick()
    assert world.placed() == []

    reply = world.calls.pool_set("license", 2 * CPU)

    assert (world.placed(), reply.rest) == ([0, 1], (str(2 * CPU),))


def test_shrinking_below_what_is_in_use_drains_and_never_grants_more(world: World) -> None:
    world.boot(cpu=10, slot=10)
    world.calls.pool_set("license", 3 * CPU)
    world.run("r1", step_of(total=5, license=1))
    fences = [world.running(f"r1:train:{index}") for index in range(3)]

    assert world.calls.pool_set("license", CPU).rest == (str(3 * CPU),)

    assert all(world.calls.trial_renew(fence).word == "CONTINUE" for fence in fences)
    for fence, used in zip(fences, (2, 1), strict=False):
        world.finish(fence)
        world.tick()
        assert (world.pool_used("license"), world.placed()[-1]) == (used * CPU, 2)
    world.finish(fences[2])
    assert world.placed() == [3]


def test_a_removed_pool_leaves_what_holds_of_it_and_its_sums(world: World) -> None:
    world.boot("b1")
    world.calls.pool_set("license", CPU)
    world.run("r1", step_of(total=2, license=1))
    fence = world.running("r1:train:0")

    world.calls.pool_set("license", None)

    assert (world.pool_used("license"), world.placed()) == (CPU, [0])
    world.boot("b2", license=1)
    assert world.field("r1:train:1", "boot") == "b2"
    world.finish(fence)
    assert world.pool_used("license") == 0


def test_a_gang_holds_the_pool_tokens_of_all_its_bundles(world: World) -> None:
    world.boot("b1", cpu=1)
    world.boot("b2", cpu=1)
    world.calls.pool_set("license", 3 * CPU)

    world.run("r1", step_of(bundles=[{"cpu": 1, "license": 1}, {"cpu": 1, "license": 2}]))
    world.run("r2", step_of(license=0.5))

    assert (world.pool_used("license"), world.placed(), world.placed(run="r2")) == (3 * CPU, [0], [])
    world.finish(world.running())
    assert (world.placed(run="r2"), world.pool_used("license")) == ([0], 5000)


def test_an_orphan_keeps_its_pool_token_until_it_is_gone(world: World) -> None:
    world.boot("b1")
    world.boot("b2")
    world.calls.pool_set("license", CPU)
    world.run("r1", step_of(license=1))
    fence = world.running()
    boot = world.field("r1:train:0", "boot") or ""
    world.expire("r1:train:0")
    world.tick()
    world.beat(boot, running=[f"r1:train:0@{fence.epoch}"])
    world.tick()
    assert (world.pool_used("license"), world.state()) == (CPU, "pending")

    world.beat(boot, running=[])

    assert (world.pool_used("license"), world.state()) == (CPU, "placed")
    assert world.field("r1:train:0", "epoch") == "2"


ENDS: dict[str, Callable[[World], object]] = {
    "finish": lambda world: world.finish(world.running()),
    "fails, and tries again later": lambda world: world.finish(world.running(), "pending", delay_ms=60_000, fails_up=1),
    "handback": lambda world: world.calls.trial_handback(world.running(), reason="why", delay_ms=60_000),
    "guardian died": lambda world: world.release(world.running()),
    "cancelled before its claim": lambda world: world.calls.unit_cancel("r1:train:0"),
    "run cancelled before its claim": lambda world: (
        world.calls.run_cancel("r1"),
        world.miss("r1:train:0"),
    ),
    "its worker left": lambda world: (world.running(), world.calls.worker_leave("b1", text="stopped")),
    "its lease was lost": lambda world: (
        world.running(),
        world.miss("r1:train:0"),
        world.beat(running=[]),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_freed_pool_token_is_used_on_another_worker(world: World, name: str) -> None:
    """What waits for it fits only on a worker none of whose tokens changed."""
    world.boot("b1", cpu=1)
    world.calls.pool_set("license", CPU)
    world.run("r1", step_of(license=1, cpu=1, max_worker_losses=0))
    assert world.field("r1:train:0", "boot") == "b1"
    world.boot("b2", cpu=2)
    world.run("r2", step_of(license=1, cpu=2))
    world.tick()
    world.tick()
    assert world.state("r2:train:0") == "pending"

    ENDS[name](world)
    world.tick()

    assert (world.state("r2:train:0"), world.pool_used("license")) == ("placed", CPU)
