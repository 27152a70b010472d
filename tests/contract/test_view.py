"""Views of runs, trials, attempts and workers over keys on a real server."""

import json
from typing import Any

import pytest
from view_keys import TOKEN, Keys

from flowctl.broker.event_view import last_event, read_events
from flowctl.broker.snapshot import take_snapshot
from flowctl.broker.view import (
    StepView,
    active_units,
    best_unit,
    failed_units,
    load_attempts,
    load_run,
    load_runs,
    load_tails,
    load_units,
    newest_run,
    now_ms,
)
from flowctl.broker.worker_view import load_workers


@pytest.fixture
def keys(client: Any) -> Keys:
    return Keys(client)


def the_step(client: Any, name: str = "train") -> StepView:
    run = load_run(client, "r")
    assert run is not None
    step = run.step(name)
    assert step is not None
    return step


def test_empty_server_has_nothing(client: Any) -> None:
    assert newest_run(client) is None
    assert load_runs(client) == []
    assert load_run(client, "r") is None
    assert take_snapshot(client, "r") is None
    assert load_workers(client) == []


def test_run_is_read_with_its_steps_in_plan_order(client: Any, keys: Keys) -> None:
    keys.add_run(name="My run", flow="whole", reason="")
    keys.add_step("prepare", total=1, kind="stage", state="completed", completed=1, metric="", mode="")
    keys.add_step("train", total=3, state="waiting", expanded=0, after='["prepare"]', max_worker_losses="none")

    run = load_run(client, "r")

    assert run is not None
    assert (run.name, run.state, run.flow, run.reason, run.ended) == ("My run", "running", "whole", None, False)
    assert [step.name for step in run.steps] == ["prepare", "train"]
    assert [step.name for step in run.experiments] == ["train"]
    assert (run.steps[0].metric, run.steps[1].after, run.steps[1].max_worker_losses) == (None, ("prepare",), None)
    assert run.counts() | {"total": 4} == run.counts()
    assert (run.counts()["pending"], run.counts()["completed"]) == (3, 1)


def test_runs_come_newest_first_and_limited(client: Any) -> None:
    for i, name in enumerate(("a", "b", "c")):
        Keys(client, name).add_run(created_ms=100 + i)

    assert newest_run(client) == "c"
    assert [run.run for run in load_runs(client)] == ["c", "b", "a"]
    assert [run.run for run in load_runs(client, limit=2)] == ["c", "b"]
    assert [run.run for run in load_runs(client, ["a", "absent", "b"])] == ["a", "b"]


def test_trials_are_read_in_the_order_asked_for(client: Any, keys: Keys) -> None:
    keys.add_run()
    keys.add_step(total=4, expanded=2)
    keys.add_unit(0, "running", worker="w1", attempts=2, last={"loss": {"$float": "nan"}}, best="0.5", best_iteration=3)
    keys.add_unit(1, "failed", cause={"kind": "signal", "signal": 9}, rows=50, iteration=50, last={"s": 49})

    later, killed, first = load_units(client, the_step(client), [3, 1, 0])

    assert (later.state, later.attempts, later.worker) == ("pending", 0, None)
    assert killed.cause is not None and killed.cause.headline() == "killed by signal 9 (SIGKILL)"
    assert (killed.last, killed.iteration, killed.ended) == ({"s": 49}, 50, True)
    assert first.last["loss"] != first.last["loss"]
    assert (first.worker, first.best, first.best_iteration) == ("w1", 0.5, 3)


def test_pending_units_of_an_ended_step_read_as_its_end(client: Any, keys: Keys) -> None:
    keys.add_run(state="cancelled")
    keys.add_step(total=3, state="cancelled", reason="cancelled", ended_ms=9, cancelled=3)
    client.hset("fc:unit:r:train:0", mapping={"state": "pending", "shape": "s1"})

    units = load_units(client, the_step(client), range(3))

    assert [(unit.state, unit.reason, unit.ended_ms) for unit in units] == [("cancelled", "cancelled", 9)] * 3
    assert the_step(client).counts["pending"] == 0


def test_four_thousand_trials_are_read_in_a_few_round_trips(client: Any, keys: Keys) -> None:
    keys.add_run()
    keys.add_step(total=4000)
    pipe = client.pipeline(transaction=False)
    for index in range(4000):
        pipe.hset(f"fc:unit:r:train:{index}", mapping={"state": "completed", "last": '{"loss": 1.0}', "attempts": 1})
    pipe.execute()
    before = client.info("stats")["total_reads_processed"]

    units = load_units(client, the_step(client), range(4000))

    assert len(units) == 4000
    assert client.info("stats")["total_reads_processed"] - before < 400


@pytest.mark.parametrize(("mode", "expected"), [("min", 2), ("max", 9)])
def test_best_is_by_value_and_ties_go_to_the_lowest_number(client: Any, keys: Keys, mode: str, expected: int) -> None:
    """B107: as text, trial 10 comes before trial 9 and 2."""
    keys.add_run()
    keys.add_step(total=11, mode=mode)
    values = {10: 0.1, 2: 0.1, 4: 0.5, 9: 0.9}
    for index, value in values.items():
        unit = keys.add_unit(index, "completed", best=value)
        client.zadd("fc:rank:r:train", {unit: value})

    found = {best.index for _ in range(20) if (best := best_unit(client, the_step(client)))}

    assert found == {expected}


def test_no_best_without_ranked_trials(client: Any, keys: Keys) -> None:
    keys.add_run()
    keys.add_step(total=1)

    assert best_unit(client, the_step(client)) is None


def test_attempts_end_with_the_one_that_runs(client: Any, keys: Keys) -> None:
    keys.add_run()
    keys.add_step(total=1)
    unit = keys.add_unit(0, "running", attempts=2, epoch=2, worker="w2", started_ms=20)
    lost = {"attempt": 1, "epoch": 1, "worker": "w1", "started_ms": 1, "ended_ms": 9, "outcome": "lost"}
    client.rpush(f"fc:attempts:{unit}", json.dumps({**lost, "cause": {"kind": "worker_lost", "text": "lost contact"}}))

    first, second = load_attempts(client, load_units(client, the_step(client), [0])[0])

    assert (first.attempt, first.worker, first.outcome, first.ended_ms) == (1, "w1", "lost", 9)
    assert first.cause is not None and first.cause.kind == "worker_lost"
    assert (second.attempt, second.worker, second.outcome, second.started_ms) == (2, "w2", None, 20)


def test_active_and_failed_units_in_order(client: Any, keys: Keys) -> None:
    keys.add_run()
    keys.add_step(total=30)
    for index, state in ((10, "running"), (9, "placed"), (11, "completed")):
        keys.add_unit(index, state)
    for index, ended in ((20, 5), (21, 3)):
        keys.add_unit(index, "failed", ended_ms=ended)

    assert [unit.index for unit in active_units(client, "r")] == [9, 10]
    assert [unit.index for unit in active_units(client, "r", limit=1)] == [9]
    assert [unit.index for unit in failed_units(client, "r")] == [21, 20]


def test_tails_hold_rows_as_stored(client: Any) -> None:
    client.rpush("fc:tail:r:train:1", '{"seq": 1}', '{"seq": 2}')

    assert load_tails(client, [("r", "train", 0), ("r", "train", 1)]) == [[], [{"seq": 1}, {"seq": 2}]]


def test_workers_with_offers_allocations_and_contact(client: Any, keys: Keys) -> None:
    boot = keys.add_worker("w1", {"cpu": 2 * TOKEN, "slot": 10 * TOKEN})
    keys.book(boot, "r:train:0", {"cpu": TOKEN, "slot": TOKEN})
    keys.book(boot, "r:train:1", {"cpu": TOKEN}, state="orphan")
    keys.add_worker("quiet", {"cpu": TOKEN}, quiet_ms=4_000, only="r")
    keys.add_worker("drains", {"cpu": TOKEN}, state="draining")
    keys.add_worker("gone", {"cpu": TOKEN}, state="gone")

    drains, quiet, w1 = load_workers(client)

    at_ms = now_ms(client)
    assert [worker.worker for worker in (drains, quiet, w1)] == ["drains", "quiet", "w1"]
    assert (w1.free("cpu"), w1.free("slot"), w1.free("gpu")) == (0, 9 * TOKEN, 0)
    assert [(held.unit, held.epoch, held.is_orphan) for held in w1.held] == [
        ("r:train:0", 1, False),
        ("r:train:1", 1, True),
    ]
    assert [worker.is_live(at_ms) for worker in (drains, quiet, w1)] == [False, False, True]
    assert (quiet.has_contact(at_ms), quiet.only_run, w1.only_run) == (False, "r", None)


def test_snapshot_joins_what_a_person_watches(client: Any, keys: Keys) -> None:
    keys.add_run()
    keys.add_step(total=3)
    keys.add_shape({"cpu": TOKEN, "slot": TOKEN})
    boot = keys.add_worker("w1", {"cpu": TOKEN, "slot": TOKEN}, quiet_ms=5_000)
    keys.add_unit(0, "running", boot=boot)
    keys.add_unit(1, "failed", ended_ms=1)
    keys.add_unit(2, "pending")
    client.zadd("fc:rank:r:train", {"r:train:0": 0.25})

    snap = take_snapshot(client, "r")

    assert snap is not None
    assert [unit.index for unit in snap.active] == [0]
    assert [unit.index for unit in snap.failed] == [1]
    assert snap.best["train"].index == 0
    assert [(reason.kind, reason.count) for reason in snap.reasons] == [("lost_contact", 1)]
    assert [worker.worker for worker in snap.out_of_contact()] == ["w1"]


def test_events_are_followed_from_where_one_stands(client: Any) -> None:
    assert last_event(client, "r") == "0-0"
    client.xadd("fc:events:r", {"at": 1, "kind": "run", "from": "", "to": "submitted", "reason": ""})
    after = last_event(client, "r")
    cause = '{"kind": "exception", "type": "E"}'
    client.xadd(
        "fc:events:r",
        {"at": 2, "kind": "trial", "unit": "r:train:7", "from": "running", "to": "pending", "cause": cause},
    )
    client.xadd("fc:events:r", {"at": 3, "kind": "wanted", "wanted": "cancel"})

    first, second = read_events(client, "r", after, block_ms=None)

    assert (first.at_ms, first.kind, first.step, first.index, first.source, first.to) == (
        2,
        "trial",
        "train",
        7,
        "running",
        "pending",
    )
    assert first.cause is not None and first.cause.headline() == "E"
    assert (second.kind, second.step, second.index, second.to) == ("wanted", None, None, "cancel")
    assert read_events(client, "r", second.id, block_ms=None) == []
    assert read_events(client, "r", second.id, block_ms=10) == []
