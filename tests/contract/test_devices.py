"""Devices: shares of one, whole ones, and which worker of a machine offers what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from broker_builder import CPU, World, step_of


def of_card(world: World, boot: str = "b1") -> dict[str, int]:
    """What of each device of a boot is booked."""
    used = world.client.hgetall(f"fc:used:{boot}")
    return {dim.partition(":")[2]: int(n) for dim, n in used.items() if dim.startswith("gpu:") and int(n)}


def offered(world: World, boot: str) -> set[str]:
    offer = world.client.hgetall(f"fc:offer:{boot}")
    return {dim.partition(":")[2] for dim, n in offer.items() if dim.startswith("gpu:") and int(n)}


# --- shares ---


def test_ten_tenths_share_one_card_and_leave_it_whole(world: World) -> None:
    world.boot(cpu=0, gpu=1)

    world.run("r1", step_of(total=11, gpu=0.1))

    assert world.placed() == list(range(10))
    assert of_card(world) == {"0": CPU}
    for index in range(10):
        world.finish(world.running(f"r1:train:{index}"))
    assert world.placed() == [10]
    world.finish(world.running("r1:train:10"))
    assert of_card(world) == {}


def test_a_third_fits_three_times(world: World) -> None:
    world.boot(gpu=1)

    world.run("r1", step_of(total=4, gpu=1 / 3))

    assert world.placed() == [0, 1, 2]
    assert of_card(world) == {"0": 3 * 3333}


def test_a_share_never_lies_on_two_cards(world: World) -> None:
    world.boot(gpu=2)

    world.run("r1", step_of(total=3, gpu=0.6))

    assert world.placed() == [0, 1]
    assert of_card(world) == {"0": 6000, "1": 6000}


def test_a_share_goes_to_the_fullest_card_that_has_it(world: World) -> None:
    world.boot(gpu=3, slot=20)
    world.run("r1", step_of(total=1, gpu=0.5))

    world.run("r2", step_of(total=2, gpu=0.25))
    world.run("r3", step_of(total=1, gpu=2))

    assert of_card(world) == {"0": CPU, "1": CPU, "2": CPU}
    assert world.devices("r3:train:0") == {"1": CPU, "2": CPU}


def test_shares_of_different_size_fill_cards_exactly(world: World) -> None:
    world.boot(cpu=20, gpu=2, slot=20)
    for number, share in enumerate((0.9, 0.9, 0.1, 0.1, 0.1)):
        world.run(f"r{number}", step_of(gpu=share))

    assert of_card(world) == {"0": CPU, "1": CPU}
    assert world.state("r4:train:0") == "pending"


# --- whole ones ---


def test_whole_devices_are_never_given_twice(world: World) -> None:
    world.boot(gpu=3)
    world.run("r1", step_of(total=9, gpu=1))
    left, taken = set(range(9)), Counter[str]()

    while len(left) >= 3:
        now = world.placed()
        devices = [device for index in now for device in world.devices(f"r1:train:{index}")]
        assert len(devices) == len(set(devices)) == len(now) == 3
        taken.update(devices)
        world.finish(world.running(f"r1:train:{now[0]}"))
        left.discard(now[0])

    assert set(taken) == {"0", "1", "2"}


def test_a_request_of_two_takes_two_free_cards_and_no_part_of_a_shared_one(world: World) -> None:
    world.boot(gpu=3)
    world.run("share", step_of(gpu=0.1))

    world.run("r1", step_of(total=2, gpu=2))

    assert world.devices() == {"1": CPU, "2": CPU}
    assert world.placed() == [0]
    world.finish(world.running("share:train:0"))
    assert world.placed() == [0]
    world.finish(world.running())
    assert world.placed() == [1]


def test_cards_are_given_in_the_order_of_the_worker(world: World) -> None:
    world.boot(gpus=["GPU-c", "GPU-a", "GPU-b"])

    world.run("r1", step_of(total=3, gpu=1))

    assert [list(world.devices(f"r1:train:{index}")) for index in range(3)] == [["GPU-c"], ["GPU-a"], ["GPU-b"]]


def test_who_asks_for_no_device_leaves_workers_with_devices_to_others(world: World) -> None:
    world.boot("b1", gpu=2, slot=20)
    world.boot("b2", cpu=2)

    world.run("r1", step_of(total=3, cpu=1))

    boots = Counter(world.field(f"r1:train:{index}", "boot") for index in range(3))
    assert boots == {"b2": 2, "b1": 1}


def test_a_claim_is_told_its_devices(world: World) -> None:
    world.boot(gpus=["GPU-a", "GPU-b"], memory=4096)
    world.run("r1", step_of(gpu=1, cpu=1, memory=1024))

    placed = world.placement()
    assert placed is not None
    reply = world.claim(world.fence(placed))

    assert reply.value["tokens"] == {"cpu": CPU, "slot": CPU, "memory": 1024, "gpu:GPU-a": CPU}


def test_a_request_beyond_every_worker_waits_and_holds_up_nobody(world: World) -> None:
    world.boot("b1", gpu=1)
    world.boot("b2", gpu=2)

    world.run("r1", step_of(gpu=3))
    world.run("r2", step_of(total=3, gpu=1))

    assert (world.placed(), world.placed(run="r2")) == ([], [0, 1, 2])


# --- what comes back, and what does not ---

ENDS: dict[str, Callable[[World], object]] = {
    "finish": lambda world: world.finish(world.running()),
    "handback": lambda world: world.calls.trial_handback(world.running(), reason="why", delay_ms=60_000),
    "guardian died": lambda world: world.release(world.running()),
    "cancelled before its claim": lambda world: world.calls.unit_cancel("r1:train:0"),
    "not taken in time": lambda world: world.miss("r1:train:0"),
}


@pytest.mark.parametrize("name", ENDS)
def test_devices_return_whole(world: World, name: str) -> None:
    world.boot(gpus=["GPU-a", "GPU-b"])
    world.run("r1", step_of(gpu=2, max_worker_losses=0))
    world.run("r2", step_of(total=2, gpu=1))

    ENDS[name](world)
    world.tick()

    held = [device for index in world.placed(run="r2") for device in world.devices(f"r2:train:{index}")]
    if name != "not taken in time":  # that one is first again
        assert sorted(held) == ["GPU-a", "GPU-b"]


def test_the_card_of_a_lost_attempt_is_given_to_nobody_before_its_worker_says_so(world: World) -> None:
    world.boot(gpus=["GPU-a"])
    world.run("r1", step_of(gpu=1))
    fence = world.running()
    row = f"r1:train:0@{fence.epoch}"
    world.expire("r1:train:0")
    world.tick()

    for _ in range(20):
        world.beat(running=[row])
        world.tick()
        assert (world.state(), of_card(world)) == ("pending", {"GPU-a": CPU})
    world.beat(running=[])

    assert (world.state(), world.field("r1:train:0", "epoch")) == ("placed", "2")


def test_what_a_forgotten_boot_still_runs_keeps_all_its_devices(world: World) -> None:
    """Which of them it has is not known any more."""
    world.boot(gpus=["GPU-a", "GPU-b"])
    world.run("r1", step_of(gpu=0.5))
    fence = world.running()
    world.calls.worker_leave("b1", text="silent")

    world.boot(gpus=["GPU-a", "GPU-b"], running=[f"{fence.unit}@{fence.epoch}"])

    assert of_card(world) == {"GPU-a": CPU, "GPU-b": CPU}
    world.beat(running=[])
    assert world.devices() == {"GPU-a": 5000}


# --- workers of one machine ---


def test_detected_devices_are_offered_by_one_worker_of_a_machine(world: World) -> None:
    world.boot("b1", machine="m", gpus=["GPU-a", "GPU-b"])
    world.boot("b2", machine="m", gpus=["GPU-a", "GPU-b"])
    world.boot("b3", machine="other", gpus=["GPU-c"])

    assert [offered(world, boot) for boot in ("b1", "b2", "b3")] == [{"GPU-a", "GPU-b"}, set(), {"GPU-c"}]


def test_a_second_worker_gets_what_the_limit_of_the_first_left(world: World) -> None:
    world.boot("b1", machine="m", gpus=["GPU-b", "GPU-a", "GPU-c"], gpu_limit=1)
    world.boot("b2", machine="m", gpus=["GPU-a", "GPU-b", "GPU-c"], gpu_limit=1)
    world.boot("b3", machine="m", gpus=["GPU-a", "GPU-b", "GPU-c"])

    assert [offered(world, boot) for boot in ("b1", "b2", "b3")] == [{"GPU-b"}, {"GPU-a"}, {"GPU-c"}]


def test_a_worker_grows_up_to_its_limit_when_another_leaves(world: World) -> None:
    world.boot("b1", machine="m", gpus=["GPU-a", "GPU-b", "GPU-c"])
    world.boot("b2", machine="m", gpus=["GPU-a", "GPU-b", "GPU-c"], gpu_limit=2)
    world.boot("b3", machine="m", gpus=["GPU-a", "GPU-b", "GPU-c"])
    world.run("r1", step_of(total=4, gpu=1))
    assert (offered(world, "b2"), world.placed()) == (set(), [0, 1, 2])

    world.calls.worker_leave("b1", text="stopped")

    assert [offered(world, boot) for boot in ("b2", "b3")] == [{"GPU-a", "GPU-b"}, {"GPU-c"}]
    assert {world.field(f"r1:train:{index}", "boot") for index in world.placed()} == {"b2", "b3"}
    assert len(world.placed()) == 3


def test_a_worker_that_registers_again_keeps_its_devices(world: World) -> None:
    world.boot("b1", machine="m", gpus=["GPU-a", "GPU-b"], gpu_limit=1)
    world.boot("b2", machine="m", gpus=["GPU-a", "GPU-b"])
    world.run("r1", step_of(total=2, gpu=1))

    world.boot("b1", machine="m", gpus=["GPU-b", "GPU-a"], gpu_limit=1)

    assert [offered(world, boot) for boot in ("b1", "b2")] == [{"GPU-a"}, {"GPU-b"}]
    assert (of_card(world, "b1"), of_card(world, "b2")) == ({"GPU-a": CPU}, {"GPU-b": CPU})


def test_declared_devices_are_believed(world: World) -> None:
    world.boot("b1", machine="m", gpu=2)
    world.boot("b2", machine="m", gpu=2)

    world.run("r1", step_of(total=5, gpu=1))

    assert len(world.placed()) == 4
