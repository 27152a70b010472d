"""Runs: reserve, create, expand, cancel, journal, store."""

from __future__ import annotations

from typing import Any

import pytest
from broker_builder import World, step_of

# --- the store ---


def test_store_keeps_the_first_schema_and_id(world: World) -> None:
    first = world.calls.store_open(schema="1", store_id="one")
    before = world.dump()

    again = world.calls.store_open(schema="2", store_id="two")

    assert first.rest == again.rest == ("1", "one")
    assert world.dump() == before


# --- names ---


def test_reserve_holds_a_name_for_its_time_only(world: World) -> None:
    reply = world.calls.run_reserve("r1", token="a", ttl_ms=60_000)

    assert reply.word == "OK"
    assert 59_000 < world.client.pttl("fc:name:r1") <= 60_000


def test_reserve_is_refused_while_another_holds_the_name(world: World) -> None:
    world.calls.run_reserve("r1", token="a")
    before = world.dump()

    assert world.calls.run_reserve("r1", token="b").word == "RESERVED"

    assert world.dump() == before


def test_reserve_again_with_the_same_token_starts_the_time_anew(world: World) -> None:
    world.calls.run_reserve("r1", token="a", ttl_ms=1_000)

    assert world.calls.run_reserve("r1", token="a", ttl_ms=60_000).word == "OK"

    assert world.client.pttl("fc:name:r1") > 59_000


def test_reserve_is_free_once_the_time_is_over(world: World) -> None:
    world.calls.run_reserve("r1", token="a")
    world.client.pexpireat("fc:name:r1", world.now_ms())

    assert world.calls.run_reserve("r1", token="b").word == "OK"


def test_reserve_is_refused_for_a_run_that_exists(world: World) -> None:
    world.run("r1")
    before = world.dump()

    assert world.calls.run_reserve("r1", token="b").rest == ("submitted",)

    assert world.dump() == before


def test_unreserve_frees_only_ones_own(world: World) -> None:
    world.calls.run_reserve("r1", token="a")

    world.calls.run_unreserve("r1", token="b")
    assert world.client.get("fc:name:r1") == "a"

    world.calls.run_unreserve("r1", token="a")
    assert world.client.get("fc:name:r1") is None
    assert world.calls.run_unreserve("r1", token="a").word == "OK"


# --- create ---


def test_create_makes_steps_and_uses_the_reservation_up(world: World) -> None:
    world.calls.run_reserve("r1", token="t")

    world.create("r1", step_of("a"), step_of("b", after=["a"], mode=None))

    assert world.client.lrange("fc:steps:r1", 0, -1) == ["a", "b"]
    assert (world.step_state("a"), world.step_state("b")) == ("ready", "waiting")
    assert world.client.hmget("fc:step:r1:b", "metric", "mode", "after") == ["", "", '["a"]']
    assert world.client.get("fc:name:r1") is None
    assert world.events(kind="run") == [("", "submitted")]


def test_create_again_with_the_same_token_changes_nothing(world: World) -> None:
    world.create("r1", step_of())
    before = world.dump()

    assert world.create("r1", step_of()).word == "OK"

    assert world.dump() == before


def test_create_is_refused_for_a_run_of_another_token(world: World) -> None:
    world.create("r1", step_of())
    before = world.dump()

    reply = world.create("r1", step_of("other"), token="else")

    assert (reply.word, reply.rest) == ("EXISTS", ("submitted",))
    assert world.dump() == before


# --- expand ---


def test_units_are_added_in_chunks(world: World) -> None:
    world.create("r1", step_of(total=5))

    assert world.add("r1", first=0, n=3).rest == ("3",)
    assert world.client.zscore("fc:expanding", "r1:train") is not None
    assert world.add("r1", first=3, n=2).rest == ("5",)

    assert world.client.zscore("fc:expanding", "r1:train") is None
    assert world.count("pending") == 5


def test_a_chunk_added_twice_adds_nothing(world: World) -> None:
    world.run("r1", step_of(total=5))
    before = world.dump()

    assert world.add("r1", first=0, n=5).word == "OK"

    assert world.dump() == before


def test_a_chunk_that_overlaps_adds_what_lacks(world: World) -> None:
    world.create("r1", step_of(total=5))
    world.add("r1", first=0, n=3)

    assert world.add("r1", first=1, n=4).rest == ("5",)

    assert world.count("pending") == 5


def test_an_early_chunk_repeated_leaves_running_and_ended_units_alone(world: World) -> None:
    world.boot(cpu=2)
    world.create("r1", step_of(total=4))
    world.add("r1", first=0, n=2)
    done, runs = world.running("r1:train:0"), world.running("r1:train:1")
    world.finish(done)

    world.add("r1", first=0, n=2)
    world.add("r1", first=2, n=2)

    assert world.state("r1:train:0") == "completed"
    assert world.state("r1:train:1") == "running"
    assert world.calls.trial_renew(runs).word == "CONTINUE"
    assert sum(world.count(state) for state in ("pending", "placed", "running", "completed")) == 4


@pytest.mark.parametrize(
    ("first", "n", "shape", "answer"),
    [
        (2, 1, None, ("GAP", ("1",))),
        (0, 6, None, ("BAD_RANGE", ("5",))),
        (-1, 1, None, ("BAD_RANGE", ("5",))),
        (0, 0, None, ("BAD_RANGE", ("5",))),
        (1, 1, "unknown", ("BAD_SHAPE", ())),
    ],
)
def test_a_chunk_that_cannot_be_right_is_refused(
    world: World, first: int, n: int, shape: str | None, answer: Any
) -> None:
    step = step_of(total=5)
    world.create("r1", step)
    world.add("r1", first=0, n=1)
    before = world.dump()

    reply = world.calls.trials_add("r1", "train", first=first, groups=[(shape or step["shape"], n)])

    assert (reply.word, reply.rest) == answer
    assert world.dump() == before


def test_a_chunk_for_nobody_is_refused(world: World) -> None:
    assert world.calls.trials_add("r9", "train", first=0, groups=[("s", 1)]).word == "NOT_FOUND"
    assert world.dump() == {}


def test_a_chunk_after_a_cancel_is_refused(world: World) -> None:
    world.boot(cpu=1)
    world.create("r1", step_of(total=4))
    world.add("r1", first=0, n=2)
    fence = world.running()
    world.calls.run_cancel("r1")
    before = world.dump()

    assert world.add("r1", first=2, n=2).word == "ENDED"
    assert world.dump() == before

    world.finish(fence, "cancelled")
    assert world.add("r1", first=2, n=2).word == "ENDED"
    assert (world.run_state(), world.count("cancelled")) == ("cancelled", 4)


def test_a_step_ends_when_its_last_chunk_comes_after_all_its_trials_ended(world: World) -> None:
    world.boot(cpu=2)
    world.create("r1", step_of(total=4))
    world.add("r1", first=0, n=2)
    for index in (0, 1):
        world.finish(world.running(f"r1:train:{index}"))
    assert world.step_state() == "running"

    world.add("r1", first=2, n=2)
    assert world.step_state() == "running"
    for index in (2, 3):
        world.finish(world.running(f"r1:train:{index}"))

    assert (world.step_state(), world.run_state()) == ("completed", "completed")


def test_units_of_a_waiting_step_are_not_placed(world: World) -> None:
    world.boot()

    world.run("r1", step_of("a"), step_of("b", after=["a"]))

    assert world.state("r1:a:0") == "placed"
    assert world.state("r1:b:0") == "pending"
    assert world.messages() == [("r1:a:0", 1)]


def test_an_expansion_that_a_client_left_is_handed_to_one(world: World) -> None:
    world.create("r1", step_of(total=4))
    world.add("r1", first=0, n=1)
    assert world.calls.expand_take().word == "NONE"
    world.client.zadd("fc:expanding", {"r1:train": world.now_ms()})

    assert world.calls.expand_take().rest == ("r1", "train", "1", "4")
    before = world.dump()
    assert world.calls.expand_take().word == "NONE"

    assert world.dump() == before


def test_an_expansion_of_a_step_that_is_gone_is_forgotten(world: World) -> None:
    world.client.zadd("fc:expanding", {"r9:train": 1})

    assert world.calls.expand_take().word == "NONE"

    assert world.dump() == {}


# --- cancel ---


def test_cancel_ends_a_run_that_only_waits(world: World) -> None:
    world.run("r1", step_of("a", total=3), step_of("b", after=["a"], total=2))

    assert world.calls.run_cancel("r1").rest == ("cancelled",)

    assert (world.step_state("a"), world.step_state("b")) == ("cancelled", "cancelled")
    assert (world.count("cancelled", "a"), world.count("cancelled", "b")) == (3, 2)


def test_cancel_keeps_the_first_reason(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1", step_of(total=3))
    fence = world.running()

    world.calls.run_cancel("r1", reason="nothing here has 64 cores")
    world.calls.run_cancel("r1", reason="another")
    world.finish(fence, "cancelled", reason="cancelled")

    assert world.client.hmget("fc:run:r1", "state", "reason") == ["cancelled", "nothing here has 64 cores"]


def test_cancel_again_changes_nothing(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1", step_of(total=3))
    world.running()
    world.calls.run_cancel("r1")
    before = world.dump()

    assert world.calls.run_cancel("r1").rest == ("running",)

    assert world.dump() == before


def test_cancel_is_refused_for_an_ended_run_and_an_unknown_one(world: World) -> None:
    world.boot()
    world.run("r1")
    world.finish(world.running())
    before = world.dump()

    ended, unknown = world.calls.run_cancel("r1"), world.calls.run_cancel("r9")

    assert (ended.word, ended.rest) == ("ENDED", ("completed",))
    assert unknown.word == "NOT_FOUND"
    assert world.dump() == before


def test_cancel_tells_the_boots_and_the_guardian(world: World) -> None:
    world.boot()
    world.run("r1")
    fence = world.running()

    world.calls.run_cancel("r1")

    assert world.beat().value["attention"] == ["r1"]
    assert "attention" not in world.beat().value
    assert world.calls.trial_renew(fence).word == "CANCEL"
    assert world.report(fence).word == "CANCEL"


def test_cancel_lets_what_is_placed_end_at_its_claim(world: World) -> None:
    world.boot()
    world.run("r1")
    placed = world.placement()
    assert placed is not None

    world.calls.run_cancel("r1")
    assert world.run_state() == "submitted"
    reply = world.claim(world.fence(placed))

    assert reply.word == "CANCELLED"
    assert (world.state(), world.run_state(), world.used()) == ("cancelled", "cancelled", 0)


def test_cancel_lets_what_is_placed_end_at_its_deadline(world: World) -> None:
    world.boot()
    world.run("r1")
    world.calls.run_cancel("r1")

    world.expire("r1:train:0")
    world.tick()

    assert (world.state(), world.run_state(), world.messages()) == ("cancelled", "cancelled", [])


def test_cancel_while_units_wait_for_a_retry(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", step_of(total=2, max_failures=1))
    delayed, runs = world.running("r1:train:0"), world.running("r1:train:1")
    world.finish(delayed, "pending", delay_ms=60_000, fails_up=1)

    world.calls.run_cancel("r1")
    assert (world.count("pending"), world.count("cancelled"), world.run_state()) == (0, 1, "running")
    assert world.calls.unit_cancel("r1:train:0").word == "ENDED"
    world.mature("r1:train:0")
    world.tick()
    assert world.placement("r1:train:0") is None
    world.finish(runs, "cancelled")

    assert (world.count("cancelled"), world.run_state()) == (2, "cancelled")


def test_cancel_takes_a_unit_that_is_lost_afterwards(world: World) -> None:
    world.boot()
    world.run("r1")
    world.running()
    world.calls.run_cancel("r1")

    world.expire("r1:train:0")
    world.tick()

    assert (world.state(), world.run_state()) == ("cancelled", "cancelled")


def test_cancel_takes_a_unit_that_is_handed_back_afterwards(world: World) -> None:
    world.boot()
    world.run("r1")
    fence = world.running()
    world.calls.run_cancel("r1")

    assert world.calls.trial_handback(fence, reason="no storage", delay_ms=5000).rest == ("cancelled",)

    assert world.run_state() == "cancelled"


def test_cancel_takes_a_retry_that_is_asked_for_afterwards(world: World) -> None:
    world.boot()
    world.run("r1", step_of(max_failures=1))
    fence = world.running()
    world.calls.run_cancel("r1")

    assert world.finish(fence, "pending", fails_up=1).rest == ("cancelled",)

    assert world.run_state() == "cancelled"


def test_a_run_that_finished_in_spite_of_its_cancel_is_completed(world: World) -> None:
    world.boot()
    world.run("r1")
    fence = world.running()
    world.calls.run_cancel("r1")

    world.finish(fence, "completed")

    assert (world.step_state(), world.run_state()) == ("completed", "completed")


def test_a_unit_with_a_value_that_waits_for_a_retry_is_not_best_of_a_cancelled_run(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", step_of(total=2, max_failures=1))
    first, second = world.running("r1:train:0"), world.running("r1:train:1")
    world.report(first, value=0.9)
    world.report(second, value=0.1)
    world.finish(first, "pending", delay_ms=60_000, fails_up=1)

    world.calls.run_cancel("r1")
    world.finish(second, "completed")

    assert world.client.zrange("fc:rank:r1:train", 0, -1) == ["r1:train:1"]


# --- the journal ---


def test_journal_has_one_holder_at_a_time(world: World) -> None:
    world.run("r1")

    taken = world.calls.journal_take(owner="a")
    assert taken.rest == ("r1", "0", "0-0", "file:///x")
    assert world.calls.journal_take(owner="a").rest == taken.rest
    before = world.dump()
    assert world.calls.journal_take(owner="b").word == "NONE"

    assert world.dump() == before


def test_journal_passes_on_when_its_lease_is_over(world: World) -> None:
    world.run("r1")
    world.calls.journal_take(owner="a")
    world.client.hset("fc:journal:r1", "until_ms", world.now_ms() - 1)

    assert world.calls.journal_take(owner="b").word == "OK"

    before = world.dump()
    assert world.calls.journal_done("r1", owner="a", number=0, last_id="1-0").word == "LOST"
    assert world.dump() == before


def test_journal_is_cut_only_behind_what_stands_on_storage(world: World) -> None:
    world.run("r1", step_of("a"), step_of("b"))
    first, *rest = [name for name, _ in world.client.xrange("fc:events:r1")]
    world.calls.journal_take(owner="a")

    world.calls.journal_done("r1", owner="a", number=0, last_id=first, keep_ms=-60_000)

    assert [name for name, _ in world.client.xrange("fc:events:r1")] == [first, *rest]
    assert world.client.smembers("fc:journals") == {"r1"}
    assert world.calls.journal_take(owner="a").rest[1:3] == ("1", first)


def test_journal_rests_when_all_is_written(world: World) -> None:
    world.run("r1", step_of("a"), step_of("b"))
    last = world.client.xrevrange("fc:events:r1", count=1)[0][0]
    world.calls.journal_take(owner="a")

    world.calls.journal_done("r1", owner="a", number=0, last_id=last, keep_ms=60_000)

    assert world.client.smembers("fc:journals") == set()
    assert world.client.xlen("fc:events:r1") > 0
    assert world.calls.journal_take(owner="a").word == "NONE"
