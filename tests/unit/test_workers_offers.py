"""What a worker offers of what it is told and of what is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flowctl.dsl.errors import DeclarationError
from flowctl.workers import machine
from flowctl.workers.devices import Device
from flowctl.workers.offers import Offers, offer_text, offers, parse_worker_labels, slots_of, taken_by_others

CARDS = tuple(Device(f"GPU-{n}", "Big", 81920, str(n)) for n in range(3))
FOUND = Offers(
    detected={"cpu": 80000, "memory": 1024, **{card.dimension: 10000 for card in CARDS}},
    declared={"slot": 100000, "license": 10000},
    devices=CARDS,
)


def test_cores_and_memory_are_found_where_they_are_not_named() -> None:
    found = offers("gpu=0", slots=3, env={})

    assert found.detected == {"cpu": machine.cores() * 10_000, "memory": machine.memory_mib()}
    assert found.declared == {"slot": 30_000}
    assert (found.devices, found.gpu_limit, found.notes) == ((), None, ())


def test_what_is_named_is_declared() -> None:
    found = offers("cpu=0,gpu=0,memory=16GiB,license=1", slots=1, env={})

    assert found.detected == {}
    assert found.declared == {"cpu": 0, "memory": 16384, "license": 10_000, "slot": 10_000}


def test_auto_is_what_is_here() -> None:
    assert offers("cpu=auto,memory=auto,gpu=auto", slots=1, env={}) == offers(None, slots=1, env={})


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there are cards here, so none is logical")
def test_devices_that_are_declared_and_not_found_are_logical() -> None:
    found = offers("cpu=1,memory=1GiB,gpu=2", slots=1, env={"CUDA_VISIBLE_DEVICES": "6,7"})

    assert found.declared == {"cpu": 10_000, "memory": 1024, "gpu:0": 10_000, "gpu:1": 10_000, "slot": 10_000}
    assert [(device.id, device.visible, device.is_logical) for device in found.devices] == [
        ("0", "6", True),
        ("1", "7", True),
    ]
    assert found.gpu_limit is None
    assert found.total["gpu"] == 20_000
    assert "2 logical ones" in found.notes[0]


def test_no_device_is_looked_for_where_none_is_offered() -> None:
    found = offers("gpu=0", slots=1, env={})

    assert (found.devices, found.notes) == ((), ())
    assert "gpu" not in found.total


def test_totals_count_devices_up_to_the_limit() -> None:
    assert FOUND.total == {"cpu": 80000, "memory": 1024, "slot": 100000, "license": 10000, "gpu": 30000}
    assert replace(FOUND, gpu_limit=2).total["gpu"] == 20000


def test_an_offer_reads_in_one_line() -> None:
    units = {"cpu": 80000, "memory": 16384, "gpu:GPU-a": 10000, "gpu:GPU-b": 10000, "slot": 160000}

    assert offer_text(units) == "cpu=8, gpu=2, memory=16GiB, slot=16"


def test_what_other_workers_of_the_machine_offer_is_named() -> None:
    left = {"cpu": 0, "memory": 512, "gpu:GPU-1": 10000}

    assert taken_by_others(left, FOUND) == {
        "all cores of this machine are offered by {}; this worker offers them when that ends": ["cpu"],
        "GPUs 0, 2 of this machine are offered by {}; this worker offers them when that ends": [
            "gpu:GPU-0",
            "gpu:GPU-2",
        ],
    }
    assert taken_by_others({**left, "cpu": 10000}, replace(FOUND, gpu_limit=1)) == {}


@pytest.mark.parametrize(
    ("text", "labels"),
    [(None, ()), ("", ()), ("spot, zone=a,spot", ("spot", "zone=a")), ("a.b-c_d=E.1", ("a.b-c_d=E.1",))],
)
def test_labels_are_sorted_and_each_once(text: str | None, labels: tuple[str, ...]) -> None:
    assert parse_worker_labels(text, place="--labels") == labels


@pytest.mark.parametrize("text", ["a b", "!spot", "=a", "zone=", "a=b=c", "ü", "x" * 200])
def test_what_is_no_label_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"^--labels: .* is not a label; write spot,zone=a"):
        parse_worker_labels(f"good,{text}", place="--labels")


def test_at_most_twenty_labels() -> None:
    assert len(parse_worker_labels(",".join(f"l{n}" for n in range(20)), place="--labels")) == 20
    with pytest.raises(DeclarationError, match="21 labels are more than 20"):
        parse_worker_labels(",".join(f"l{n}" for n in range(21)), place="--labels")


def test_slots_follow_the_cores_unless_set() -> None:
    assert slots_of({}) == max(10, 2 * machine.cores())
    assert slots_of({"FLOWCTL_SLOTS": "3"}) == 3
    with pytest.raises(DeclarationError, match="FLOWCTL_SLOTS: '0' is not a number of slots; use at least 1"):
        slots_of({"FLOWCTL_SLOTS": "0"})
