"""What time brings: expired leases, missed dispatches, silent boots, ended delays, the full pass, the grace."""

from __future__ import annotations

from broker_builder import CPU, TIMES, World, step_of

UNIT = "r1:train:0"


def test_a_lease_ends_at_its_deadline_and_not_before(world: World) -> None:
    world.boot()
    world.run("r1")
    fence = world.running()
    world.client.zadd("fc:deadlines", {UNIT: world.now_ms() + 60_000})

    assert world.tick()["lost"] == 0
    world.expire(UNIT)
    assert world.tick()["lost"] == 1

    assert world.calls.trial_renew(fence).word == "LOST"
    assert world.attempts()[0]["cause"] == {"kind": "worker_lost", "text": "lost contact with worker-b1"}


def test_a_late_renewal_saves_a_lease_that_nobody_reaped(world: World) -> None:
    world.boot()
    world.run("r1")
    fence = world.running()
    world.expire(UNIT)

    assert world.calls.trial_renew(fence).word == "CONTINUE"

    assert world.tick()["lost"] == 0


def test_a_lost_unit_runs_elsewhere_and_its_device_stays_booked(world: World) -> None:
    world.boot("b1", cpu=1)
    world.run("r1")
    fence = world.running()
    world.boot("b2", cpu=1)

    world.expire(UNIT)
    world.tick()

    assert (world.state(), world.field(UNIT, "boot"), world.field(UNIT, "losses")) == ("placed", "b2", "1")
    assert ((world.row(fence) or {})["s"], world.used("b1")) == ("orphan", CPU)


def test_nothing_is_placed_on_a_boot_that_lost_a_lease_until_it_beats(world: World) -> None:
    world.boot(cpu=4)
    world.run("r1")
    fence = world.running()
    world.expire(UNIT)

    world.tick()
    assert world.state() == "pending"
    world.tick()
    assert world.state() == "pending"
    world.beat(running=[f"{UNIT}@{fence.epoch}"])

    assert (world.state(), world.used()) == ("placed", 2 * CPU)


def test_a_missed_dispatch_goes_back_uncounted_with_its_message(world: World) -> None:
    world.boot()
    world.run("r1")
    assert world.messages() == [(UNIT, 1)]

    world.expire(UNIT)
    assert world.tick()["missed"] == 1

    assert world.messages() == [(UNIT, 2)]
    assert (world.field(UNIT, "epoch"), world.field(UNIT, "losses"), world.used()) == ("2", None, CPU)


def test_a_dispatch_deadline_is_the_time_that_a_worker_has(world: World) -> None:
    world.boot()
    before = world.now_ms()
    world.run("r1")

    assert before <= world.client.zscore("fc:deadlines", UNIT) - TIMES.dispatch_ms <= world.now_ms()


def test_after_a_pause_of_all_ticks_running_units_have_one_lease_of_grace(world: World) -> None:
    world.boot()
    world.run("r1", step_of(total=2))
    fence = world.running()
    for unit in (UNIT, "r1:train:1"):
        world.expire(unit)
    world.silence("b1", TIMES.boot_gone_ms + 1)
    world.client.hset("fc:tick", "last_ms", world.now_ms() - 2_501)

    reply = world.calls.tick().value

    assert (reply["grace"], reply["lost"], reply["missed"]) == (True, 0, 1)
    assert world.client.zscore("fc:boots", "b1") is not None
    world.client.hset("fc:tick", "grace_ms", world.now_ms())
    assert world.tick()["grace"] is False
    assert world.calls.trial_renew(fence).word == "LOST"


def test_a_pause_that_is_just_short_enough_brings_no_grace(world: World) -> None:
    world.client.hset("fc:tick", "last_ms", world.now_ms() - 1_500)

    assert world.calls.tick().value["grace"] is False


def test_nothing_is_placed_on_a_silent_boot_until_it_beats(world: World) -> None:
    world.boot()
    world.silence("b1", 5_001)

    world.tick()
    world.run("r1")
    assert world.state() == "pending"
    before = world.dump(but=["fc:tick"])
    world.tick()
    assert world.dump(but=["fc:tick"]) == before
    world.beat()

    assert world.state() == "placed"


def test_a_boot_silent_for_too_long_is_gone(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1")
    fence = world.running()
    world.expire(UNIT)
    world.tick()
    assert (world.row(fence) or {})["s"] == "orphan"

    world.silence("b1", TIMES.boot_gone_ms - 1_000)
    world.tick()
    assert world.client.zscore("fc:boots", "b1") is not None
    world.silence("b1", TIMES.boot_gone_ms + 1)
    world.tick()

    assert world.client.zscore("fc:boots", "b1") is None
    assert world.client.hget("fc:boot:b1", "reason") == "nothing was heard of worker worker-b1"


def test_many_silent_boots_do_not_hide_one_another(world: World) -> None:
    for number in range(8):
        world.boot(f"b{number}")
        world.silence(f"b{number}", 6_000 + number)

    for _ in range(4):
        world.tick(limit=2)

    assert all(world.client.hget(f"fc:boot:b{number}", "suspect") == "1" for number in range(8))


def test_a_delay_ends_at_its_time_and_not_before(world: World) -> None:
    world.boot()
    world.run("r1", step_of(max_failures=1))
    world.finish(world.running(), "pending", delay_ms=60_000, fails_up=1)

    world.tick()
    assert world.state() == "pending"
    world.mature(UNIT)
    world.tick(is_full=False)

    assert world.state() == "placed"


def test_the_full_pass_runs_once_per_second(world: World) -> None:
    world.run("r1")
    world.tick()
    world.boot("b1", beats=False)
    world.client.hset("fc:boot:b1", "accepting", "1")
    world.client.hset("fc:free", "b1", world.client.hget("fc:free", "b1").replace('"a":0', '"a":1'))

    world.client.hset("fc:tick", "full_ms", world.now_ms() + 1_000)
    world.tick(is_full=False)
    assert world.state() == "pending"
    world.client.hset("fc:tick", "full_ms", world.now_ms() - 1_000)
    world.tick(is_full=False)

    assert world.state() == "placed"


def test_a_tick_is_bounded(world: World) -> None:
    world.boot(cpu=8)
    world.run("r1", step_of(total=6))
    for index in range(6):
        world.running(f"r1:train:{index}")
        world.expire(f"r1:train:{index}")

    assert world.tick(limit=4)["lost"] == 4
    assert world.tick(limit=4)["lost"] == 2


def test_a_deadline_of_nothing_is_dropped(world: World) -> None:
    world.client.zadd("fc:deadlines", {"r9:train:0": 1})

    world.tick()

    assert not world.client.exists("fc:deadlines")


def test_a_tick_in_an_empty_store_leaves_only_its_own_record(world: World) -> None:
    world.tick()

    assert list(world.dump()) == ["fc:tick"]
