"""Reasons and placement say the same of any cluster: what waits has something to wait for, and never means never."""

from __future__ import annotations

import random
from typing import Any

import pytest
from broker_builder import CPU, World, step_of

from flowctl.broker.reason import Reason
from flowctl.broker.reasons import pending_reasons
from flowctl.broker.view import load_run
from flowctl.broker.worker_view import load_workers

SEEDS = range(12)
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def any_step(draw: random.Random) -> dict[str, Any]:
    """A step of one unit with one to three bundles of cores, devices, tokens and labels."""
    bundles = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        bundle: dict[str, Any] = {"cpu": draw.choice((0.5, 1, 2, 5))}
        bundle |= draw.choice(({}, {"gpu": 0.5}, {"gpu": 0.7}, {"gpu": 1}, {"gpu": 2}))
        bundle |= draw.choice(({}, {}, {"tri": 1}, {"license": 1}))
        bundles.append({**bundle, "labels": draw.choice(((), (), ("spot",), ("!spot",)))})
    strategy = draw.choice(STRATEGIES) if len(bundles) > 1 else "PACK"
    return {**step_of(bundles=bundles, strategy=strategy), "shape": f"s{draw.getrandbits(60):x}"}


@pytest.mark.parametrize("seed", SEEDS)
def test_no_reason_contradicts_placement(world: World, seed: int) -> None:
    draw = random.Random(seed)
    world.calls.pool_set("license", 2 * CPU)
    for number in range(draw.randint(1, 4)):
        world.boot(
            f"b{number}",
            machine=f"m{draw.randint(0, 2)}",
            cpu=draw.choice((1, 2, 4)),
            slot=4,
            gpu=draw.randint(0, 2),
            labels=draw.choice(((), ("spot",))),
            tri=draw.choice((0, 1)),
        )
    for number in range(14):
        world.run(f"r{number}", any_step(draw))
    for _ in range(3):
        world.tick()

    reasons = {f"r{number}": reasons_of(world, f"r{number}") for number in range(14)}
    assert any(reasons.values())
    assert [reason for found in reasons.values() for reason in found if reason.kind == "placing"] == []
    never = [run for run, found in reasons.items() if any(reason.is_impossible for reason in found)]
    for run in reasons.keys() - set(never):
        world.calls.run_cancel(run)
        for unit in world.client.smembers(f"fc:active:{run}"):
            world.calls.unit_cancel(unit)
    world.tick()
    world.tick()
    assert [run for run in never if world.state(f"{run}:train:0") != "pending"] == []


def reasons_of(world: World, run: str) -> list[Reason]:
    found = load_run(world.client, run)
    assert found is not None
    return pending_reasons(world.client, found, load_workers(world.client), at_ms=world.now_ms())
