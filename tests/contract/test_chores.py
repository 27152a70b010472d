"""What a worker does for a dead client's run: one bounded piece at a time, and nothing for what has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_builder import TIMES, World, step_of
from run_folders import keyring

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.dsl.compile import compile_target
from flowctl.dsl.experiment import experiment
from flowctl.dsl.space import uniform
from flowctl.storage.errors import NotFound
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.workers.runs.chores import Chores
from flowctl.workers.runs.expand import CHUNK, Expansion, shape_of

TOTAL = 2 * CHUNK + 500


def train(config: Any) -> None:
    pass


@pytest.fixture
def folder(world: World, tmp_path: Path) -> RunFolder:
    """A run in server and storage whose client died before its first trial."""
    plan = compile_target(experiment(param_space={"x": uniform(0, 1)}, num_samples=TOTAL)(train)).plan
    made = RunFolder(Location.open(tmp_path / "runs"), "r1", keyring())
    made.create({"name": "r1", "token": "t-r1", "created_ms": 1, "python": "3.11"}, plan, {"train": b""})
    request = plan.step("train").request
    assert request is not None
    shape, text = shape_of(request, python="3.11", key_id=keyring().key_id)
    world.create("r1", step_of(total=TOTAL) | {"shape": shape, "shape_json": text})
    world.client.hset("fc:run:r1", "location", made.location.url)
    world.client.zadd("fc:expanding", {"r1:train": world.now_ms()})
    return made


@pytest.fixture
def broker(world: World) -> Broker:
    return Broker(world.client, url=BrokerURL.parse("redis://unused"), times=TIMES)


@pytest.fixture
def chores(tmp_path: Path) -> Chores:
    settings = Settings.from_env({"FLOWCTL_HOME": str(tmp_path / "home")})
    return Chores(settings=settings, keyring=keyring(), owner="b1")


def expanded(world: World) -> int:
    return int(world.client.hget("fc:step:r1:train", "expanded") or 0)


def test_each_beat_makes_at_most_one_chunk_and_the_last_ends_it(
    world: World, folder: RunFolder, broker: Broker, chores: Chores
) -> None:
    seen = []
    while expanded(world) < TOTAL:
        chores.do(broker)
        seen.append(expanded(world))

    assert all(later - before <= CHUNK for before, later in zip([0, *seen], seen, strict=False))
    assert not world.client.exists("fc:expanding")
    assert len(folder.read_shard("train", 2)) == 500


@pytest.mark.parametrize("beats_before", [0, 1])
def test_nothing_is_made_for_a_cancelled_run(
    world: World, folder: RunFolder, broker: Broker, chores: Chores, beats_before: int
) -> None:
    for _ in range(beats_before):
        chores.do(broker)
    world.calls.run_cancel("r1")

    chores.do(broker)
    chores.do(broker)

    assert len(list(world.client.scan_iter("fc:unit:*"))) == beats_before * CHUNK
    with pytest.raises(NotFound):
        folder.read_shard("train", beats_before)


def test_a_costly_chunk_is_made_in_parts(world: World, folder: RunFolder, broker: Broker) -> None:
    expansion = Expansion(folder, folder.load_plan().step("train"), expanded=0, key_id=keyring().key_id, python="3.11")

    expansion.go_on(broker, seconds=0)
    assert (expansion.expanded, expanded(world)) == (0, 0)
    expansion.go_on(broker)

    assert (expansion.expanded, expanded(world)) == (CHUNK, CHUNK)
    assert not expansion.is_done
