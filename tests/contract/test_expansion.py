"""Making units whose requests differ, and units that end before they begin: a request that could not be computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_builder import CPU, KEY, TIMES, World, step_of
from run_folders import keyring

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.calls import Reply
from flowctl.broker.settings import Settings
from flowctl.broker.shapes import load_needs
from flowctl.broker.store import Broker
from flowctl.dsl.compile import compile_target
from flowctl.dsl.experiment import experiment
from flowctl.dsl.space import grid
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.workers.runs.chores import Chores
from flowctl.workers.runs.expand import CHUNK, Expansion, shape_of
from flowctl.workers.runs.requests import Asks

CAUSE = {
    "kind": "exception",
    "type": "ZeroDivisionError",
    "text": "in the function of its resources",
    "place": "x.py:1",
}


def shape(cpu: int) -> tuple[str, str]:
    """(id, JSON) of a shape of one bundle."""
    bundles = [{"need": {"cpu": cpu * CPU, "slot": CPU}, "labels": []}]
    return f"cpu{cpu}", json.dumps({"bundles": bundles, "strategy": "PACK", "python": "3.11", "key": KEY})


def asking(name: str = "train", **more: Any) -> dict[str, Any]:
    """A step whose units bring their own shapes."""
    return step_of(name, **more) | {"shape": "", "shape_json": ""}


def add(world: World, *cpus: int | None, first: int = 0, step: str = "train") -> Reply:
    """One unit per number of cores; None could not be computed."""
    shapes = dict(shape(cpu) for cpu in cpus if cpu is not None)
    groups = [("" if cpu is None else shape(cpu)[0], 1) for cpu in cpus]
    failed = {first + i: CAUSE for i, cpu in enumerate(cpus) if cpu is None}
    return world.calls.trials_add("r1", step, first=first, groups=groups, failed=failed, shapes=shapes)


def held(world: World) -> list[int]:
    rows = [json.loads(row) for row in world.client.hvals("fc:alloc:b1")]
    return sorted(row["v"]["cpu"] // CPU for row in rows)


# --- shapes ---


def test_units_of_one_step_hold_what_each_asked_for(world: World) -> None:
    world.boot(cpu=10)
    world.create("r1", asking(total=4))
    assert world.client.scard("fc:stepshapes:r1:train") == 0

    assert add(world, 1, 2, 3, 2).rest == ("4",)

    assert held(world) == [1, 2, 2, 3]
    assert world.client.smembers("fc:stepshapes:r1:train") == {"cpu1", "cpu2", "cpu3"}
    assert [world.field(f"r1:train:{i}", "shape") for i in range(4)] == ["cpu1", "cpu2", "cpu3", "cpu2"]
    assert sorted(need["cpu"] for need in load_needs(world.client, "r1", ["train"])) == [CPU, 2 * CPU, 3 * CPU]


def test_a_thousand_different_shapes_are_added_at_once(world: World) -> None:
    world.boot(cpu=2)
    world.create("r1", asking(total=1000))

    assert add(world, *range(1, 1001)).rest == ("1000",)

    assert held(world) == [1] and world.count("pending") == 999


def test_groups_may_cover_units_that_are_there_already(world: World) -> None:
    world.create("r1", asking(total=4))
    add(world, 1, 2)

    assert add(world, 2, 3, 3, first=1).rest == ("4",)

    assert [world.field(f"r1:train:{i}", "shape") for i in range(4)] == ["cpu1", "cpu2", "cpu3", "cpu3"]


def test_a_step_is_created_with_its_limits(world: World) -> None:
    limits = {"max_concurrent": 2, "priority": 7, "pending_timeout_ms": 1500}
    world.create("r1", step_of("a") | limits, step_of("b") | {"max_concurrent": "", "pending_timeout_ms": ""})

    assert world.client.hmget("fc:step:r1:a", *limits) == ["2", "7", "1500"]
    assert world.client.hmget("fc:step:r1:b", *limits) == ["", "0", ""]


# --- units that end before they begin ---


def test_a_unit_whose_request_failed_ends_alone_with_its_cause(world: World) -> None:
    world.boot(cpu=4)
    world.create("r1", asking(total=3))

    add(world, 1, None, 1)

    unit = "r1:train:1"
    assert (world.state(unit), world.field(unit, "reason")) == ("failed", "error")
    assert json.loads(world.field(unit, "cause") or "") == CAUSE
    assert world.field(unit, "ended_ms") and world.field(unit, "shape") is None
    assert world.client.zrange("fc:failed:r1", 0, -1) == [unit]
    assert ("pending", "failed") in world.events()
    assert (world.count("failed"), world.count("placed"), world.step_state()) == (1, 2, "ready")
    for index in (0, 2):
        world.finish(world.running(f"r1:train:{index}"))
    assert (world.step_state(), world.run_state()) == ("completed", "completed")


def test_a_repeat_changes_nothing(world: World) -> None:
    world.create("r1", asking(total=3))
    add(world, 1, None, 2)
    before = world.dump()

    assert add(world, 1, None, 2).rest == ("3",)

    assert world.dump() == before


def test_a_step_none_of_whose_requests_could_be_computed_fails(world: World) -> None:
    world.create("r1", asking("train", total=3), step_of("report", after=["train"]))

    add(world, None, None)
    assert world.step_state() == "ready"
    add(world, None, first=2)

    assert (world.step_state(), world.step_state("report"), world.run_state()) == ("failed", "skipped", "failed")
    assert world.count("failed") == 3
    before = world.dump()
    assert add(world, None, first=2).word == "ENDED"
    assert world.dump() == before


@pytest.mark.parametrize(("cpus", "state"), [((None, None), "failed"), ((None, 1), "ready")])
def test_a_step_that_waits_keeps_its_failed_units_until_its_turn(
    world: World, cpus: tuple[int | None, ...], state: str
) -> None:
    world.boot(cpu=1)
    world.create("r1", step_of("prepare"), asking(total=2, after=["prepare"]))
    world.add("r1", "prepare")
    add(world, *cpus)
    assert (world.step_state(), world.state("r1:train:0")) == ("waiting", "failed")

    world.finish(world.running("r1:prepare:0"))

    assert world.step_state() == state
    if state != "failed":
        world.finish(world.running("r1:train:1"))
        assert (world.step_state(), world.run_state()) == ("completed", "completed")
    else:
        assert world.run_state() == "failed"


@pytest.mark.parametrize(
    ("groups", "failed", "shapes", "word"),
    [
        ([("cpu9", 1)], {}, {}, "BAD_SHAPE"),
        ([("", 1)], {}, {}, "BAD_SHAPE"),
        ([("cpu1", 1)], {0: CAUSE}, dict([shape(1)]), "BAD_SHAPE"),
        ([("cpu1", 1), ("cpu2", 1)], {}, dict([shape(1)]), "BAD_SHAPE"),
        ([("cpu1", 0)], {}, dict([shape(1)]), "BAD_RANGE"),
        ([("cpu1", 2), ("cpu1", -1)], {}, dict([shape(1)]), "BAD_RANGE"),
        ([("cpu1", 6)], {}, dict([shape(1)]), "BAD_RANGE"),
        ([], {}, {}, "BAD_RANGE"),
    ],
)
def test_groups_that_cannot_be_right_are_refused(
    world: World, groups: list[tuple[str, int]], failed: dict[int, Any], shapes: dict[str, str], word: str
) -> None:
    world.create("r1", asking(total=5))
    before = world.dump()

    assert world.calls.trials_add("r1", "train", first=0, groups=groups, failed=failed, shapes=shapes).word == word

    assert world.dump() == before


# --- from the records on storage ---


def train(config: Any) -> None: ...


@pytest.fixture
def folder(world: World, tmp_path: Path) -> RunFolder:
    """A run whose client died after it had computed what each trial asks for, and recorded it."""
    called: list[int] = []

    def asks(config: Any) -> Any:
        called.append(config.i)
        if config.i % 10 == 3:
            raise ValueError(config.i)
        return {"cpu": 1 + config.i % 3, "labels": ["spot"]}

    compiled = compile_target(experiment(param_space={"i": grid(list(range(CHUNK + 20)))}, resources=asks)(train))
    plan = compiled.plan
    answers = Asks(plan.steps[0], compiled.asking["train"])
    made = RunFolder(Location.open(tmp_path / "runs"), "r1", keyring())
    record = {"name": "r1", "token": "t-r1", "created_ms": 1, "python": "3.11"}
    made.create(record, plan, {"train": b""}, shards=answers.shards())
    assert len(called) == CHUNK + 20
    world.create("r1", asking(total=CHUNK + 20))
    world.client.hset("fc:run:r1", "location", made.location.url)
    world.client.zadd("fc:expanding", {"r1:train": world.now_ms()})
    return made


@pytest.fixture
def broker(world: World) -> Broker:
    return Broker(world.client, url=BrokerURL.parse("redis://unused"), times=TIMES)


def by_client(folder: RunFolder, broker: Broker, tmp_path: Path) -> None:
    step = folder.load_plan().step("train")
    expansion = Expansion(folder, step, expanded=0, key_id=keyring().key_id, python="3.11")
    while not expansion.is_done:
        expansion.go_on(broker)


def by_workers(folder: RunFolder, broker: Broker, tmp_path: Path) -> None:
    """Each beat another worker, which knows nothing but server and storage."""
    for number in range(2):
        settings = Settings.from_env({"FLOWCTL_HOME": str(tmp_path / f"home{number}")})
        broker.client.zadd("fc:expanding", {"r1:train": 1})
        Chores(settings=settings, keyring=keyring(), owner=f"b{number}").do(broker)


@pytest.mark.parametrize("expand", [by_client, by_workers])
def test_whoever_expands_reads_the_requests_and_calls_no_user_code(
    world: World, folder: RunFolder, broker: Broker, tmp_path: Path, expand: Callable[..., None]
) -> None:
    expand(folder, broker, tmp_path)

    assert (world.count("expanded"), world.count("failed"), world.count("pending")) == (1020, 102, 918)
    assert json.loads(world.field("r1:train:13", "cause") or "")["text"] == "in the function of its resources: 13"
    needs = {json.dumps(need, sort_keys=True) for need in load_needs(world.client, "r1", ["train"])}
    assert needs == {json.dumps({"cpu": n * CPU, "slot": CPU}) for n in (1, 2, 3)}
    (third,) = [
        json.loads(world.client.hget("fc:shapes", each) or "")
        for each in [world.field("r1:train:1002", "shape")]
        if each
    ]
    assert third["bundles"] == [{"need": {"cpu": CPU, "slot": CPU}, "labels": ["spot"]}]
    assert (third["python"], third["key"], third["strategy"]) == ("3.11", keyring().key_id, "PACK")


def test_equal_requests_have_one_shape() -> None:
    compiled = compile_target(experiment(resources={"gpu": 1, "cpu": 1})(train))
    request, other = compiled.plan.steps[0].request, compile_target(experiment(train)).plan.steps[0].request
    assert request is not None and other is not None

    first, text = shape_of(request, python="3.11", key_id="k")
    assert shape_of(request, python="3.11", key_id="k") == (first, text)
    assert (
        len({first, shape_of(other, python="3.11", key_id="k")[0], shape_of(request, python="3.12", key_id="k")[0]})
        == 3
    )
    assert json.loads(text) == {
        "bundles": [{"need": {"cpu": CPU, "gpu": CPU, "slot": CPU}, "labels": []}],
        "strategy": "PACK",
        "python": "3.11",
        "key": "k",
    }
