"""Why trials are pending: one reason for each, naming the lacking resource and the nearest worker."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from view_keys import TOKEN, Keys

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.demand import load_demand
from flowctl.broker.explain import explain
from flowctl.broker.explain_room import LARGER
from flowctl.broker.reason import KINDS, Lacking, Reason, for_ms
from flowctl.broker.reasons import able_workers, pending_reasons, unit_reason, with_lacks
from flowctl.broker.shape_view import Shape, show_apart, show_need, show_tokens
from flowctl.broker.snapshot import take_snapshot
from flowctl.broker.view import failed_units, load_run, load_units, now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.cli.launching import problems
from flowctl.dsl.resources import Bundle, Request

NEED = {"cpu": TOKEN, "slot": TOKEN}
OFFER = {"cpu": 2 * TOKEN, "slot": 10 * TOKEN}


@pytest.fixture
def keys(client: Any) -> Keys:
    """A run with one step of three pending trials."""
    keys = Keys(client)
    keys.add_run()
    keys.add_step(total=3)
    for index in range(3):
        keys.add_unit(index, "pending")
    keys.add_shape(NEED)
    return keys


def reasons(client: Any) -> list[Reason]:
    run = load_run(client, "r")
    assert run is not None
    return pending_reasons(client, run, load_workers(client), at_ms=now_ms(client))


def only(client: Any) -> Reason:
    found = reasons(client)
    assert sum(reason.count for reason in found) == 3
    assert len(found) == 1
    return found[0]


def test_no_worker(client: Any, keys: Keys) -> None:
    """Acceptance 8."""
    assert only(client) == Reason("no_worker", "no worker is up", 3, "train", "start one: flowctl worker")


def test_worker_that_takes_another_run_only_is_no_worker(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, only="other")

    assert only(client).kind == "no_worker"


def test_worker_that_takes_this_run_only_counts(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, only="r")

    assert only(client).kind == "placing"


def test_lost_contact(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, quiet_ms=60_000)
    keys.add_worker("w2", OFFER, quiet_ms=5_000)

    assert (only(client).kind, only(client).text) == ("lost_contact", "lost contact with w2")


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"state": "draining"}, "w1 is draining"), ({"accepting": "0"}, "w1 has not begun to take work")],
)
def test_not_accepting(client: Any, keys: Keys, fields: dict[str, Any], text: str) -> None:
    keys.add_worker("w1", OFFER, **fields)

    assert (only(client).kind, only(client).text) == ("not_accepting", text)


def test_another_python(client: Any, keys: Keys) -> None:
    """Acceptance 7: accepted at submit, and the trials say so."""
    keys.add_worker("w1", OFFER, python="3.12")

    assert only(client).text == "needs a worker on Python 3.11; w1 runs 3.12"
    assert only(client).is_impossible


def test_missing_key(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, keys='["other"]')

    assert only(client).text == "no worker holds the key k that signed this run"


def test_impossible_names_the_resource_and_the_nearest_worker(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "gpu": 5_000, "license": 2 * TOKEN})
    keys.add_worker("far", {"cpu": TOKEN})
    keys.add_worker("near", {**OFFER, "gpu": TOKEN, "license": TOKEN})

    reason = only(client)

    assert reason.text == "needs license 2; the nearest worker, near, offers 1"
    assert reason.cure == "start one that does: flowctl worker --resources license=2"
    assert reason.is_impossible


def test_what_other_workers_of_the_machine_offer_is_waited_for(client: Any, keys: Keys) -> None:
    detected = '{"cpu": 20000}'
    keys.add_worker("vm", OFFER, machine="m1", only="other", detected=detected)
    keys.add_worker("vm-2", {"cpu": 0, "slot": 10 * TOKEN}, machine="m1", only="r", detected=detected)

    reason = only(client)

    text = "the cores of vm-2's machine are offered by worker vm (run other); waits for them"
    assert (reason.kind, reason.text, reason.cure, reason.is_impossible) == ("shared", text, None, False)
    keys.add_shape({"cpu": 3 * TOKEN, "slot": TOKEN})
    assert only(client).is_impossible
    text = "needs cpu 3; the nearest worker, vm-2, offers 0 now, and at most 2 alone on its machine"
    assert (only(client).text, only(client).cure) == (text, LARGER)


def test_workers_of_one_machine_that_end_by_themselves_never_are_to_share_it(client: Any, keys: Keys) -> None:
    """The first took all memory, the second has the token: while both live, no trial runs, and nothing changes that."""
    detected = json.dumps({"memory": 24_105})
    keys.add_shape({"license": TOKEN, "memory": 100, "slot": TOKEN})
    keys.add_worker("wa", {"memory": 24_105, "slot": 9 * TOKEN}, machine="m1", detected=detected)
    keys.add_worker("wb", {"memory": 0, "license": TOKEN, "slot": 9 * TOKEN}, machine="m1", detected=detected)

    reason = only(client)

    text = "the memory of wb's machine is offered by worker wa, which leaves wb too little"
    assert (reason.kind, reason.text, reason.is_impossible) == ("shared", text, False)
    assert reason.cure == "restart them (wa, wb) with a part each: flowctl worker --resources …,memory=11GiB"
    run = load_run(client, "r")
    assert run is not None
    (told,) = problems([reason], run)
    assert told == f"3 trials of train cannot run now: {text}; {reason.cure}"
    client.zadd("fc:buckets", {"r:train:s1": 1})
    (demand,) = load_demand(client).demands
    assert (demand.possible, demand.finding.text, demand.finding.cure) == ("later", text, reason.cure)
    keys.add_shape({"license": TOKEN, "memory": 20_000, "slot": TOKEN})
    assert only(client).cure == "stop wa, or start it again with less: flowctl worker --resources …,memory=N"


def test_more_than_any_machine_has_is_no_advice(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "memory": 476_838})
    keys.add_worker("w1", {**OFFER, "memory": 24_105}, detected='{"memory": 24105}')

    assert only(client).text == "needs memory 465.7 GiB; the nearest worker, w1, offers 23.5 GiB"
    assert only(client).cure == LARGER
    keys.add_shape({**NEED, "memory": 24_106})
    assert only(client).text == "needs memory 24106 MiB; the nearest worker, w1, offers 24105 MiB"
    keys.add_worker("w2", OFFER, detected='{"memory": 40000}', gpu_limit="0")
    assert only(client).cure == LARGER or only(client).kind != "impossible"


def test_busy_names_the_resource_and_what_is_free(client: Any, keys: Keys) -> None:
    keys.add_worker("full", OFFER, {"cpu": 2 * TOKEN})
    keys.add_worker("half", OFFER, {"cpu": TOKEN + 5_000})

    assert only(client).text == "waits for cpu: needs 1, half has 0.5 of 2 free"
    assert not only(client).is_impossible


def test_slots_can_be_what_is_lacking(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, {"slot": 10 * TOKEN})

    assert only(client).text == "waits for slot: needs 1, w1 has 0 of 10 free"


def test_tokens_of_unconfirmed_ends_are_named(client: Any, keys: Keys) -> None:
    boot = keys.add_worker("w1", {"cpu": TOKEN, "slot": TOKEN})
    keys.book(boot, "r:train:9", NEED, state="orphan")

    reason = only(client)

    held = "still held by what r/9 ran on w1; free when w1 says that it is gone"
    assert (reason.kind, reason.text) == ("orphan", f"waits for cpu: needs 1, w1 has 0 of 1 free; {held}")
    assert [(each.worker, each.is_orphan, each.lost) for each in reason.holders] == [("w1", True, None)]


def test_pool_held_by_what_ran_on_a_lost_worker_says_when_it_is_free(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "seat": TOKEN})
    keys.add_worker("wa", OFFER)
    boot = keys.add_worker("wb", OFFER, quiet_ms=98_500)
    client.hset("fc:pools", "seat", TOKEN)
    keys.book(boot, "r:train:0", NEED, state="orphan", pools={"seat": TOKEN}, for_ms=98_000)

    run, workers = load_run(client, "r"), load_workers(client)
    assert run is not None
    (reason,) = pending_reasons(client, run, workers, at_ms=now_ms(client), gone_ms=150_000)

    head = "waits for the pool seat: needs 1, 0 of 1 free; still held by what r/0 ran on wb, which was lost"
    tail = "or at once when it is started again under that name"
    assert reason.kind == "orphan"
    assert re.sub(r"in 5\d s", "in N s", reason.text) == (
        f"{head}; free when wb says that it is gone, at the latest in N s, {tail}"
    )
    assert reason.gist == "waits for the pool seat: needs 1, 0 of 1 free"
    assert only(client).text == f"{head}; free when wb says that it is gone, {tail}"
    snap = take_snapshot(client, "r")
    assert snap is not None and [each.worker for each in snap.out_of_contact()] == ["wb"]


def test_waiting_step_names_what_it_waits_for(client: Any) -> None:
    keys = Keys(client)
    keys.add_run()
    keys.add_step("prepare", total=1, kind="stage", running=1)
    keys.add_step("done", total=1, kind="stage", state="completed", completed=1)
    keys.add_step("train", total=3, state="waiting", expanded=0, after='["done", "prepare"]')

    assert only(client) == Reason("waits_for_steps", "waits for prepare", 3, "train")


def test_delayed_trials_say_what_made_them_wait(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, {"cpu": 2 * TOKEN})
    client.zrem("fc:bucket:r:train:s1", "r:train:2")
    client.hset("fc:unit:r:train:2", "reason", "worker w1 cannot see STORAGE")
    client.zadd("fc:delayed", {"r:train:2": now_ms(client) + 30_000, "rr:train:1": 1, "r:train2:1": 1})

    busy, delayed = reasons(client)

    assert (busy.kind, busy.count) == ("busy", 2)
    assert (delayed.kind, delayed.count) == ("delayed", 1)
    assert delayed.text.startswith("worker w1 cannot see STORAGE; the next attempt in ")


def test_trials_not_yet_written_are_counted(client: Any) -> None:
    keys = Keys(client)
    keys.add_run()
    keys.add_step(total=3, expanded=0, state="ready")
    keys.add_shape(NEED)

    assert only(client) == Reason("placing", "its records are being written", 3, "train")


def test_cancelled_run_says_so(client: Any, keys: Keys) -> None:
    client.hset("fc:run:r", "wanted", "cancel")

    assert only(client).kind == "run_cancelled"


def test_one_trial_has_its_own_reason(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER, {"cpu": 2 * TOKEN})
    at_ms = now_ms(client)
    client.hset("fc:unit:r:train:1", mapping={"not_before_ms": at_ms + 9_000, "reason": "error"})
    run = load_run(client, "r")
    assert run is not None

    first, second = load_units(client, run.steps[0], [0, 1])
    workers = load_workers(client)

    assert unit_reason(client, run, run.steps[0], first, workers, at_ms=at_ms).kind == "busy"
    told = unit_reason(client, run, run.steps[0], second, workers, at_ms=at_ms)
    assert (told.kind, told.text) == ("delayed", "error; the next attempt in 9 s")


def test_steps_of_a_run_without_pending_trials_have_no_reason(client: Any) -> None:
    keys = Keys(client)
    keys.add_run()
    keys.add_step(total=1)
    keys.add_unit(0, "running")

    assert reasons(client) == []


def test_amounts_read_as_people_write_them() -> None:
    assert [show_tokens("cpu", units) for units in (TOKEN, 5_000, 1, 12_345)] == ["1", "0.5", "0.0001", "1.2345"]
    assert [show_tokens("memory", mib) for mib in (0, 100, 2048, 24_105)] == ["0 MiB", "100 MiB", "2 GiB", "23.5 GiB"]
    assert show_apart("memory", 24_105, 24_106) == ["24105 MiB", "24106 MiB"]
    assert show_need({"cpu": TOKEN, "slot": TOKEN, "gpu": 0, "license": 2 * TOKEN}) == "cpu 1, license 2"
    assert show_need({"slot": TOKEN}) == "nothing but a slot"


def test_reason_is_a_pure_function_of_shape_and_cluster() -> None:
    shape = Shape(Request((Bundle(NEED),)), python="3.11", key="k")
    nobody = ClusterView(at_ms=0)

    assert explain(shape, nobody, run="r") == explain(shape, nobody, run="r")


# What no live worker could ever meet


def test_resource_that_nobody_offers_is_named_with_what_was_asked(client: Any, keys: Keys) -> None:
    """B23, in these words."""
    keys.add_shape({**NEED, "npu": TOKEN})
    keys.add_worker("w1", OFFER)

    reason = only(client)

    assert (reason.kind, reason.text) == ("impossible", "no live worker offers npu (asked 1)")
    assert reason.is_impossible and reason.nearest == "w1"
    assert reason.lacking == {"npu": Lacking(asked=TOKEN, offered=0, free=0)}
    assert (
        reason.cure == "start one that does: flowctl worker --resources npu=1, or one for all: flowctl pool set npu=1"
    )


def test_resource_of_a_worker_that_may_not_take_it_is_named_with_why(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "npu": TOKEN})
    keys.add_worker("w1", OFFER)
    keys.add_worker("w2", {**OFFER, "npu": TOKEN}, python="3.12")

    text = "no live worker offers npu (asked 1) that may take it; w2 does, but runs Python 3.12"
    assert only(client).text == text


def test_labels_that_no_accepting_worker_has(client: Any, keys: Keys) -> None:
    keys.add_shape(NEED, labels=["spot", "!zone=b"])
    keys.add_worker("w1", OFFER, labels='["zone=a"]')
    keys.add_worker("w2", OFFER, labels='["spot", "zone=b"]')

    reason = only(client)

    assert (reason.kind, reason.is_impossible) == ("labels", True)
    assert reason.text == "no accepting worker has the labels it wants (spot, not zone=b)"
    assert reason.cure == "start one that has: flowctl worker --labels spot"
    keys.add_worker("w3", OFFER, labels='["spot"]')
    assert only(client).kind == "placing"


def test_one_gpu_above_a_share_must_be_whole_devices_of_one_worker(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "gpu": 3 * TOKEN})
    keys.add_worker("w1", {**OFFER, "gpu:a": TOKEN, "gpu:b": TOKEN})

    assert only(client).text == "needs gpu 3; the nearest worker, w1, offers 2"
    assert only(client).cure == "start one that does: flowctl worker --resources gpu=3"


def test_worker_that_would_do_and_is_set_aside_is_no_impossibility(client: Any, keys: Keys) -> None:
    """B25's kind: capacity that is away for a moment is waited for."""
    keys.add_shape({**NEED, "npu": TOKEN})
    keys.add_worker("small", OFFER)
    keys.add_worker("big", {**OFFER, "npu": TOKEN}, quiet_ms=10_000)

    assert (only(client).kind, only(client).text) == ("lost_contact", "lost contact with big, which could take it")
    assert not only(client).is_impossible
    keys.add_worker("big", {**OFFER, "npu": TOKEN}, accepting="0")
    assert only(client).text == "big, which could take it, has not begun to take work"


def test_quarantined_worker_is_named_with_the_command_that_brings_it_back(client: Any, keys: Keys) -> None:
    since = now_ms(client) - 240_000
    keys.add_worker("w1", OFFER, state="quarantined", reason="3 trials in a row failed", quarantined_ms=since)

    reason = only(client)

    assert (reason.kind, reason.is_impossible, reason.nearest) == ("quarantined", False, "w1")
    assert reason.text == "w1 is out of service for 4 min: 3 trials in a row failed"
    assert reason.cure == "bring it back: flowctl workers --restore w1"
    assert "4 min" not in reason.gist  # it would be said again with every look


def test_reason_of_a_quarantine_names_trials_as_people_do(client: Any, keys: Keys) -> None:
    why = "3 trials in a row failed within 10 s of their start: r:train:2, other:fit:0"
    boot = keys.add_worker("w1", OFFER, state="quarantined", reason=why, quarantined_ms=now_ms(client))
    told = "w1 is out of service for 0 s: 3 trials in a row failed within 10 s of their start: r/2, other/fit/0"

    assert only(client).text == told
    snap = take_snapshot(client, "r")
    assert snap is not None
    assert list(snap.notices.values()) == [f"{told}; bring it back: flowctl workers --restore w1"]
    client.hset(f"fc:boot:{boot}", mapping={"reason": "3 trials in a row failed", "only": "other"})
    snap = take_snapshot(client, "r")
    assert snap is not None and snap.notices == {}


# What is full now


def test_busy_names_the_largest_holders_and_since_when(client: Any, keys: Keys) -> None:
    boot = keys.add_worker("w1", {"cpu": 4 * TOKEN, "slot": 10 * TOKEN})
    keys.book(boot, "digits:train:3", {"cpu": 2 * TOKEN, "slot": TOKEN}, for_ms=245_000)
    keys.book(boot, "r:train:7", {"cpu": TOKEN, "slot": TOKEN}, for_ms=12_300)
    keys.book(boot, "r:train:8", {"cpu": TOKEN, "slot": TOKEN}, for_ms=9_000)

    reason = only(client)

    text = "waits for cpu: needs 1, w1 has 0 of 4 free; held by digits/train/3 for 4 min, r/7 for 12 s and 1 more"
    assert reason.text == text
    assert [(each.unit, each.units) for each in reason.holders] == [
        ("digits:train:3", 2 * TOKEN),
        ("r:train:7", TOKEN),
        ("r:train:8", TOKEN),
    ]
    assert reason.lacking == {"cpu": Lacking(TOKEN, 4 * TOKEN, 0)}
    assert reason.gist == "waits for cpu: needs 1, w1 has 0 of 4 free"


def test_workers_that_can_take_what_is_left_of_a_run(client: Any, keys: Keys) -> None:
    keys.add_worker("small", {"cpu": 5_000, "slot": TOKEN})
    keys.add_worker("full", OFFER, {"cpu": 2 * TOKEN})
    keys.add_worker("old", OFFER, python="3.10")

    def able() -> list[str]:
        run = load_run(client, "r")
        assert run is not None
        return [each.worker for each in able_workers(client, run, load_workers(client), at_ms=now_ms(client))]

    assert able() == ["full"]
    client.hset("fc:step:r:train", "state", "completed")
    assert able() == ["full", "old", "small"]


def test_share_of_a_device_is_not_made_of_two(client: Any, keys: Keys) -> None:
    keys.add_shape({"slot": TOKEN, "gpu": 7_000})
    boot = keys.add_worker("w1", {**OFFER, "gpu:a": TOKEN, "gpu:b": TOKEN})
    keys.book(boot, "x:t:0", {"gpu:a": 5_000}, for_ms=1_000)
    keys.book(boot, "x:t:1", {"gpu:b": 6_000}, for_ms=1_000)

    reason = only(client)

    assert reason.kind == "device"
    assert reason.text.startswith("needs one GPU with 0.7 free; the freest has 0.5 (on w1); held by x/t/1 for 1 s")
    assert reason.lacking == {"gpu": Lacking(7_000, TOKEN, 5_000)}


def test_whole_devices_must_be_wholly_free(client: Any, keys: Keys) -> None:
    keys.add_shape({"slot": TOKEN, "gpu": 2 * TOKEN})
    boot = keys.add_worker("w1", {**OFFER, "gpu:a": TOKEN, "gpu:b": TOKEN})
    keys.book(boot, "x:t:0", {"gpu:a": 100}, for_ms=1_000)

    assert only(client).text.startswith("needs 2 whole GPUs; w1 has 1 of 2 wholly free; held by x/t/0")


def test_pool_in_use_names_its_holders(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "license": TOKEN})
    boot = keys.add_worker("w1", {"cpu": 9 * TOKEN, "slot": 9 * TOKEN})
    client.hset("fc:pools", "license", 2 * TOKEN)
    keys.book(boot, "x:t:0", NEED, pools={"license": 2 * TOKEN}, for_ms=5_000)

    reason = only(client)

    assert (reason.kind, reason.is_impossible) == ("pool", False)
    assert reason.text == "waits for the pool license: needs 1, 0 of 2 free; held by x/t/0 for 5 s"
    client.hset("fc:pools", "license", TOKEN)
    assert "0 of 1 free, 2 still in use" in only(client).text


def test_pool_that_is_too_small_is_impossible_and_names_the_command(client: Any, keys: Keys) -> None:
    keys.add_shape({**NEED, "license": 3 * TOKEN})
    keys.add_worker("w1", OFFER)
    client.hset("fc:pools", "license", 2 * TOKEN)

    reason = only(client)

    assert reason == Reason(
        "pool",
        "needs license 3; the pool license has 2 in all",
        3,
        "train",
        "flowctl pool set license=3",
        True,
        {"license": Lacking(3 * TOKEN, 2 * TOKEN, 2 * TOKEN)},
    )


@pytest.mark.parametrize(("name", "whose"), [("r:train", "r/train"), ("r", "r")])
def test_limit_is_named_with_the_command_that_raises_it(client: Any, keys: Keys, name: str, whose: str) -> None:
    boot = keys.add_worker("w1", {"cpu": 9 * TOKEN, "slot": 9 * TOKEN})
    keys.book(boot, keys.add_unit(7, "running"), NEED, for_ms=3_000)
    client.hset("fc:limits", name, 1)

    reason = only(client)

    assert reason.kind == "limit"
    assert reason.text == f"max_concurrent_trials of {whose} is 1, and 1 runs; held by r/7 for 3 s"
    assert reason.cure == f"flowctl set {whose} max_concurrent_trials=2"


def reserve(client: Any, unit: str, boot: str, tokens: dict[str, int]) -> None:
    run, step, _ = unit.split(":")
    parts = [{"boot": boot, "v": tokens}]
    kept = {"unit": unit, "name": f"{run}:{step}:s9", "run": run, "step": step, "parts": parts, "pools": {}}
    client.set("fc:reserve", json.dumps({**kept, "ms": now_ms(client) - 61_000}))


def test_tokens_kept_for_another_are_told(client: Any, keys: Keys) -> None:
    boot = keys.add_worker("w1", OFFER)
    reserve(client, "big:train:0", boot, {"cpu": 2 * TOKEN})

    reason = only(client)

    assert (reason.kind, reason.nearest) == ("reserved", "w1")
    assert reason.text == "w1 has enough free, but keeps it for big/train/0, for 61 s now"
    reserve(client, "big:train:0", boot, {"cpu": TOKEN})
    assert only(client).kind == "placing"


def test_worker_kept_for_the_trial_itself_is_told(client: Any, keys: Keys) -> None:
    keys.add_shape(NEED, shape="s9")
    client.rename("fc:bucket:r:train:s1", "fc:bucket:r:train:s9")
    boot = keys.add_worker("w1", OFFER, {"cpu": 2 * TOKEN})
    reserve(client, "r:train:0", boot, NEED)

    assert only(client).text == "waits for cpu: needs 1, w1 has 0 of 2 free; w1 is kept for it"


def test_trial_that_failed_on_a_worker_waits_for_another(client: Any, keys: Keys) -> None:
    keys.add_worker("w1", OFFER)
    keys.add_worker("w2", OFFER, {"cpu": 2 * TOKEN})
    client.hset("fc:unit:r:train:0", "avoid", '["w1"]')
    client.hset("fc:unit:r:train:1", "avoid", '["w1", "w2"]')

    placing, avoided = reasons(client)

    assert (placing.kind, placing.count) == ("placing", 2)
    assert (avoided.kind, avoided.count, avoided.nearest) == ("avoided", 1, "w2")
    told = "failed on w1, so another worker is waited for: waits for cpu: needs 1, w2 has 0 of 2 free"
    assert avoided.text == told
    run = load_run(client, "r")
    assert run is not None
    unit = load_units(client, run.steps[0], [0])[0]
    assert unit_reason(client, run, run.steps[0], unit, load_workers(client), at_ms=now_ms(client)).text == told


# Gangs


def test_strict_spread_counts_machines(client: Any, keys: Keys) -> None:
    keys.add_shape(NEED, NEED, NEED, strategy="STRICT_SPREAD")
    for name, machine in (("w1", "m1"), ("w2", "m1"), ("w3", "m2")):
        keys.add_worker(name, OFFER, machine=machine)

    reason = only(client)

    assert (reason.kind, reason.is_impossible) == ("gang", True)
    assert reason.text == "STRICT_SPREAD needs 3 machines that offer cpu=1; 2 do"
    keys.add_worker("w4", OFFER, {"cpu": 2 * TOKEN}, machine="m3")
    busy = only(client)
    assert (busy.kind, busy.is_impossible) == ("gang", False)
    assert busy.text.startswith("bundle 2, cpu=1, of 3 does not fit beside the others: 2 of 3 find room at once")


def test_strict_pack_wants_one_machine(client: Any, keys: Keys) -> None:
    keys.add_shape({"cpu": 2 * TOKEN}, {"cpu": TOKEN}, strategy="STRICT_PACK")
    keys.add_worker("w1", OFFER, machine="m1")
    keys.add_worker("w2", OFFER, machine="m2")

    text = "STRICT_PACK needs one machine that holds all of 2 bundles (cpu=3); the nearest holds 1"
    assert (only(client).text, only(client).is_impossible) == (text, True)
    keys.add_worker("w3", OFFER, machine="m2")
    assert only(client).kind == "placing"


def test_packed_gang_names_the_bundle_without_room(client: Any, keys: Keys) -> None:
    keys.add_shape({"cpu": TOKEN}, {"cpu": 2 * TOKEN})
    boot = keys.add_worker("w1", {"cpu": 2 * TOKEN, "slot": 9 * TOKEN})

    assert (
        only(client).text
        == "the live workers hold 1 of 2 bundles at once, even idle; bundle 1, cpu=2, of 2 finds no room"
    )
    keys.add_worker("w2", {"cpu": TOKEN, "slot": TOKEN}, machine="m2")
    assert only(client).kind == "placing"
    keys.book(boot, "x:t:0", {"cpu": TOKEN}, for_ms=2_000)
    reason = only(client)
    text = "bundle 1, cpu=2, of 2: waits for cpu: needs 2, w1 has 1 of 2 free; held by x/t/0 for 2 s"
    assert (reason.kind, reason.text, reason.is_impossible) == ("gang", text, False)


def test_bundle_that_nobody_could_hold_is_named(client: Any, keys: Keys) -> None:
    keys.add_shape({"cpu": TOKEN}, {"gpu": TOKEN})
    keys.add_worker("w1", OFFER)

    assert only(client).text == "bundle 1, gpu=1, of 2: no live worker offers gpu (asked 1)"
    assert (only(client).kind, only(client).is_impossible) == ("impossible", True)


def test_bundle_that_does_not_fit_beside_the_others_is_named_with_who_holds_what_lacks(client: Any, keys: Keys) -> None:
    keys.add_shape({"cpu": TOKEN}, {"cpu": TOKEN}, {"cpu": 3 * TOKEN})
    boot = keys.add_worker("w1", {"cpu": 5 * TOKEN, "slot": 9 * TOKEN})
    keys.book(boot, "x:t:0", {"cpu": TOKEN}, for_ms=7_000)

    reason = only(client)

    head = "bundle 2, cpu=3, of 3 does not fit beside the others: 2 of 3 find room at once (PACK)"
    assert (reason.kind, reason.text) == ("gang", f"{head}; held by x/t/0 for 7 s")
    assert [(each.unit, each.units) for each in reason.holders] == [("x:t:0", TOKEN)]
    keys.book(boot, "x:t:1", {"cpu": 4 * TOKEN}, for_ms=9_000)
    assert only(client).text.startswith("bundle 2, cpu=3, of 3: waits for cpu: needs 3, w1 has 0 of 5 free")


def test_shares_of_devices_are_seated_as_placement_seats_them(client: Any, keys: Keys) -> None:
    """B26: 0.1 + 0.9 + 0.9 on two devices."""
    keys.add_shape({"gpu": 1_000}, {"gpu": 9_000}, {"gpu": 9_000})
    keys.add_worker("w1", {**OFFER, "gpu:0": TOKEN, "gpu:1": TOKEN})

    assert only(client).kind == "placing"


# After the end, and as a whole


def test_trial_that_was_pending_for_too_long_tells_what_it_lacks(client: Any) -> None:
    keys = Keys(client)
    keys.add_run()
    keys.add_step(total=1)
    keys.add_shape({**NEED, "npu": TOKEN})
    cause = {"kind": "infeasible", "text": "was pending for 10 s"}
    keys.add_unit(0, "failed", cause=cause, reason="infeasible")
    keys.add_worker("w1", OFFER)

    def told() -> str:
        run = load_run(client, "r")
        assert run is not None
        found = with_lacks(client, run, failed_units(client, "r"), load_workers(client), at_ms=now_ms(client))
        assert found[0].cause is not None
        return found[0].cause.headline()

    assert told() == "was pending for 10 s: no live worker offers npu (asked 1)"
    keys.add_worker("w2", {**OFFER, "npu": TOKEN})
    assert told() == "was pending for 10 s: cpu 1, npu 1 was not free; it is now"


def test_durations_are_one_number() -> None:
    assert [for_ms(s * 1000) for s in (0, 119, 120, 7199, 7200, 172_800)] == [
        "0 s",
        "119 s",
        "2 min",
        "119 min",
        "2 h",
        "2 days",
    ]


def test_every_kind_of_reason_is_explained() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/resources.md").read_text()
    section = page.split("## Why does it wait?\n")[1].split("\n## ")[0]

    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(KINDS)
