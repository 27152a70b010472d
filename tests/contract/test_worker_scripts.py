"""Workers: register, beat, drain, leave, and who offers what a machine has."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from broker_builder import CPU, World, step_of

from flowctl.broker.calls import Reply

UNIT = "r1:train:0"


# --- register ---


def test_a_boot_is_known_and_takes_nothing_before_it_beats(world: World) -> None:
    world.run("r1")

    world.boot(beats=False)

    assert json.loads(world.client.hget("fc:free", "b1"))["a"] == 0
    assert (world.state(), world.client.hget("fc:workers", "worker-b1")) == ("pending", "b1")
    world.beat()
    assert world.state() == "placed"


def test_register_again_keeps_what_is_booked(world: World) -> None:
    world.boot()
    world.run("r1")
    fence = world.running()
    before = world.dump(but=["fc:boot:b1", "fc:free", "fc:boots", "fc:tick", "fc:freed"])

    world.boot(beats=False)

    assert world.dump(but=["fc:boot:b1", "fc:free", "fc:boots", "fc:tick", "fc:freed"]) == before
    assert (world.used(), world.calls.trial_renew(fence).word) == (CPU, "CONTINUE")


def test_a_name_of_another_machine_is_refused(world: World) -> None:
    world.boot("b1", worker="w", machine="m1")
    before = world.dump()

    reply = world.register("b2", worker="w", machine="m2", swept=True)

    assert (reply.word, reply.rest) == ("NAME_TAKEN", ("b1",))
    assert world.dump() == before


def test_a_name_whose_processes_were_not_swept_is_refused(world: World) -> None:
    world.boot("b1", worker="w", machine="m1")
    before = world.dump()

    assert world.register("b2", worker="w", machine="m1", swept=False).word == "NAME_TAKEN"

    assert world.dump() == before


def test_a_worker_started_again_frees_what_its_last_start_held(world: World) -> None:
    world.boot("b1", worker="w", machine="m1")
    world.run("r1")
    fence = world.running()

    world.boot("b2", worker="w", machine="m1")

    assert (world.state(), world.field(UNIT, "boot"), world.field(UNIT, "losses")) == ("placed", "b2", "1")
    assert world.calls.trial_renew(fence).word == "LOST"
    assert world.client.hget("fc:boot:b1", "state") == "gone"
    assert world.client.pttl("fc:boot:b1") > 0


def test_a_boot_that_was_forgotten_comes_back_with_what_still_runs_there(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1", step_of(total=2))
    fence = world.running()
    world.calls.worker_leave("b1", text="silent")
    assert world.beat().word == "UNKNOWN"

    world.boot(cpu=1, running=[f"{UNIT}@1", "unknown:unit:0@1", "nonsense"])

    assert (world.row(fence) or {})["s"] == "orphan"
    assert (world.used(), world.state()) == (CPU, "pending")
    assert world.client.pttl("fc:boot:b1") == -1
    world.beat(running=[])
    assert world.used() == CPU
    assert world.state() == "placed"


def test_a_draining_boot_that_registers_again_still_drains(world: World) -> None:
    world.boot()
    world.calls.worker_drain("b1", reason="stops")

    world.boot()
    world.run("r1")

    assert (world.client.hget("fc:boot:b1", "state"), world.state()) == ("draining", "pending")


def test_a_name_of_another_state_folder_of_the_machine_is_refused(world: World) -> None:
    """The lock on a name holds in one state folder: another one proves nothing about the boot that has the name."""
    world.register("b1", worker="w", machine="m", scope="one")

    assert world.register("b2", worker="w", machine="m", scope="two", swept=True).word == "NAME_TAKEN"


# --- what a machine has ---


def test_detected_cores_are_offered_once_per_machine(world: World) -> None:
    world.boot("b1", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b2", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b3", machine="other", cpu=None, detected={"cpu": 4})

    assert [world.offer(boot) for boot in ("b1", "b2", "b3")] == [4 * CPU, 0, 4 * CPU]


def test_declared_cores_are_believed_and_count_against_a_later_detecting_worker(world: World) -> None:
    world.boot("b1", machine="m", cpu=3)
    world.boot("b2", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b3", machine="m", cpu=8)

    assert [world.offer(boot) for boot in ("b1", "b2", "b3")] == [3 * CPU, CPU, 8 * CPU]


def test_what_one_worker_leaves_the_other_of_the_machine_gets(world: World) -> None:
    world.boot("b1", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b2", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b3", machine="m", cpu=None, detected={"cpu": 4})
    world.run("r1", step_of(total=2, cpu=2))
    assert world.field(UNIT, "boot") == "b1"

    world.calls.worker_leave("b1", text="stopped")

    assert [world.offer(boot) for boot in ("b2", "b3")] == [4 * CPU, 0]
    assert [world.field(f"r1:train:{index}", "boot") for index in (0, 1)] == ["b2", "b2"]


def test_what_a_declaring_worker_leaves_is_free_for_a_detecting_one_only(world: World) -> None:
    world.boot("b1", machine="m", cpu=3)
    world.boot("b2", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b3", machine="m", cpu=1)

    world.calls.worker_leave("b1", text="stopped")

    assert [world.offer(boot) for boot in ("b2", "b3")] == [3 * CPU, CPU]


def test_a_detecting_worker_that_registers_again_keeps_its_offer(world: World) -> None:
    world.boot("b1", machine="m", cpu=None, detected={"cpu": 4})
    world.boot("b2", machine="m", cpu=8)

    world.boot("b1", machine="m", cpu=None, detected={"cpu": 4})

    assert world.offer("b1") == 4 * CPU


# --- beat ---


def test_a_beat_counts_and_names_the_store(world: World) -> None:
    world.calls.store_open(schema="1", store_id="s")
    world.boot()
    before = world.dump(but=["fc:beats", "fc:boots", "fc:boot:b1"])

    first, second = world.beat().value, world.beat().value

    assert (first["store"], second["beats"] - first["beats"], first["state"]) == ("s", 1, "up")
    assert world.dump(but=["fc:beats", "fc:boots", "fc:boot:b1"]) == before


def test_a_beat_of_an_unknown_boot_writes_nothing(world: World) -> None:
    assert world.beat("b9").word == "UNKNOWN"
    assert world.dump() == {}


def test_a_beat_that_does_not_accept_closes_the_boot_and_the_next_opens_it(world: World) -> None:
    world.boot()
    world.beat(accepting=False)
    world.run("r1")
    assert world.state() == "pending"

    world.beat(accepting=True)

    assert world.state() == "placed"


def test_a_beat_keeps_an_orphan_that_still_runs_and_frees_one_that_does_not(world: World) -> None:
    world.boot(cpu=1)
    world.run("r1")
    fence = world.running()
    world.expire(UNIT)
    world.tick()
    assert (world.state(), world.used()) == ("pending", CPU)

    world.beat(running=[f"{UNIT}@{fence.epoch}"])
    assert (world.state(), world.used()) == ("pending", CPU)
    world.beat(running=[])

    assert (world.state(), world.field(UNIT, "epoch")) == ("placed", "2")


def test_a_beat_leaves_alone_what_is_placed_or_newly_claimed(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", step_of(total=2))
    fence = world.running("r1:train:0")

    world.beat(running=[])

    assert (world.used(), world.state("r1:train:1")) == (2 * CPU, "placed")
    assert world.calls.trial_renew(fence).word == "CONTINUE"


# --- drain and leave ---


def test_a_drain_sends_back_what_nobody_claimed(world: World) -> None:
    world.boot(cpu=2)
    world.run("r1", step_of(total=2))
    fence = world.running("r1:train:0")
    world.boot("b2")

    world.calls.worker_drain("b1", reason="stops")

    assert world.messages("b1") == [("r1:train:0", 1)]
    assert (world.state("r1:train:1"), world.field("r1:train:1", "boot")) == ("placed", "b2")
    assert world.calls.trial_renew(fence).word == "CONTINUE"
    assert world.field("r1:train:1", "losses") is None


def test_a_drained_boot_gets_nothing_although_it_beats(world: World) -> None:
    world.boot()
    world.calls.worker_drain("b1", reason="stops")

    world.beat(accepting=True)
    world.run("r1")

    assert world.state() == "pending"


def test_leaving_ends_all_that_a_boot_had(world: World) -> None:
    world.boot()
    world.run("r1", step_of(total=3))
    world.running("r1:train:0")
    world.running("r1:train:1")
    world.calls.unit_cancel("r1:train:1")
    world.client.sadd("_kombu.binding.fcq.b1", "x")

    world.calls.worker_leave("b1", text="stopped")

    assert [world.state(f"r1:train:{index}") for index in range(3)] == ["pending", "cancelled", "pending"]
    assert [world.field(f"r1:train:{index}", "losses") for index in range(3)] == ["1", "1", None]
    left = [key for key in world.dump() if "b1" in key]
    assert left == ["fc:boot:b1"]
    assert (world.client.zcard("fc:boots"), world.client.hlen("fc:workers"), world.client.hlen("fc:free")) == (0, 0, 0)


ENDS: dict[str, Callable[[World, str], Reply]] = {
    "drain": lambda world, boot: world.calls.worker_drain(boot, reason="stops"),
    "leave": lambda world, boot: world.calls.worker_leave(boot, text="stopped"),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_said_twice_changes_nothing_more(world: World, name: str) -> None:
    world.boot()
    world.run("r1")
    world.running()
    ENDS[name](world, "b1")
    before = world.dump()

    assert ENDS[name](world, "b1").word == ("OK" if name == "drain" else "UNKNOWN")

    assert world.dump() == before


@pytest.mark.parametrize("name", ENDS)
def test_an_end_of_an_unknown_boot_writes_nothing(world: World, name: str) -> None:
    assert ENDS[name](world, "b9").word == "UNKNOWN"
    assert world.dump() == {}
