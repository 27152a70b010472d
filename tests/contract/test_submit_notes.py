"""What `submit` says beside problems: GPUs that are there and that nothing asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from broker_builder import CPU, KEY, TIMES, World, step_of

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.store import Broker
from flowctl.broker.view import load_run
from flowctl.cli.launching import notes


def asked(need: dict[str, int]) -> dict[str, Any]:
    """A step of one unit with this need beside its slot."""
    bundles = [{"need": {**need, "slot": CPU}, "labels": []}]
    text = json.dumps({"bundles": bundles, "strategy": "PACK", "python": "3.11", "key": KEY})
    return step_of() | {"shape": "s", "shape_json": text}


@pytest.mark.parametrize(
    ("offer", "need", "is_noted"),
    [
        ({"gpu:0": 1}, {"cpu": CPU}, True),
        ({"gpu:0": 1}, {"cpu": CPU, "gpu": CPU}, False),
        ({"gpu:0": 1}, {"gpu": CPU // 2}, False),
        ({"license": 1}, {"cpu": CPU}, False),
        ({}, {"cpu": CPU}, False),
    ],
)
def test_gpus_that_nobody_asks_for_are_noted(
    world: World, offer: dict[str, Any], need: dict[str, int], is_noted: bool
) -> None:
    world.boot(cpu=1, **offer)
    world.run("r1", asked(need))
    broker = Broker(world.client, url=BrokerURL.parse("redis://unused"), times=TIMES)
    run = load_run(world.client, "r1")
    assert run is not None

    told = notes(broker, run)

    assert bool(told) == is_noted
    assert all("no trial asks for a GPU" in line and "worker-b1" in line for line in told)
