"""The checks themselves: each damage by hand is found, and named by its key or unit; unowned keys too."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from broker_builder import World, step_of

from flowctl.broker.invariants import violations
from flowctl.broker.keys import KEYS, owner_of, unowned

DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a sum differs": (lambda c: c.hincrby("fc:used:b1", "cpu", 1), "fc:used says"),
    "free differs": (lambda c: c.hincrby("fc:offer:b1", "cpu", 10_000), "fc:free says"),
    "more held than offered": (lambda c: c.hset("fc:offer:b1", "cpu", 1), "are held, 1 are offered"),
    "accepting differs": (lambda c: c.hset("fc:boot:b1", "accepting", 0), "its record says 0"),
    "no row in fc:free": (lambda c: c.hdel("fc:free", "b1"), "no row in fc:free"),
    "fc:free of nobody": (lambda c: c.hset("fc:free", "b9", "{}"), "boot b9"),
    "a row is lost": (lambda c: c.hdel("fc:alloc:b1", "r1:train:0@1"), "r1:train:0 is running with 1 bundles"),
    "a pool's sum differs": (lambda c: c.hset("fc:poolused", "license", 1), "fc:poolused says"),
    "a share differs": (lambda c: c.hincrby("fc:shares", "r1", 1), "fc:shares says"),
    "a total differs": (lambda c: c.hincrby("fc:total", "cpu", 1), "fc:total says"),
    "a shape is not listed": (lambda c: c.delete("fc:waiting"), "fc:waiting and fc:buckets differ"),
    "a row belongs to nobody": (
        lambda c: c.hset("fc:alloc:b1", "r1:train:4@7", '{"v":{},"s":"held"}'),
        "r1:train:4@7 on b1 is held",
    ),
    "an orphan is in use": (
        lambda c: c.hset("fc:alloc:b1", "r1:train:0@1", '{"v":{"cpu":10000,"slot":10000},"s":"orphan"}'),
        "is an orphan",
    ),
    "another vector": (
        lambda c: c.hset("fc:alloc:b1", "r1:train:0@1", '{"v":{"cpu":1},"s":"held"}'),
        "which is not its shape",
    ),
    "another epoch": (lambda c: c.hset("fc:unit:r1:train:0", "epoch", 9), "r1:train:0@1 on b1 is held"),
    "a counter differs": (lambda c: c.hincrby("fc:step:r1:train", "failed", 1), "counts 2 failed"),
    "a unit vanished": (lambda c: c.delete("fc:unit:r1:train:4"), "5, 4 units exist"),
    "a unit of no step": (lambda c: c.hset("fc:unit:r1:other:0", "state", "pending"), "belongs to no step"),
    "a pending unit waits nowhere": (lambda c: c.zrem(bucket(c), "r1:train:4"), "r1:train:4 is pending, but in"),
    "a pending unit waits twice": (lambda c: c.zadd("fc:delayed", {"r1:train:4": 1}), "in its bucket and delayed"),
    "a running unit waits": (lambda c: c.zadd(bucket(c), {"r1:train:0": 0}), "r1:train:0 is running, but in"),
    "a bucket is not listed": (lambda c: c.delete("fc:buckets"), "fc:buckets lacks r1:train"),
    "a bucket is listed in vain": (lambda c: c.zadd("fc:buckets", {"r1:train:x": 1}), "fc:buckets lists r1:train:x"),
    "active differs": (lambda c: c.srem("fc:active:r1", "r1:train:0"), "fc:active:r1 differs"),
    "a deadline lacks": (lambda c: c.zrem("fc:deadlines", "r1:train:0"), "fc:deadlines differs"),
    "a running unit without nonce": (lambda c: c.hdel("fc:unit:r1:train:0", "nonce"), "its nonce is None"),
    "a failed unit is ranked": (lambda c: c.zadd("fc:rank:r1:train", {"r1:train:2": 1}), "which is failed"),
    "a rank differs": (lambda c: c.zadd("fc:rank:r1:train", {"r1:train:0": 9}), "by 9.0, its best is 0.5"),
    "a failed unit is not listed": (lambda c: c.delete("fc:failed:r1"), "fc:failed:r1 differs"),
    "steps_left differs": (lambda c: c.hincrby("fc:run:r1", "steps_left", 1), "steps_left says 3"),
    "failed_steps differs": (lambda c: c.hincrby("fc:run:r1", "failed_steps", 1), "failed_steps says 1"),
    "cancelled_steps differs": (lambda c: c.hincrby("fc:run:r1", "cancelled_steps", 1), "cancelled_steps says 1"),
    "a run ended too early": (lambda c: c.hset("fc:run:r1", "state", "completed"), "with 2 steps left"),
    "deps_left differs": (lambda c: c.hset("fc:step:r1:last", "deps_left", 2), "deps_left says 2"),
    "an expansion is forgotten": (lambda c: c.hset("fc:step:r1:last", "total", 9), "in fc:expanding"),
}


def bucket(client: Any) -> str:
    (name,) = (key for key in client.keys("fc:bucket:r1:train:*"))
    return str(name)


@pytest.fixture
def busy(client: Any) -> World:
    """One unit running, one placed, one failed, one completed, one pending; a step that waits."""
    world = World(client)
    world.boot(cpu=2)
    world.run("r1", step_of(total=5), step_of("last", after=["train"]))
    world.finish(world.running("r1:train:1"), "completed")
    world.finish(world.running("r1:train:2"), "failed", fails_up=1)
    world.report(world.running("r1:train:0"), value=0.5)
    assert [world.state(f"r1:train:{n}") for n in range(5)] == ["running", "completed", "failed", "placed", "pending"]
    assert world.complaints() == []
    return world


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_found_and_named(busy: World, name: str) -> None:
    damage, sentence = DAMAGES[name]

    damage(busy.client)

    found = violations(busy.client)
    assert any(sentence in line for line in found), found


TOKEN_DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a pool sum differs": (lambda c: c.hincrby("fc:poolused", "license", 1), "fc:poolused says"),
    "a share differs": (lambda c: c.hincrby("fc:shares", "r1", 1), "fc:shares says"),
    "a total differs": (lambda c: c.hincrby("fc:total", "gpu", 1), "fc:total says"),
    "a device is booked twice": (lambda c: c.hset("fc:alloc:b1", "x:y:0@1", whole_card("orphan")), "b1: fc:used says"),
    "a device is held beyond what is offered": (lambda c: c.hdel("fc:offer:b1", "gpu:0"), "of gpu:0 are held, 0 are"),
    "a free device differs": (
        lambda c: c.hset("fc:free", "b1", '{"a":1,"c":"","f":{},"d":[["0",1]]}'),
        "of its devices",
    ),
    "a bundle is lost": (
        lambda c: c.hdel("fc:alloc:b2", "r1:train:0@1#1"),
        "with 2 bundles, its rows are of bundles [0]",
    ),
    "a bundle is too many": (
        lambda c: c.hset("fc:alloc:b2", "r1:train:0@1#2", whole_card("held")),
        "bundles [0, 1, 2]",
    ),
    "a bundle stands twice": (lambda c: copy_row(c, "r1:train:0@1#1"), "r1:train:0@1#1 stands on"),
    "a bundle is elsewhere": (
        lambda c: c.hset("fc:unit:r1:train:0", "gang", '["b1","b1"]'),
        "says that bundle 1 is on b1, its row is on b2",
    ),
}


def whole_card(state: str) -> str:
    return f'{{"v":{{"gpu:0":10000}},"s":"{state}"}}'


def copy_row(client: Any, name: str) -> None:
    client.hset("fc:alloc:b1", name, client.hget("fc:alloc:b2", name))


@pytest.fixture
def gang(client: Any) -> World:
    """A gang that runs on two machines, with a card and tokens of a pool."""
    world = World(client)
    world.boot("b1", gpu=1)
    world.boot("b2", cpu=1)
    world.calls.pool_set("license", 10_000)
    bundles = [{"gpu": 1, "license": 0.5}, {"cpu": 1, "license": 0.5}]
    world.run("r1", step_of(bundles=bundles, strategy="STRICT_SPREAD"))
    world.running()
    assert [boot for boot, _ in world.bundles()] == ["b1", "b2"]
    assert world.complaints() == []
    return world


@pytest.mark.parametrize("name", TOKEN_DAMAGES)
def test_a_damage_of_tokens_is_found_and_named(gang: World, name: str) -> None:
    damage, sentence = TOKEN_DAMAGES[name]

    damage(gang.client)

    found = violations(gang.client)
    assert any(sentence in line for line in found), found


def test_checks_write_nothing(busy: World) -> None:
    before = busy.dump()

    violations(busy.client)
    unowned(busy.client)

    assert busy.dump() == before


@pytest.mark.parametrize(
    ("leak", "sentence"),
    [
        (lambda c: c.set("fc:odd", 1), "fc:odd: no owner"),
        (lambda c: c.set("fcq", 1), "fcq: no owner"),
        (lambda c: c.set("fc:leftovers", 1), "fc:leftovers: a string, should be a set"),
        (lambda c: c.set("fc:name:x", 1), "fc:name:x: should have ended by itself"),
        (lambda c: c.hset("fc:unit:r9:train:0", "state", "pending"), "should have ended with its run"),
        (lambda c: c.sadd("fc:attention:b9", "x"), "should have ended with its boot"),
        (lambda c: c.hset("fc:boot:b9", "state", "gone"), "should have ended with its boot"),
    ],
)
def test_a_leaked_key_is_found(busy: World, leak: Callable[[Any], object], sentence: str) -> None:
    leak(busy.client)

    (found,) = unowned(busy.client)

    assert sentence in found


def test_keys_of_celery_have_owners(busy: World) -> None:
    busy.client.hset("fc:unacked", "tag", "x")
    busy.client.zadd("fc:unacked_index", {"tag": 1})
    busy.client.set("fc:unacked_mutex", "x", px=60_000)
    busy.client.sadd("_kombu.binding.fcq.b1", "x")
    busy.client.lpush("fcq.b1", "x")

    assert unowned(busy.client) == []


def test_patterns_are_told_apart() -> None:
    examples = {
        key.pattern: re.sub(r"<(\w+)>", lambda part: "0" if part[1] == "index" else part[1], key.pattern)
        for key in KEYS
    }

    for pattern, name in examples.items():
        owner = owner_of(name)
        assert owner is not None and owner.pattern == pattern
