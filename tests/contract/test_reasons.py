"""Why trials are pending: one reason for each, naming the lacking resource and the nearest worker."""

from typing import Any

import pytest
from view_keys import TOKEN, Keys

from flowctl.broker.reasons import Reason, Shape, pending_reasons, reason_for, show_need, show_tokens, unit_reason
from flowctl.broker.view import load_run, load_units, now_ms
from flowctl.broker.worker_view import WorkerView, load_workers

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
    assert only(client).text == "needs cpu 3; the nearest worker, vm-2, can offer at most 2"


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

    assert only(client).text.startswith("w1 still holds cpu 1 of attempts whose end it has not confirmed")


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
    assert show_tokens("memory", 2048) == "2048 MiB"
    assert show_need({"cpu": TOKEN, "slot": TOKEN, "gpu": 0, "license": 2 * TOKEN}) == "cpu 1, license 2"
    assert show_need({"slot": TOKEN}) == "nothing but a slot"


def test_reason_is_a_pure_function_of_shape_and_workers() -> None:
    shape = Shape(need=NEED, python="3.11", key="k")
    nobody: list[WorkerView] = []

    assert reason_for(shape, nobody, at_ms=0, run="r") == reason_for(shape, nobody, at_ms=99, run="r")
