"""Gangs: bundles granted all or none, on machines as the strategy says, given back whichever way the attempt ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from broker_builder import CPU, World, step_of

UNIT = "r1:train:0"


def gang(*bundles: dict[str, Any], strategy: str = "PACK", **more: Any) -> dict[str, Any]:
    return step_of(bundles=bundles, strategy=strategy, **more)


def boots_of(world: World, unit: str = UNIT) -> list[str]:
    return [boot for boot, _ in world.bundles(unit)]


def machines_of(world: World, unit: str = UNIT) -> list[str]:
    return [world.client.hget(f"fc:boot:{boot}", "machine") for boot in boots_of(world, unit)]


def cluster(world: World, *machines: str, cpu: int = 1, **more: Any) -> None:
    """One boot per name, b0, b1, … on these machines."""
    for number, machine in enumerate(machines):
        world.boot(f"b{number}", machine=machine, cpu=cpu, **more)


def in_use(world: World) -> dict[str, int]:
    """Everything that is booked anywhere."""
    total: Counter[str] = Counter()
    for key in [*world.client.keys("fc:used:*"), "fc:poolused"]:
        total.update({dim: int(n) for dim, n in world.client.hgetall(key).items()})
    return {dim: n for dim, n in total.items() if n}


# --- all or none ---


def test_a_gang_holds_each_bundle_and_is_one_message(world: World) -> None:
    cluster(world, "m0", "m1", cpu=2, gpu=1)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1, "gpu": 0.5}, {"gpu": 1}))

    assert world.state() == "placed"
    vectors = [vector for _, vector in world.bundles(UNIT)]
    assert [sum(n for dim, n in vector.items() if dim.startswith("gpu:")) for vector in vectors] == [0, 5000, CPU]
    assert [vector.get("cpu", 0) for vector in vectors] == [CPU, CPU, 0]
    assert all(vector["slot"] == CPU for vector in vectors)
    assert [len(world.messages(boot)) for boot in (boots_of(world)[0],)] == [1]
    assert sum(len(world.messages(boot)) for boot in ("b0", "b1")) == 1


def test_a_gang_that_lacks_one_bundle_takes_nothing(world: World) -> None:
    cluster(world, "m0", "m1")

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}))
    world.tick()

    assert (world.state(), in_use(world)) == ("pending", {})
    world.boot("b2", cpu=1)
    assert sorted(boots_of(world)) == ["b0", "b1", "b2"]


def test_a_gang_does_not_stand_before_those_that_fit(world: World) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, priority=5))

    world.run("r2", step_of(total=2))

    assert world.placed(run="r2") == [0, 1]


def test_a_gang_that_waits_for_a_worker_none_of_whose_tokens_changed_is_placed(world: World) -> None:
    """Only one of the boots that it needs has changed."""
    cluster(world, "m0", "m1")
    world.run("hold", step_of())
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    world.tick()
    world.tick()

    world.finish(world.running("hold:train:0"))

    assert sorted(boots_of(world)) == ["b0", "b1"]


def test_a_claim_of_a_gang_is_told_its_boots(world: World) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    placed = world.placement()
    assert placed is not None

    reply = world.claim(world.fence(placed)).value

    assert reply["tokens"] == {"cpu": CPU, "slot": CPU}
    said = [(bundle["worker"], bundle["machine"], bundle["tokens"]) for bundle in reply["bundles"]]
    assert said == [(f"worker-{boot}", f"m{boot[1:]}", vector) for boot, vector in world.bundles(UNIT)]


def test_an_empty_head_takes_only_its_slot(world: World) -> None:
    world.boot("b0", cpu=2, gpu=1)

    world.run("r1", gang({}, {"cpu": 2}, {"gpu": 1}))

    assert [dict(vector) for _, vector in world.bundles(UNIT)] == [
        {"slot": CPU},
        {"slot": CPU, "cpu": 2 * CPU},
        {"slot": CPU, "gpu:0": CPU},
    ]


def test_each_bundle_takes_a_slot(world: World) -> None:
    world.boot("b0", cpu=8, slot=2)

    world.run("r1", gang({}, {"cpu": 1}, {"cpu": 1}))
    assert world.state() == "pending"
    world.boot("b1", cpu=8, slot=1)

    assert world.state() == "placed"


# --- B26: fractions ---


def test_a_tenth_and_two_nine_tenths_fit_on_two_cards(world: World) -> None:
    world.boot("b0", gpu=2)

    world.run("r1", gang({"gpu": 0.1}, {"gpu": 0.9}, {"gpu": 0.9}))

    used = {dim: int(n) for dim, n in world.client.hgetall("fc:used:b0").items() if dim.startswith("gpu:")}
    assert sorted(used.values()) == [9000, CPU]
    world.finish(world.running())
    assert in_use(world) == {}


@pytest.mark.parametrize("strategy", ["PACK", "STRICT_PACK", "SPREAD"])
@pytest.mark.parametrize(
    "shares",
    [
        (0.3, 0.3, 0.7, 0.7),
        (0.7, 0.3, 0.7, 0.3),
        (0.4, 0.4, 0.3, 0.3, 0.3, 0.3),
        (1, 0.5, 0.25, 0.25),
        (0.6, 0.5, 0.4, 0.5),
        (1 / 3, 1 / 3, 1 / 3, 0.5, 0.5),
    ],
)
def test_shares_that_fill_two_cards_fit_in_any_order(world: World, shares: Sequence[float], strategy: str) -> None:
    """Small shares ask for most cores, so that they are seated first."""
    world.boot("b0", cpu=40, gpu=2)

    world.run("r1", gang(*({"cpu": 6 if share < 0.5 else 1, "gpu": share} for share in shares), strategy=strategy))

    assert world.state() == "placed"
    used = world.client.hgetall("fc:used:b0")
    assert all(int(n) <= CPU for dim, n in used.items() if dim.startswith("gpu:"))


def test_what_does_not_fit_on_two_cards_is_not_squeezed_in(world: World) -> None:
    world.boot("b0", cpu=20, gpu=2)

    world.run("r1", gang({"gpu": 0.6}, {"gpu": 0.6}, {"gpu": 0.6}))

    assert (world.state(), in_use(world)) == ("pending", {})


# --- strategies ---


def test_pack_takes_one_machine_if_one_can_hold_it(world: World) -> None:
    cluster(world, "m0", "m1", "m1", cpu=1)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))

    assert machines_of(world) == ["m1", "m1"]


def test_pack_takes_more_machines_if_it_must_and_few(world: World) -> None:
    cluster(world, "m0", "m1", "m2", "m1", cpu=1)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}))

    assert len(set(machines_of(world))) == 2


def test_strict_pack_means_one_machine_not_one_worker(world: World) -> None:
    cluster(world, "m0", "m1", cpu=1)
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, strategy="STRICT_PACK"))
    assert world.state() == "pending"

    world.boot("b2", machine="m0", cpu=1)

    assert (machines_of(world), sorted(boots_of(world))) == (["m0", "m0"], ["b0", "b2"])


def test_spread_takes_a_machine_for_each_if_it_can(world: World) -> None:
    cluster(world, "m0", "m0", "m1", "m2", cpu=4)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, strategy="SPREAD"))

    assert sorted(machines_of(world)) == ["m0", "m1", "m2"]


def test_spread_lets_no_first_choice_stand_in_the_way(world: World) -> None:
    """The larger bundle fits on both machines, the other only on the first."""
    world.boot("b0", machine="m0", cpu=4, gpu=1)
    world.boot("b1", machine="m1", cpu=2)

    world.run("r1", gang({"cpu": 2}, {"gpu": 0.1}, strategy="SPREAD"))

    assert machines_of(world) == ["m1", "m0"]


def test_spread_doubles_up_if_it_must(world: World) -> None:
    cluster(world, "m0", "m1", cpu=2)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, strategy="SPREAD"))

    assert sorted(Counter(machines_of(world)).values()) == [1, 2]


def test_strict_spread_means_machines_not_workers(world: World) -> None:
    cluster(world, "m0", "m0", "m1", cpu=4)
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, strategy="STRICT_SPREAD"))
    world.tick()
    assert (world.state(), in_use(world)) == ("pending", {})

    world.boot("b3", machine="m2", cpu=1)

    assert sorted(machines_of(world)) == ["m0", "m1", "m2"]


def test_strict_spread_finds_the_only_way_there_is(world: World) -> None:
    """Each bundle may go to two machines; only one seating of all is right (augmenting paths)."""
    for number in range(5):
        tags = [f"p{number}", f"p{number + 1}"]
        world.boot(f"b{number}", machine=f"m{number}", cpu=4, labels=tags if number else ["p1"])

    world.run("r1", gang(*({"cpu": 1, "labels": [f"p{i}"]} for i in (1, 2, 3, 4, 5)), strategy="STRICT_SPREAD"))

    assert machines_of(world) == ["m0", "m1", "m2", "m3", "m4"]


def test_strict_spread_beyond_the_machines_holds_up_nobody(world: World) -> None:
    cluster(world, "m0", "m0", cpu=4)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, strategy="STRICT_SPREAD"))
    world.run("r2", step_of(total=3))

    assert (world.placed(), world.placed(run="r2")) == ([], [0, 1, 2])


# --- labels ---


def test_each_bundle_goes_where_its_labels_say(world: World) -> None:
    world.boot("b0", cpu=4, labels=["spot", "zone=a"])
    world.boot("b1", cpu=4, labels=["zone=b"])
    world.boot("b2", cpu=4)

    world.run(
        "r1",
        gang(
            {"cpu": 1, "labels": ["!spot", "zone=b"]},
            {"cpu": 1, "labels": ["spot"]},
            {"cpu": 1, "labels": ["!zone=a", "!zone=b"]},
        ),
    )

    assert boots_of(world) == ["b1", "b0", "b2"]


def test_a_gang_none_of_whose_workers_has_a_label_waits(world: World) -> None:
    cluster(world, "m0", "m1", cpu=4)
    world.run("r1", gang({"cpu": 1}, {"cpu": 1, "labels": ["spot"]}))
    assert (world.state(), in_use(world)) == ("pending", {})

    world.boot("b2", cpu=1, labels=["spot"])

    assert boots_of(world)[1] == "b2"


def test_a_worker_kept_for_a_run_takes_no_bundle_of_another(world: World) -> None:
    world.boot("b0", cpu=1)
    world.boot("b1", cpu=1, only="r2")

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    world.run("r2", gang({"cpu": 1}, {"cpu": 1}))

    assert (world.state(), sorted(boots_of(world, "r2:train:0"))) == ("pending", ["b0", "b1"])


@pytest.mark.parametrize("why", ["python", "keys"])
def test_all_bundles_need_workers_that_can_run_the_code(world: World, why: str) -> None:
    world.boot("b0", cpu=1)
    other: dict[str, Any] = {"python": "3.12"} if why == "python" else {"keys": ["k9"]}
    world.boot("b1", cpu=1, **other)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))

    assert world.state() == "pending"


# --- how it ends ---

ENDS: dict[str, Callable[[World], object]] = {
    "finish": lambda world: world.finish(world.running()),
    "fails": lambda world: world.finish(world.running(), "failed", fails_up=1),
    "tries again later": lambda world: world.finish(world.running(), "pending", fails_up=1, delay_ms=60_000),
    "handback": lambda world: world.calls.trial_handback(world.running(), reason="why", delay_ms=60_000),
    "guardian died": lambda world: world.release(world.running(), boot=boots_of(world)[0]),
    "cancelled before its claim": lambda world: world.calls.unit_cancel(UNIT),
    "run cancelled, then claimed": lambda world: (
        world.calls.run_cancel("r1"),
        world.calls.trial_claim(world.fence(world.placement()), boot=boots_of(world)[0]),  # type: ignore[arg-type]
    ),
    "run cancelled, not taken": lambda world: world.calls.run_cancel("r1").word == "OK" and world.miss(UNIT),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_bundle_returns(world: World, name: str) -> None:
    cluster(world, "m0", "m1", "m2", cpu=2, gpu=1)
    world.calls.pool_set("license", 2 * CPU)
    world.run(
        "r1",
        gang(
            {"cpu": 1},
            {"cpu": 2, "license": 1},
            {"gpu": 0.5, "license": 1},
            strategy="STRICT_SPREAD",
            max_worker_losses=0,
        ),
    )
    assert in_use(world)["license"] == 2 * CPU

    ENDS[name](world)

    assert in_use(world) == {}
    assert (world.field(UNIT, "gang"), world.client.hgetall("fc:shares")) == (None, {})


def test_a_missed_dispatch_places_all_bundles_anew(world: World) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    world.expire(UNIT)

    assert world.tick()["missed"] == 1

    assert (world.field(UNIT, "epoch"), in_use(world)) == ("2", {"cpu": 2 * CPU, "slot": 2 * CPU})


def test_a_lost_lease_leaves_the_head_an_orphan_and_frees_the_rest(world: World) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, max_worker_losses=0))
    fence = world.running()
    head, other = boots_of(world)

    world.expire(UNIT)
    world.tick()

    assert (world.used(head), world.used(other)) == (CPU, 0)
    world.beat(head, running=[f"{UNIT}@{fence.epoch}"])
    assert world.used(head) == CPU
    world.beat(head, running=[])
    assert in_use(world) == {}


@pytest.mark.parametrize("end", ["drain", "falls silent"])
@pytest.mark.parametrize("which", ["head", "bundle"])
def test_a_placed_gang_goes_back_whole_when_one_of_its_workers_goes(world: World, end: str, which: str) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    boot = boots_of(world)[0 if which == "head" else 1]

    if end == "drain":
        world.calls.worker_drain(boot, reason="stops")
    else:
        world.silence(boot, 6_000)
        world.tick()

    assert (world.state(), in_use(world), world.field(UNIT, "losses")) == ("pending", {}, None)
    world.boot("b9", cpu=1)
    assert (world.state(), boot in boots_of(world)) == ("placed", False)


def test_a_lost_bundle_loses_the_attempt(world: World) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    fence = world.running()
    head, other = boots_of(world)

    world.calls.worker_leave(other, text="died")

    assert (world.state(), world.field(UNIT, "losses")) == ("pending", "1")
    assert world.calls.trial_renew(fence).word == "LOST"
    assert world.client.sismember(f"fc:attention:{head}", UNIT)
    assert (world.attempts()[0]["outcome"], world.attempts()[0]["cause"]["kind"]) == ("lost", "worker_lost")
    assert (world.row(fence, boot=head) or {})["s"] == "orphan"
    world.beat(head, running=[f"{UNIT}@{fence.epoch}"])
    world.boot("b9", cpu=1)
    assert world.state() == "pending"  # the head's tokens are not free before its process is gone
    assert world.release(fence, boot=head).word == "FREED"

    assert sorted(boots_of(world)) == sorted([head, "b9"])


def test_a_lost_head_loses_the_attempt_and_frees_its_bundles(world: World) -> None:
    cluster(world, "m0", "m1", "m2")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, max_worker_losses=0))
    world.running()

    world.calls.worker_leave(boots_of(world)[0], text="died")

    assert (world.state(), in_use(world)) == ("failed", {})


def test_bundles_on_one_worker_that_leaves_are_lost_once(world: World) -> None:
    world.boot("b0", cpu=3)
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}))
    world.running()

    world.calls.worker_leave("b0", text="died")

    assert (world.state(), world.field(UNIT, "losses"), len(world.attempts())) == ("pending", "1", 1)


def test_a_worker_that_is_silent_for_long_takes_the_gangs_that_had_a_bundle_there(world: World) -> None:
    cluster(world, "m0", "m1")
    world.run("r1", gang({"cpu": 1}, {"cpu": 1}))
    world.running()
    other = boots_of(world)[1]

    world.silence(other, 200_000)
    world.tick()

    assert (world.state(), world.client.zscore("fc:boots", other)) == ("pending", None)


def test_quarantine_takes_back_gangs_that_were_placed_there(world: World) -> None:
    world.boot("bad", cpu=4, slot=20)
    world.run("r1", step_of(total=3))
    world.boot("good", cpu=1, slot=20)
    world.run("r2", gang({"cpu": 1}, {"cpu": 1}, strategy="STRICT_SPREAD"))
    assert sorted(boots_of(world, "r2:train:0")) == ["bad", "good"]

    for index in range(3):
        world.finish(world.running(f"r1:train:{index}"), "failed", fails_up=1)

    assert (world.client.hget("fc:boot:bad", "state"), world.state("r2:train:0")) == ("quarantined", "pending")
    assert in_use(world) == {}


def test_many_equal_gangs_fill_a_cluster(world: World) -> None:
    cluster(world, *(f"m{i % 4}" for i in range(8)), cpu=3)

    world.run("r1", gang({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, total=9))
    world.tick()

    assert (len(world.placed()), in_use(world)) == (8, {"cpu": 24 * CPU, "slot": 24 * CPU})
