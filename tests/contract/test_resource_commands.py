"""What people see and steer of tokens: resources, demand, pools, limits, quarantine; by a real server's scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from broker_builder import CPU, World, step_of

from flowctl.broker.broker_url import BrokerURL
from flowctl.cli.main import run_command
from flowctl.cli.settable import parse_values
from flowctl.dsl.errors import DeclarationError

SCHEMAS = Path(__file__).resolve().parents[2] / "src/flowctl/render/schemas"
Ask = Callable[..., dict[str, Any]]
Tell = Callable[..., tuple[int, str]]


@pytest.fixture
def tell(world: World, server: BrokerURL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Tell:
    """Runs a command; its exit code and everything that it printed."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("FLOWCTL_HOME", str(home))
    monkeypatch.setenv("FLOWCTL_BROKER_URL", server.url())

    def tell(*arguments: str) -> tuple[int, str]:
        code = run_command(arguments)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return tell


@pytest.fixture
def ask(tell: Tell) -> Ask:
    """Runs a command with `--json`; the document, checked against its schema."""

    def ask(*arguments: str) -> dict[str, Any]:
        code, text = tell(*arguments, "--json")
        assert code == 0, text
        document: dict[str, Any] = json.loads(text)
        jsonschema.validate(document, json.loads((SCHEMAS / f"{document['kind']}.json").read_text()))
        return document

    return ask


def tokens(document: dict[str, Any], worker: str = "worker-b1") -> dict[str, dict[str, Any]]:
    (found,) = [each for each in document["workers"] if each["worker"] == worker]
    return {each["device"] or each["name"]: each for each in found["tokens"]}


# resources


def test_every_token_is_shown_with_its_holders(world: World, ask: Ask, tell: Tell) -> None:
    """B21's check: what is used is the sum of what is held."""
    world.boot("b1", cpu=4)
    world.run("r1", step_of(total=3, cpu=1))
    fence = world.running("r1:train:0")

    document = ask("resources")

    cpu = tokens(document)["cpu"]
    assert (cpu["capacity"], cpu["used"], cpu["free"]) == (4, 3, 1)
    assert sum(each["amount"] for each in cpu["holders"]) == cpu["used"]
    claimed = {each["trial"]: each["lease_age_s"] is not None for each in cpu["holders"]}
    assert claimed == {"r1/0": True, "r1/1": False, "r1/2": False}
    assert document["totals"]["cpu"] == {"capacity": 4, "used": 3, "free": 1}
    assert ask("status", "--resources")["totals"] == document["totals"]
    code, text = tell("resources")
    assert code == 0 and "r1/0: 1 for " in text and "(not claimed yet)" in text
    world.expire(fence.unit)
    world.tick()
    orphan = [each for each in tokens(ask("resources"))["cpu"]["holders"] if each["orphan"]]
    assert [each["trial"] for each in orphan] == ["r1/0"]
    assert "(orphan: its end is not confirmed)" in tell("resources")[1]


def test_check_ends_with_5_where_a_sum_is_wrong(world: World, tell: Tell) -> None:
    world.boot("b1")
    assert tell("resources", "--check")[0] == 0

    world.client.hincrby("fc:used:b1", "cpu", 7)
    code, text = tell("resources", "--check")
    world.client.hdel("fc:used:b1", "cpu")

    assert code == 5
    assert "flowctl: boot b1: fc:used says" in text


def test_nothing_there_says_what_to_do(tell: Tell) -> None:
    assert tell("resources") == (0, "no worker is up; start one: flowctl worker\n")
    assert tell("demand") == (0, "nothing waits\n")
    assert tell("pool", "list") == (0, "there is no pool; make one: flowctl pool set license=3\n")
    code, text = tell("status", "r1", "--resources")
    assert code == 2 and "leave out TARGET" in text


def test_what_is_not_offered_is_no_row_and_what_is_kept_says_for_whom(world: World, tell: Tell) -> None:
    tell("pool", "set", "seat=1")
    world.boot("b1", cpu=2, npu=0)
    world.boot("b2", cpu=0, slot=0)
    world.run("r1", step_of(total=1, cpu=2, seat=1))
    world.run("r2", step_of(total=1, cpu=2, seat=1))
    parts = [{"boot": "b1", "v": {"cpu": 2 * CPU}}]
    kept = {"unit": "r2:train:0", "name": "r2:train:s", "run": "r2", "step": "train", "parts": parts}
    world.client.set("fc:reserve", json.dumps({**kept, "pools": {"seat": CPU}, "ms": world.now_ms()}))

    text = tell("resources")[1]
    pools = tell("pool", "list")[1]
    world.client.delete("fc:reserve")

    assert "npu" not in text
    assert "worker-b2  nothing\n" in text
    assert "0 (2 kept for r2/0 once it is free)" in text
    assert "0 (1 kept for r2/0 once it is free)" in pools


# demand


def test_demand_is_told_by_request_with_runs_and_whether_possible(world: World, ask: Ask, tell: Tell) -> None:
    world.boot("b1", cpu=2)
    world.run("r1", step_of(total=4, cpu=2))
    world.run("r2", step_of(total=2, cpu=2))
    world.run("r3", step_of(total=1, npu=1))

    document = ask("demand")

    assert document["pending"] == 6
    later, never = document["demand"]
    assert (later["count"], later["runs"], later["possible"], later["kind"]) == (5, {"r1": 3, "r2": 2}, "later", "busy")
    assert later["bundles"] == [{"needs": {"cpu": 2, "slot": 1}, "labels": []}]
    assert later["waiting_since_ms"] <= world.now_ms()
    assert (never["count"], never["possible"], never["text"]) == (1, "never", "no live worker offers npu (asked 1)")
    assert "no live worker offers npu (asked 1); start one that does" in tell("demand")[1]


# pools


def test_pool_is_made_listed_drained_and_removed(world: World, ask: Ask, tell: Tell) -> None:
    assert tell("pool", "set", "license=2", "seat=0.5") == (0, "license: 2\nseat: 0.5\n")
    world.boot("b1")
    world.run("r1", step_of(total=3, cpu=1, license=1))
    fence = world.running("r1:train:0")

    (license, seat) = ask("pool", "list")["pools"]

    assert (license["capacity"], license["used"], license["free"]) == (2, 2, 0)
    assert [each["trial"] for each in license["holders"]] == ["r1/0", "r1/1"]
    assert (seat["capacity"], seat["used"], seat["set"]) == (0.5, 0, True)
    code, text = tell("pool", "set", "license=1")
    assert (code, text) == (0, "license: 1; 2 are in use, 1 of them drain: nobody gets one before\n")
    assert ask("pool", "list")["pools"][0]["draining"]
    assert "drains: r1/0: 1 for " in tell("pool", "list")[1]
    assert ask("status", "r1")["pending"][0]["kind"] == "pool"
    assert tell("pool", "remove", "license") == (0, "license: removed; 2 of it in use until their trials end\n")
    assert [(each["name"], each["set"]) for each in ask("resources")["pools"]] == [("license", False), ("seat", True)]
    world.finish(fence)


def test_a_token_that_is_a_pool_as_well_is_named_with_its_worker(world: World, tell: Tell) -> None:
    tell("pool", "set", "license=2")
    world.boot("b1", license=1)

    for command in (["pool", "list"], ["workers"]):
        code, text = tell(*command)
        assert code == 0
        assert "worker worker-b1 offers license, which is a pool of the whole cluster: the pool is meant" in text


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["set", "cpu=3"], 2, "cpu is what workers offer"),
        (["set", "num_gpus=3"], 2, "write 'gpu'"),
        (["set", "slot=3"], 2, "'slot' is reserved"),
        (["set", "License=3"], 2, "cannot name a resource"),
        (["set", "license"], 2, "is not NAME=AMOUNT"),
        (["set", "license=-1"], 2, "must not be negative"),
        (["set", "license=many"], 2, "not a number"),
        (["set", "tri=3"], 5, "worker-b1 offers tri, so it cannot be a token of the whole cluster as well"),
        (["remove", "lisence"], 5, "there is no pool 'lisence'; known pools: license"),
    ],
)
def test_what_cannot_be_a_pool_is_refused(
    world: World, tell: Tell, arguments: list[str], code: int, expected: str
) -> None:
    world.boot("b1", tri=1)
    tell("pool", "set", "license=1")

    told = tell("pool", *arguments)

    assert told[0] == code
    assert expected in told[1]
    assert world.client.hgetall("fc:pools") == {"license": str(CPU)}


# set


def test_run_and_step_are_changed_while_they_run(world: World, ask: Ask, tell: Tell) -> None:
    world.boot("b1", cpu=4)
    world.run("r1", step_of(total=4, cpu=1), expand=False)

    document = ask("set", "r1", "max_concurrent_trials=2", "priority=5", "weight=2")
    assert document["values"] == {"max_concurrent_trials": 2, "priority": 5, "weight": 2}
    assert (document["step"], document["limited"], document["smaller"]) == (None, "train", {})
    assert ask("set", "r1/train", "max_concurrent_trials=1")["step"] == "train"
    world.add("r1", n=4)
    limited = ask("status", "r1")["pending"][0]
    assert (limited["kind"], limited["count"]) == ("limit", 3)
    assert limited["text"].startswith("max_concurrent_trials of r1/train is 1, and 1 runs; held by r1/0 for ")
    assert tell("set", "r1/train", "max_concurrent_trials=none") == (0, "r1/train: max_concurrent_trials no limit\n")
    assert ask("status", "r1")["pending"] == []
    assert world.client.hget("fc:run:r1", "priority") == "5"
    assert float(world.client.hget("fc:weights", "r1")) == 2


def test_limit_of_a_run_is_that_of_its_only_experiment(world: World, tell: Tell) -> None:
    world.boot("b1", cpu=4)
    world.run(
        "r1", step_of("prepare", kind="stage", mode=None), step_of(total=4, cpu=1, max_concurrent=1), expand=False
    )

    code, text = tell("set", "r1", "max_concurrent_trials=3", "priority=1")

    assert (code, text) == (
        0,
        "r1: max_concurrent_trials 3 of its only experiment, r1/train, priority 1\n",
    )
    assert world.client.hgetall("fc:limits") == {"r1:train": "3"}


def test_experiments_that_keep_a_smaller_limit_are_named(world: World, ask: Ask, tell: Tell) -> None:
    world.boot("b1", cpu=4)
    steps = [step_of("one", max_concurrent=2), step_of("two", max_concurrent=8), step_of("three")]
    world.run("r1", *steps, expand=False)

    assert ask("set", "r1", "max_concurrent_trials=4")["smaller"] == {"one": 2}
    assert tell("set", "r1", "max_concurrent_trials=4") == (
        0,
        "r1: max_concurrent_trials 4\n"
        "r1/one keeps its own limit of 2; change it: flowctl set r1/one max_concurrent_trials=N\n",
    )
    assert world.client.hgetall("fc:limits") == {"r1": "4", "r1:one": "2", "r1:two": "8"}


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["r1", "max_concurent_trials=2"], 2, "did you mean 'max_concurrent_trials'?"),
        (["r1", "priority=1001"], 2, "a whole number from -1000 to 1000"),
        (["r1", "max_concurrent_trials=-1"], 2, "0 or none for no limit"),
        (["r1", "weight=0"], 2, "a number above 0"),
        (["r1", "weight=nan"], 2, "a number above 0"),
        (["r1", "priority=1", "priority=2"], 2, "given twice"),
        (["r1", "priority"], 2, "is not NAME=VALUE"),
        (["r1/train", "weight=2"], 5, "a step has no weight"),
        (["r1/prepare", "max_concurrent_trials=2"], 5, "a stage is one unit"),
        (["r1/train/0", "priority=2"], 2, "names a trial"),
        (["nope", "priority=2"], 2, "there is no run 'nope'"),
    ],
)
def test_what_cannot_be_set_is_refused_before_anything_changes(
    world: World, tell: Tell, arguments: list[str], code: int, expected: str
) -> None:
    world.run("r1", step_of("prepare", kind="stage", mode=None), step_of(after=["prepare"]))
    before = world.client.hgetall("fc:run:r1")

    told = tell("set", *arguments)

    assert told[0] == code
    assert expected in told[1]
    assert world.client.hgetall("fc:run:r1") == before


def test_run_that_has_ended_is_not_changed(world: World, tell: Tell) -> None:
    world.boot("b1")
    world.run("r1")
    world.finish(world.running("r1:train:0"))

    code, text = tell("set", "r1", "priority=3")

    assert code == 5
    assert "the run 'r1' has ended (completed)" in text


def test_values_are_read_exactly() -> None:
    assert parse_values(("max_concurrent_trials=0", "priority=-3", "weight=0.5")) == {
        "max_concurrent_trials": None,
        "priority": -3,
        "weight": 0.5,
    }
    with pytest.raises(DeclarationError, match="cannot be '²'"):
        parse_values(("priority=²",))


# quarantine


def test_worker_is_brought_back_by_name(world: World, ask: Ask, tell: Tell) -> None:
    """A quarantine that the scripts themselves decided: three trials in a row fail at once."""
    world.boot("b1", cpu=1)
    world.boot("b2", cpu=1)
    world.run("r1", step_of(total=9, cpu=1))
    bad = world.placement("r1:train:0")
    assert bad is not None
    while world.client.hget(f"fc:boot:{bad.boot}", "state") == "up":
        (unit,) = {name.split("@")[0] for name in world.client.hkeys(f"fc:alloc:{bad.boot}")}
        world.finish(world.running(unit), "failed", reason="error", cause={"kind": "exception"}, fails_up=1)

    name = f"worker-{bad.boot}"
    found = {each["worker"]: each for each in ask("workers")["workers"]}
    assert found[name]["state"] == "quarantined"
    assert re.fullmatch(
        r"3 trials in a row failed within 10 s of their start: r1/\d, r1/\d, r1/\d", found[name]["reason"]
    )
    notice = (
        rf"{name} is out of service for \d+ s: {found[name]['reason']}; bring it back: flowctl workers --restore {name}"
    )
    (told,) = ask("status", "r1")["notices"]
    assert re.fullmatch(notice, told)
    for command in ("workers", "resources", "status", "doctor"):
        assert re.search(notice, tell(command)[1]), command
    (check,) = [each for each in json.loads(tell("doctor", "--json")[1])["checks"] if each["name"] == "workers"]
    assert (check["verdict"], check["cure"]) == ("warn", f"bring it back: flowctl workers --restore {name}")
    assert tell("workers", "--restore", f"{name}x")[0] == 5
    restored = ask("workers", "--restore", name)
    assert (restored["worker"], restored["before"]) == (name, "quarantined")
    assert tell("workers", "--restore", name) == (0, f"{name}: was in service already\n")
    assert {each["state"] for each in ask("workers")["workers"]} == {"up"}
