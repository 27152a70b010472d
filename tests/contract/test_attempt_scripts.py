"""Attempts: claim, renew, report, trim, finish, hand back, release, cancel of one unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from broker_builder import TIMES, World, step_of

from flowctl.broker.calls import Fence, Reply

UNIT = "r1:train:0"


@pytest.fixture
def placed(world: World) -> Fence:
    """A unit placed on b1, and the fence with which it may be claimed."""
    world.boot()
    world.run("r1", step_of(max_failures=1))
    placement = world.placement()
    assert placement is not None
    return world.fence(placement)


@pytest.fixture
def fence(world: World, placed: Fence) -> Fence:
    """The fence of a running unit."""
    assert world.claim(placed).word == "OK"
    return placed


# --- claim ---


def test_claim_begins_an_attempt(world: World, placed: Fence) -> None:
    value = world.claim(placed).value

    assert (value["attempt"], value["fails"], value["losses"]) == (1, 0, 0)
    assert (value["location"], value["token"], value["checkpoint"]) == ("file:///x", "t-r1", "")
    assert (world.state(), world.step_state(), world.run_state()) == ("running", "running", "running")
    assert world.client.zscore("fc:deadlines", UNIT) == value["now_ms"] + TIMES.lease_ms
    assert world.events() == [("pending", "placed"), ("placed", "running")]


def test_claim_again_with_the_same_nonce_answers_the_same(world: World, placed: Fence) -> None:
    first = world.claim(placed).value
    before = world.dump(but=["fc:deadlines"])

    second = world.claim(placed).value

    assert {**second, "now_ms": 0} == {**first, "now_ms": 0}
    assert world.dump(but=["fc:deadlines"]) == before


def test_claim_with_another_nonce_is_refused(world: World, fence: Fence) -> None:
    before = world.dump()

    reply = world.claim(replace(fence, nonce="other"))

    assert (reply.word, reply.rest) == ("STALE", ("running",))
    assert world.dump() == before


@pytest.mark.parametrize("epoch", [0, 2, 10**15])
def test_claim_at_another_epoch_is_refused(world: World, placed: Fence, epoch: int) -> None:
    before = world.dump()

    assert world.claim(replace(placed, epoch=epoch)).word == "STALE"

    assert world.dump() == before


def test_claim_from_another_boot_is_refused(world: World, placed: Fence) -> None:
    world.boot("b2")
    before = world.dump()

    assert world.claim(placed, boot="b2").word == "STALE"

    assert world.dump() == before


def test_claim_of_nothing_is_refused(world: World) -> None:
    assert world.claim(Fence("r9:train:0", 1, "n"), boot="b1").word == "NOT_FOUND"
    assert world.dump() == {}


def test_claim_of_a_message_that_celery_delivers_again_is_refused(world: World, fence: Fence) -> None:
    world.finish(fence)
    before = world.dump()

    assert world.claim(replace(fence, nonce="other")).word == "STALE"

    assert world.dump() == before


def test_claim_of_a_cancelled_unit_ends_it(world: World, placed: Fence) -> None:
    world.client.hset(f"fc:unit:{UNIT}", "wanted", "cancel")

    assert world.claim(placed).word == "CANCELLED"

    assert (world.state(), world.run_state(), world.used()) == ("cancelled", "cancelled", 0)


# --- what needs the current fence ---

CALLS: dict[str, Callable[[World, Fence], Reply]] = {
    "renew": lambda world, fence: world.calls.trial_renew(fence),
    "report": lambda world, fence: world.report(fence),
    "finish": lambda world, fence: world.finish(fence),
    "handback": lambda world, fence: world.calls.trial_handback(fence, reason="why"),
    "counted handback": lambda world, fence: world.calls.trial_handback(fence, reason="why", counted=True),
    "release": lambda world, fence: world.release(fence),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_nonce_changes_nothing(world: World, fence: Fence, name: str) -> None:
    before = world.dump()

    assert CALLS[name](world, replace(fence, nonce="other")).word == "LOST"

    assert world.dump() == before


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("epoch", [0, 2])
def test_another_epoch_changes_nothing(world: World, fence: Fence, name: str, epoch: int) -> None:
    before = world.dump()

    assert CALLS[name](world, replace(fence, epoch=epoch)).word == "LOST"

    assert world.dump() == before


@pytest.mark.parametrize("name", CALLS)
def test_an_old_fence_changes_nothing_once_the_unit_runs_elsewhere(world: World, fence: Fence, name: str) -> None:
    world.boot("b2")
    world.calls.worker_leave("b1", text="gone")
    now = world.running()
    assert (now.epoch, world.field(UNIT, "boot")) == (2, "b2")
    before = world.dump()

    assert CALLS[name](world, fence).word == "LOST"

    assert world.dump() == before
    assert world.calls.trial_renew(now).word == "CONTINUE"


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_unit_changes_nothing(world: World, name: str) -> None:
    assert CALLS[name](world, Fence("r9:train:0", 1, "n")).word == "LOST"
    assert world.dump() == {}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("renew", "report")])
def test_a_repeat_of_an_end_changes_nothing(world: World, fence: Fence, name: str) -> None:
    first = CALLS[name](world, fence)
    before = world.dump()

    second = CALLS[name](world, fence)

    assert second == first if name != "release" else second.word == "LOST"
    assert world.dump() == before


# --- renew ---


def test_renew_moves_the_deadline_and_nothing_else(world: World, fence: Fence) -> None:
    world.client.zadd("fc:deadlines", {UNIT: 1})
    before = world.dump(but=["fc:deadlines"])

    reply = world.calls.trial_renew(fence)

    assert reply.word == "CONTINUE"
    assert world.client.zscore("fc:deadlines", UNIT) == int(reply.rest[0]) + TIMES.lease_ms
    assert world.dump(but=["fc:deadlines"]) == before


def test_renew_says_that_the_unit_is_cancelled(world: World, fence: Fence) -> None:
    assert world.calls.unit_cancel(UNIT).rest == ("running",)

    assert world.calls.trial_renew(fence).word == "CANCEL"


# --- report ---


def test_report_keeps_last_best_and_tail(world: World, fence: Fence) -> None:
    world.report(fence, seq=1, value=0.2, saves=True)
    world.report(fence, seq=2, value=0.9)
    world.report(fence, seq=3, value=0.5)

    record = world.client.hgetall(f"fc:unit:{UNIT}")
    assert (record["rows"], record["iteration"], record["last"]) == ("3", "3", '{"loss": 0.5}')
    assert (record["best"], record["best_iteration"], record["best_checkpoint"]) == ("0.9", "2", "")
    assert json.loads(record["checkpoint"])["seq"] == 1
    assert world.client.llen(f"fc:tail:{UNIT}") == 3
    assert world.client.zscore("fc:rank:r1:train", UNIT) == 0.9


def test_report_again_changes_nothing(world: World, fence: Fence) -> None:
    world.report(fence, seq=1, saves=True)
    before = world.dump(but=["fc:deadlines"])

    assert world.report(fence, seq=1, saves=True).word == "CONTINUE"

    assert world.dump(but=["fc:deadlines"]) == before


def test_report_out_of_order_changes_nothing(world: World, fence: Fence) -> None:
    world.report(fence, seq=1, value=0.1)
    world.report(fence, seq=2, value=0.2)
    before = world.dump(but=["fc:deadlines"])

    assert world.report(fence, seq=1, value=0.9).word == "CONTINUE"

    assert world.dump(but=["fc:deadlines"]) == before


def test_report_that_skips_a_number_is_taken(world: World, fence: Fence) -> None:
    world.report(fence, seq=1)

    world.report(fence, seq=5, value=0.7)

    assert (world.field(UNIT, "iteration"), world.field(UNIT, "seq"), world.field(UNIT, "rows")) == ("5", "5", "2")


def test_reports_of_a_second_attempt_count_from_one_again(world: World, fence: Fence) -> None:
    world.report(fence, seq=4, value=0.4)
    world.finish(fence, "pending", fails_up=1)
    second = world.running()

    world.report(second, seq=1, value=0.6)

    assert (world.field(UNIT, "seq"), world.field(UNIT, "best"), world.field(UNIT, "rows")) == ("1", "0.6", "2")


@pytest.mark.parametrize(("mode", "best"), [("max", "3.0"), ("min", "1.0")])
def test_best_follows_the_mode(world: World, mode: str, best: str) -> None:
    world.boot()
    world.run("r1", step_of(mode=mode))
    fence = world.running()

    for seq, value in enumerate((2.0, 3.0, 1.0), start=1):
        world.report(fence, seq=seq, value=value)

    assert world.field(UNIT, "best") == best


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 10**400])
def test_values_that_are_not_finite_never_win(world: World, fence: Fence, value: float) -> None:
    assert world.report(fence, value=value).word == "CONTINUE"

    assert world.field(UNIT, "best") is None
    assert world.client.zcard("fc:rank:r1:train") == 0


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324, 2.0**53 + 2, 0.1 + 0.2, 123456789012345678.0])
def test_values_keep_every_digit(world: World, fence: Fence, value: float) -> None:
    world.report(fence, value=value)

    assert float(world.field(UNIT, "best") or "nan") == value
    assert world.client.zscore("fc:rank:r1:train", UNIT) == value


def test_equal_values_rank_by_the_first_report(world: World, fence: Fence) -> None:
    world.report(fence, seq=1, value=0.5)
    world.report(fence, seq=2, value=0.5)

    assert world.field(UNIT, "best_iteration") == "1"


def test_a_committed_checkpoint_resets_the_losses(world: World, fence: Fence) -> None:
    world.release(fence)
    second = world.running()
    assert world.field(UNIT, "losses") == "1"

    world.report(second, seq=1)
    assert world.field(UNIT, "losses") == "1"
    world.report(second, seq=2, saves=True)

    assert world.field(UNIT, "losses") == "0"


# --- the tail ---


def test_trim_cuts_up_to_a_row_and_again_nothing(world: World, fence: Fence) -> None:
    for seq in (1, 2, 3):
        world.report(fence, seq=seq)

    assert world.calls.tail_trim(fence, seq=2).rest == ("2",)
    before = world.dump()
    assert world.calls.tail_trim(fence, seq=2).rest == ("0",)

    assert world.dump() == before
    assert [json.loads(row)["seq"] for row in world.client.lrange(f"fc:tail:{UNIT}", 0, -1)] == [3]


def test_trim_leaves_the_rows_of_another_attempt(world: World, fence: Fence) -> None:
    world.report(fence, seq=1)
    world.release(fence)
    second = world.running()
    world.report(second, seq=1)

    assert world.calls.tail_trim(second, seq=9).rest == ("0",)
    assert world.client.sismember("fc:leftovers", UNIT)
    assert world.calls.tail_trim(fence, seq=9).rest == ("1",)
    assert world.calls.tail_trim(second, seq=9).rest == ("1",)

    assert not world.client.exists("fc:leftovers")


def test_trim_is_bounded(world: World, fence: Fence) -> None:
    for seq in (1, 2, 3):
        world.report(fence, seq=seq)

    assert world.calls.tail_trim(fence, seq=3, limit=2).rest == ("2",)


def test_rows_that_a_finish_left_are_found_by_others(world: World, fence: Fence) -> None:
    world.report(fence, seq=1)

    world.finish(fence)

    assert world.client.smembers("fc:leftovers") == {UNIT}
    world.calls.tail_trim(fence, seq=1)
    assert not world.client.exists("fc:leftovers", f"fc:tail:{UNIT}")


# --- finish ---


def test_finish_gives_tokens_back_and_goes_on(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1", step_of(total=2))
    fence = world.running("r1:train:0")

    assert world.finish(fence).rest == ("completed",)

    assert (world.state("r1:train:0"), world.state("r1:train:1")) == ("completed", "placed")
    assert world.used() == 10_000
    assert world.attempts("r1:train:0")[0]["outcome"] == "completed"


def test_finish_after_the_reply_was_lost_says_the_same_even_when_it_runs_again(world: World, fence: Fence) -> None:
    world.finish(fence, "pending", fails_up=1)
    second = world.running()
    before = world.dump()

    reply = world.finish(fence, "pending", fails_up=1)

    assert (reply.word, reply.rest) == ("OK", ("running",))
    assert world.dump() == before
    assert world.calls.trial_renew(second).word == "CONTINUE"


def test_finish_as_failed_takes_the_unit_out_of_the_ranking(world: World, fence: Fence) -> None:
    world.report(fence, value=0.9)

    world.finish(fence, "failed", reason="error", cause={"kind": "exception", "text": "boom"}, fails_up=1)

    assert world.client.zcard("fc:rank:r1:train") == 0
    assert world.client.zrange("fc:failed:r1", 0, -1) == [UNIT]
    assert json.loads(world.field(UNIT, "cause") or "")["text"] == "boom"
    assert (world.step_state(), world.run_state()) == ("failed", "failed")


def test_a_retry_with_delay_waits_and_comes_back(world: World, fence: Fence) -> None:
    world.report(fence, value=0.9)
    world.finish(fence, "pending", reason="retry", delay_ms=60_000, fails_up=1)
    assert (world.state(), world.messages()) == ("pending", [(UNIT, 1)])
    assert world.client.zcard("fc:rank:r1:train") == 0

    world.tick()
    assert world.state() == "pending"
    world.mature(UNIT)
    world.tick()
    second = world.running()

    assert (second.epoch, world.field(UNIT, "attempts"), world.field(UNIT, "not_before_ms")) == (2, "2", None)
    assert world.client.zscore("fc:rank:r1:train", UNIT) == 0.9


def test_finish_with_a_damaged_cause_changes_nothing(world: World, fence: Fence) -> None:
    from redis.exceptions import ResponseError

    before = world.dump()

    with pytest.raises(ResponseError):
        world.calls._run(
            "trial_finish", UNIT, fence.epoch, fence.nonce, "failed", "error", "{damaged", "failed", 1, 0, "", 15_000
        )

    assert world.dump() == before


# --- hand back ---


def test_an_uncounted_handback_leaves_no_trace(world: World, fence: Fence) -> None:
    assert world.calls.trial_handback(fence, reason="no storage", delay_ms=5000).rest == ("pending",)

    assert (world.field(UNIT, "attempts"), world.field(UNIT, "losses"), world.attempts()) == ("0", None, [])
    assert (world.used(), world.field(UNIT, "reason")) == (0, "no storage")
    world.mature(UNIT)
    world.tick()
    fence = world.running()
    assert (world.field(UNIT, "attempts"), fence.epoch) == ("1", 2)


def test_a_handback_keeps_the_progress(world: World, fence: Fence) -> None:
    world.report(fence, seq=1, value=0.4, saves=True)

    world.calls.trial_handback(fence, reason="drains", counted=True)
    world.tick()
    second = world.fence(placement) if (placement := world.placement()) else None
    assert second is not None
    value = world.claim(second).value

    assert json.loads(value["checkpoint"])["nonce"] == fence.nonce
    assert (value["iteration"], value["attempt"], value["losses"]) == (1, 2, 0)
    assert world.field(UNIT, "best") == "0.4"


def test_a_preemption_without_a_checkpoint_of_its_own_is_a_loss(world: World, fence: Fence) -> None:
    world.report(fence, seq=1, saves=True)
    world.calls.trial_handback(fence, reason="drains", counted=True)
    assert world.field(UNIT, "losses") == "0"

    for losses in (1, 2):
        world.tick()
        again = world.running()
        world.report(again, seq=1)
        assert world.calls.trial_handback(again, reason="drains", counted=True).rest == ("pending",)
        assert world.field(UNIT, "losses") == str(losses)

    assert [attempt["outcome"] for attempt in world.attempts()] == ["preempted"] * 3


def test_a_preemption_may_be_one_loss_too_many(world: World) -> None:
    world.boot()
    world.run("r1", step_of(max_worker_losses=0))
    fence = world.running()

    assert world.calls.trial_handback(fence, reason="drains", counted=True).rest == ("failed",)

    assert (world.state(), world.field(UNIT, "reason"), world.run_state()) == ("failed", "lost too often", "failed")
    assert json.loads(world.field(UNIT, "cause") or "")["kind"] == "preempted"


# --- release ---


def test_release_frees_and_runs_it_again(world: World, fence: Fence) -> None:
    assert world.release(fence).rest == ("placed",)

    assert (world.field(UNIT, "epoch"), world.field(UNIT, "losses"), world.used()) == ("2", "1", 10_000)
    assert (world.attempts()[0]["outcome"], world.attempts()[0]["cause"]["kind"]) == ("lost", "guardian_lost")


def test_release_takes_the_message_back_from_celery(world: World, fence: Fence) -> None:
    tag = f"fc.{UNIT}.1"
    world.client.hset("fc:unacked", tag, "message")
    world.client.zadd("fc:unacked_index", {tag: 1})

    world.release(fence)

    assert not world.client.exists("fc:unacked", "fc:unacked_index")


def test_release_of_an_orphan_frees_its_device(world: World, fence: Fence) -> None:
    world.boot("b2")
    world.expire(UNIT)
    world.tick()
    assert (world.row(fence) or {})["s"] == "orphan"
    assert world.field(UNIT, "boot") == "b2"

    assert world.release(fence).word == "FREED"

    assert world.used("b1") == 0
    assert world.state() == "placed"
    assert world.release(fence).word == "LOST"


def test_release_of_a_placed_unit_counts_nothing(world: World, placed: Fence) -> None:
    assert world.release(placed).rest == ("placed",)

    assert (world.field(UNIT, "epoch"), world.field(UNIT, "losses"), world.attempts()) == ("2", None, [])


@pytest.mark.parametrize(("limit", "losses"), [(0, 1), (2, 3), ("none", 2)])
def test_losses_in_a_row_end_the_unit(world: World, limit: int | str, losses: int) -> None:
    world.boot()
    world.run("r1", step_of(max_worker_losses=limit, max_failures=1))

    for _ in range(losses):
        assert world.state() == "placed"
        world.release(world.running())

    assert (world.state(), world.run_state()) == ("failed", "failed")
    assert world.field(UNIT, "reason") == ("error" if limit == "none" else "lost too often")
    assert world.field(UNIT, "fails" if limit == "none" else "losses") == str(losses)
    assert len(world.attempts()) == losses


@pytest.mark.parametrize(("limit", "max_failures"), [(-1, 0), ("none", -1)])
def test_losses_without_limit_never_end_the_unit(world: World, limit: int | str, max_failures: int) -> None:
    world.boot()
    world.run("r1", step_of(max_worker_losses=limit, max_failures=max_failures))

    for _ in range(10):
        world.release(world.running())

    assert world.state() == "placed"


# --- cancel of one unit ---


def test_unit_cancel_takes_a_waiting_unit(world: World) -> None:
    world.run("r1", step_of(total=2))

    assert world.calls.unit_cancel("r1:train:1").rest == ("cancelled",)

    assert (world.count("pending"), world.count("cancelled"), world.step_state()) == (1, 1, "ready")
    before = world.dump()
    assert world.calls.unit_cancel("r1:train:1").word == "ENDED"
    assert world.dump() == before


def test_unit_cancel_takes_a_delayed_unit(world: World, fence: Fence) -> None:
    world.finish(fence, "pending", delay_ms=60_000, fails_up=1)

    world.calls.unit_cancel(UNIT)

    assert (world.state(), world.client.zcard("fc:delayed"), world.run_state()) == ("cancelled", 0, "cancelled")


def test_unit_cancel_takes_a_placed_unit_and_its_message(world: World, placed: Fence) -> None:
    assert world.calls.unit_cancel(UNIT).rest == ("cancelled",)

    assert (world.messages(), world.used(), world.run_state()) == ([], 0, "cancelled")
    assert world.claim(placed).word == "STALE"


def test_unit_cancel_of_the_last_running_unit_ends_the_step_by_the_others(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", step_of(total=2))
    world.finish(world.running("r1:train:0"))
    last = world.running("r1:train:1")

    assert world.calls.unit_cancel("r1:train:1").rest == ("running",)
    before = world.dump()
    assert world.calls.unit_cancel("r1:train:1").rest == ("running",)
    assert world.dump() == before
    assert world.beat().value["attention"] == ["r1:train:1"]
    world.finish(last, "cancelled", reason="cancelled")

    assert (world.step_state(), world.run_state()) == ("completed", "completed")


def test_unit_cancel_of_units_that_wait_for_another_step(world: World) -> None:
    world.boot()
    world.run("r1", step_of("a"), step_of("b", after=["a"], total=2), step_of("c", after=["b"]))
    for index in (0, 1):
        assert world.calls.unit_cancel(f"r1:b:{index}").rest == ("cancelled",)
    assert world.step_state("b") == "waiting"

    world.finish(world.running("r1:a:0"))

    assert (world.step_state("b"), world.step_state("c"), world.run_state()) == ("cancelled",) * 3


def test_unit_cancel_of_nothing_is_refused(world: World) -> None:
    assert world.calls.unit_cancel("r9:train:0").word == "NOT_FOUND"
    assert world.dump() == {}


def test_unit_cancel_takes_a_unit_that_is_lost_afterwards(world: World, fence: Fence) -> None:
    world.calls.unit_cancel(UNIT)

    world.release(fence)

    assert (world.state(), world.run_state()) == ("cancelled", "cancelled")
