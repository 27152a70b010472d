"""The reservation: boots are kept for the first request in order that waited long and could be met, one at a time."""

from __future__ import annotations

import json
from typing import Any

from broker_builder import CPU, TIMES, World, step_of

LONG_MS = TIMES.reserve_ms


def kept(world: World) -> dict[str, Any] | None:
    text = world.client.get("fc:reserve")
    return json.loads(text) if text else None


def kept_for(world: World) -> str | None:
    found = kept(world)
    return found["unit"] if found else None


def waited(world: World, unit: str) -> None:
    """The unit has waited as long as it takes to get boots kept for it."""
    world.age(unit, LONG_MS)
    world.tick()


def full(world: World, *, cpu: int = 4) -> list[str]:
    """A worker that is full with trials of one core, of which more wait."""
    world.boot("b1", cpu=cpu, slot=20)
    world.run("small", step_of(total=40))
    return [f"small:train:{index}" for index in range(cpu)]


# --- who gets it ---


def test_a_stream_of_small_ones_does_not_starve_a_large_one(world: World) -> None:
    running = full(world)
    world.run("big", step_of(cpu=4))
    world.finish(world.running(running.pop()))
    assert world.placed(run="small") == [0, 1, 2, 4]
    waited(world, "big:train:0")
    assert kept_for(world) == "big:train:0"

    for index in (0, 1, 2):
        world.finish(world.running(f"small:train:{index}"))
        world.tick()
        assert (world.placed(run="small")[-1], world.placed(run="big")) == (4, [])
    world.finish(world.running("small:train:4"))

    assert (world.placed(run="big"), world.placed(run="small"), kept(world)) == ([0], [], None)
    world.finish(world.running("big:train:0"))
    assert len(world.placed(run="small")) == 4


def test_a_gang_of_the_whole_cluster_starts_when_the_longest_has_ended(world: World) -> None:
    for number in range(3):
        world.boot(f"b{number}", cpu=2, slot=20)
    world.run("small", step_of(total=60))
    world.run("gang", step_of(bundles=[{"cpu": 2}] * 3, strategy="STRICT_SPREAD"))
    waited(world, "gang:train:0")

    for index in range(6):
        assert world.placed(run="gang") == []
        world.finish(world.running(f"small:train:{index}"))
        world.tick()

    assert {boot for boot, _ in world.bundles("gang:train:0")} == {"b0", "b1", "b2"}
    assert world.placed(run="small") == []


def test_nothing_is_kept_before_the_time(world: World) -> None:
    full(world)
    world.run("big", step_of(cpu=4))

    world.age("big:train:0", LONG_MS - 1000)
    world.tick()

    assert kept(world) is None


def test_the_time_before_a_step_may_run_does_not_count(world: World) -> None:
    world.boot(cpu=4, slot=20)
    world.run("r1", step_of("a"), step_of("b", after=["a"], cpu=4))
    world.age("r1:b:0", LONG_MS)
    world.run("small", step_of(total=40))

    world.finish(world.running("r1:a:0"))
    world.tick()

    assert kept(world) is None


def test_others_fill_what_it_will_not_need(world: World) -> None:
    world.boot("b1", cpu=4, gpu=1, slot=20)
    world.boot("b2", cpu=2, slot=20)
    world.run("hold", step_of(total=2, cpu=2, gpu=0.25))
    world.run("big", step_of(cpu=3, gpu=0.5))
    waited(world, "big:train:0")
    assert kept_for(world) == "big:train:0"

    world.run("cards", step_of(total=3, gpu=0.25))
    world.run("small", step_of(total=3))

    assert world.placed(run="cards") == []  # a quarter is free, and is needed
    assert {world.field(f"small:train:{index}", "boot") for index in world.placed(run="small")} == {"b2"}
    assert len(world.placed(run="small")) == 2
    world.finish(world.running("hold:train:0"))
    assert world.placed(run="small") == [0, 1]
    world.finish(world.running("hold:train:1"))
    assert world.placed(run="big") == [0]
    assert (world.placed(run="small"), world.placed(run="cards")) == ([0, 1, 2], [0, 1])


def test_an_impossible_request_gets_nothing_and_holds_up_nobody(world: World) -> None:
    running = full(world)
    world.run("never", step_of(cpu=5, priority=9), step_of("gang", bundles=[{"cpu": 4}, {"cpu": 4}], priority=9))
    world.run("big", step_of(cpu=3))
    world.age("never:train:0", 10 * LONG_MS)
    world.age("never:gang:0", 10 * LONG_MS)

    waited(world, "big:train:0")

    assert kept_for(world) == "big:train:0"
    for unit in running[:3]:
        world.finish(world.running(unit))
    assert world.placed(run="big") == [0]


def test_what_only_draining_workers_could_hold_is_impossible(world: World) -> None:
    full(world)
    world.boot("b2", cpu=8)
    world.run("hold", step_of(cpu=8))
    world.run("big", step_of(cpu=8))
    world.calls.worker_drain("b2", reason="stops")

    waited(world, "big:train:0")

    assert kept(world) is None


def test_the_first_in_order_gets_it_of_those_that_waited(world: World) -> None:
    full(world)
    world.run("r1", step_of(cpu=4))
    world.run("r2", step_of(cpu=3))
    world.run("r3", step_of(cpu=2, priority=1))
    world.age("r1:train:0", LONG_MS)

    waited(world, "r2:train:0")

    assert kept_for(world) == "r1:train:0"


def test_one_at_a_time_and_two_overlapping_gangs_do_not_deadlock(world: World) -> None:
    for number in range(3):
        world.boot(f"b{number}", cpu=1)
    world.run("small", step_of(total=3))
    world.run("g1", step_of(bundles=[{"cpu": 1}] * 2, strategy="STRICT_SPREAD"))
    world.run("g2", step_of(bundles=[{"cpu": 1}] * 3, strategy="STRICT_SPREAD"))
    world.age("g2:train:0", LONG_MS)
    waited(world, "g1:train:0")
    assert kept_for(world) == "g1:train:0"

    for index in range(3):
        world.finish(world.running(f"small:train:{index}"))
        world.tick()

    assert (world.placed(run="g1"), world.placed(run="g2"), kept_for(world)) == ([0], [], "g2:train:0")
    world.finish(world.running("g1:train:0"))
    assert world.placed(run="g2") == [0]


def test_who_waits_for_its_turn_gets_none(world: World) -> None:
    world.boot(cpu=4)
    world.run("r1", step_of(total=2, max_concurrent=1))

    waited(world, "r1:train:1")

    assert kept(world) is None


def test_a_retry_gets_none_of_the_worker_where_it_failed(world: World) -> None:
    world.boot("b1", cpu=2)
    world.run("r1", step_of(cpu=2, max_failures=3))
    fence = world.running()
    world.boot("b2", cpu=2)
    world.run("r2", step_of(cpu=2))
    world.finish(fence, "pending", fails_up=1)
    world.tick()
    assert (world.field("r2:train:0", "boot"), world.state()) == ("b2", "pending")

    waited(world, "r1:train:0")
    world.tick()

    assert (world.state(), [part["boot"] for part in (kept(world) or {})["parts"]]) == ("pending", ["b2"])
    world.finish(world.running("r2:train:0"))
    assert world.field("r1:train:0", "boot") == "b2"


def test_the_boot_that_lacks_least_is_kept(world: World) -> None:
    world.boot("b1", cpu=8)
    world.boot("b2", cpu=8)
    world.run("r1", step_of(total=2, cpu=5), step_of("more", cpu=2))
    free = {boot: world.offer(boot) - world.used(boot) for boot in ("b1", "b2")}
    assert sorted(free.values()) == [CPU, 3 * CPU]
    world.run("big", step_of(cpu=4))

    waited(world, "big:train:0")

    assert [part["boot"] for part in (kept(world) or {})["parts"]] == [max(free, key=lambda boot: free[boot])]


# --- pools ---


def test_pool_tokens_are_kept_too(world: World) -> None:
    world.boot(cpu=4, slot=20)
    world.calls.pool_set("license", 2 * CPU)
    world.run("hold", step_of(total=2, license=1))
    world.run("big", step_of(license=2))
    waited(world, "big:train:0")

    world.run("small", step_of(total=4, license=1))
    world.finish(world.running("hold:train:0"))
    world.tick()
    assert (world.placed(run="small"), world.pool_used("license")) == ([], CPU)
    world.finish(world.running("hold:train:1"))

    assert (world.placed(run="big"), world.placed(run="small")) == ([0], [])


def test_a_pool_that_shrinks_below_it_ends_it(world: World) -> None:
    world.boot(cpu=4)
    world.calls.pool_set("license", 2 * CPU)
    world.run("hold", step_of(license=1))
    world.run("big", step_of(license=2))
    waited(world, "big:train:0")
    assert kept_for(world) == "big:train:0"

    world.calls.pool_set("license", CPU)
    world.tick()

    assert kept(world) is None


def test_a_pool_that_comes_or_goes_ends_it_and_no_token_is_saved(world: World) -> None:
    world.boot(cpu=4, license=2)
    world.calls.pool_set("license", 2 * CPU)
    world.run("hold", step_of(license=1))
    world.run("big", step_of(license=2))
    waited(world, "big:train:0")
    assert kept_for(world) == "big:train:0"

    world.calls.pool_set("license", None)

    assert (kept(world), world.placed(run="big"), world.used(dim="license")) == (None, [0], 2 * CPU)


# --- how it ends ---


def test_what_was_kept_for_a_cancelled_trial_is_used_at_once(world: World) -> None:
    world.boot("b1", cpu=4, slot=20)
    world.run("hold", step_of(cpu=2))
    world.run("big", step_of(cpu=3))
    waited(world, "big:train:0")
    world.run("small", step_of(total=4))
    world.tick()
    world.tick()
    assert (kept_for(world), world.placed(run="small")) == ("big:train:0", [])

    world.calls.unit_cancel("big:train:0")
    world.tick()

    assert (kept(world), world.placed(run="small")) == (None, [0, 1])


def test_what_was_placed_elsewhere_needs_it_no_more(world: World) -> None:
    full(world)
    world.run("big", step_of(cpu=3))
    waited(world, "big:train:0")
    world.finish(world.running("small:train:0"))
    assert len(world.placed(run="small")) == 3

    world.boot("b2", cpu=3)
    world.tick()

    assert (world.field("big:train:0", "boot"), kept(world), len(world.placed(run="small"))) == ("b2", None, 4)


def test_it_lapses_when_its_boot_drains_and_goes_to_another(world: World) -> None:
    for number in (1, 2):
        world.boot(f"b{number}", cpu=4)
    world.run("hold", step_of(total=2, cpu=4))
    world.run("big", step_of(cpu=3))
    waited(world, "big:train:0")
    ((_, boot),) = [(part["v"], part["boot"]) for part in (kept(world) or {})["parts"]]

    world.calls.worker_drain(boot, reason="stops")
    world.tick()

    (part,) = (kept(world) or {})["parts"]
    assert {boot, part["boot"]} == {"b1", "b2"}


def test_it_is_thought_over_after_as_long_a_wait_again(world: World) -> None:
    full(world)
    world.run("big", step_of(cpu=4))
    waited(world, "big:train:0")
    world.run("urgent", step_of(cpu=4, priority=1))
    world.age("urgent:train:0", LONG_MS)
    world.tick()
    assert kept_for(world) == "big:train:0"

    old = kept(world) or {}
    world.client.set("fc:reserve", json.dumps(old | {"ms": world.now_ms() - LONG_MS}))
    world.tick()

    assert kept_for(world) == "urgent:train:0"


def test_it_may_go_elsewhere_on_the_boots_that_are_kept(world: World) -> None:
    """A card that is kept is not the only one that will do."""
    world.boot(gpu=2, slot=20)
    world.run("hold", step_of(total=2, gpu=0.6))
    world.run("big", step_of(gpu=0.5))
    waited(world, "big:train:0")
    ((device,),) = [list(part["v"].keys() - {"slot"}) for part in (kept(world) or {})["parts"]]
    other = next(index for index in (0, 1) if f"gpu:{next(iter(world.devices(f'hold:train:{index}')))}" != device)

    world.finish(world.running(f"hold:train:{other}"))

    assert world.placed(run="big") == [0]
    assert kept(world) is not None
    world.tick()
    assert kept(world) is None
