"""CUDA_VISIBLE_DEVICES as CUDA reads it, and what an attempt gets of it (B35)."""

from __future__ import annotations

import pytest

from flowctl.workers.devices import Device, find, logical_devices, visibility, visible_devices
from flowctl.workers.grant import Grant
from flowctl.workers.nvml import Card

A, B, C, D = "GPU-8b2e11", "GPU-8b9f22", "GPU-77aa33", "GPU-77aa"
CARDS = [Card(n, uuid, "Big", 81920) for n, uuid in enumerate((A, B, C, D))]
SLICES = tuple(Card(1, f"MIG-{n}aa", "Big 1g", 9728, is_slice=True) for n in range(3))
MIXED = [Card(0, A, "Big", 81920), Card(1, B, "Big", 81920, slices=SLICES, is_sliced=True), Card(2, C, "Big", 81920)]


def seen(variable: str | None, cards: list[Card] = CARDS) -> list[tuple[str, str]]:
    return [(device.id, device.visible) for device in visible_devices(cards, variable)]


@pytest.mark.parametrize(
    ("variable", "ids"),
    [
        (None, [A, B, C, D]),
        ("", []),
        ("3,1", [D, B]),
        (" 2 , 0 ", [C, A]),
        ("0,-1,2", [A]),
        ("-1", []),
        ("0,9,1", [A]),
        ("0,x,1", [A]),
        ("NoDevFiles", []),
        ("0,,1", [A]),
        ("1gpu,2", [B, C]),
        ("0,0", []),
        ("1,2,1", []),
        ("0,-1,0", [A]),
        (A, [A]),
        (f"{C},{A}", [C, A]),
        ("GPU-8b2,GPU-8b9", [A, B]),
        ("GPU-8b", []),
        ("GPU-", []),
        (f"{A},GPU-8b2e", []),
        (f"{A},GPU-nope,{B}", [A]),
        (f"{A},1", [A]),
        (f"1,{A}", [B]),
        (D, [D]),
    ],
)
def test_variable_is_read_as_cuda_reads_it(variable: str | None, ids: list[str]) -> None:
    assert [name for name, _ in seen(variable)] == ids


def test_devices_are_shown_as_their_operator_names_them() -> None:
    assert seen(None)[:2] == [(A, "0"), (B, "1")]
    assert seen("3,1") == [(D, "3"), (B, "1")]
    assert seen("GPU-8b9,GPU-8b2") == [(B, B), (A, A)]


def test_slices_of_a_card_in_mig_mode_are_devices() -> None:
    assert seen(None, MIXED) == [(A, A), *((part.uuid, part.uuid) for part in SLICES), (C, C)]
    assert seen("MIG-2aa,MIG-0", MIXED) == [("MIG-2aa", "MIG-2aa"), ("MIG-0aa", "MIG-0aa")]
    assert seen("MIG-2aa,MIG-2aa", MIXED) == []
    assert seen(f"MIG-1aa,{A}", MIXED) == [("MIG-1aa", "MIG-1aa")]
    assert seen("2,1", MIXED) == [(C, "2"), ("MIG-0aa", "MIG-0aa")]
    assert seen(B, MIXED) == [("MIG-0aa", "MIG-0aa")]


def test_a_card_in_mig_mode_without_slices_is_no_device() -> None:
    bare = [Card(0, A, "Big", 81920, is_sliced=True), Card(1, B, "Big", 81920)]

    assert seen(None, bare) == [(B, B)]
    assert seen("0,1", bare) == []


@pytest.mark.parametrize(("name", "uuid"), [(0, A), ("3", D), (A, A), ("GPU-8b9", B), ("MIG-1", "MIG-1aa")])
def test_a_card_is_found_by_index_or_uuid(name: int | str, uuid: str) -> None:
    found = find([*CARDS, Card(9, "GPU-x", "Big", 1, slices=SLICES, is_sliced=True)], name)

    assert found is not None and found.uuid == uuid


@pytest.mark.parametrize("name", [7, -1, "GPU-8b", "", "GPU-none", "0x1"])
def test_what_names_no_card_or_several_finds_none(name: int | str) -> None:
    assert find(CARDS, name) is None


def test_logical_devices_are_seen_by_the_preset_where_that_has_as_many() -> None:
    def shown(count: int, env: dict[str, str]) -> list[tuple[str, str]]:
        return [(device.id, device.visible) for device in logical_devices(count, env)]

    assert shown(2, {}) == [("0", "0"), ("1", "1")]
    assert shown(2, {"CUDA_VISIBLE_DEVICES": ""}) == [("0", "0"), ("1", "1")]
    assert shown(2, {"CUDA_VISIBLE_DEVICES": "5,4,1"}) == [("0", "5"), ("1", "4")]
    assert shown(2, {"CUDA_VISIBLE_DEVICES": "5"}) == [("0", "0"), ("1", "1")]


OFFERED = visible_devices(CARDS, "3,1,0")


def test_an_attempt_sees_its_devices_in_the_order_of_its_worker() -> None:
    tokens = {"cpu": 10000, f"gpu:{A}": 10000, f"gpu:{D}": 5000, "slot": 10000, "memory": 512}
    grant = Grant(tokens, OFFERED)

    env = grant.environment({"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3,1,0"})

    assert env["CUDA_VISIBLE_DEVICES"] == "3,0"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["PATH"] == "/bin"
    assert grant.context == {"resources": {"cpu": 1, "gpu": 1.5, "memory": 512 * 2**20}, "devices": ["3", "0"]}
    assert grant.shared == (D,)
    assert grant.found_devices == (D, A)


def test_an_attempt_without_a_device_sees_none() -> None:
    env = Grant({"cpu": 10000}, OFFERED).environment({"CUDA_VISIBLE_DEVICES": "3,1,0"})

    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert Grant({}, ()).environment({})["CUDA_VISIBLE_DEVICES"] == ""
    assert "HIP_VISIBLE_DEVICES" not in env


@pytest.mark.parametrize(
    ("tokens", "threads"),
    [({"cpu": 20000}, "2"), ({"cpu": 25000}, "2"), ({"cpu": 5000}, "1"), ({"gpu:x": 10000}, "1"), ({}, "1")],
)
def test_libraries_get_as_many_threads_as_cores_unless_told_otherwise(tokens: dict[str, int], threads: str) -> None:
    env = Grant(tokens).environment({"MKL_NUM_THREADS": "7"})

    assert env["MKL_NUM_THREADS"] == "7"
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    assert {env[name] for name in names} == {threads}


def logical(*visible: str) -> list[Device]:
    return [Device(str(n), "declared", 0, text, is_logical=True) for n, text in enumerate(visible)]


def test_other_vendors_variables_are_set_where_the_worker_has_them() -> None:
    devices = logical("0", "1")

    env = {"HIP_VISIBLE_DEVICES": "4,6", "ZE_AFFINITY_MASK": "0.0,0.1"}
    assert visibility(devices, devices[1:], env) == {
        "CUDA_VISIBLE_DEVICES": "1",
        "HIP_VISIBLE_DEVICES": "6",
        "ZE_AFFINITY_MASK": "0.1",
    }
    assert set(visibility(devices, [], env).values()) == {""}
    assert visibility(devices, devices[1:], {"ASCEND_RT_VISIBLE_DEVICES": "3"})["ASCEND_RT_VISIBLE_DEVICES"] == ""


def test_devices_that_rocr_leaves_are_counted_from_0_above_it() -> None:
    devices = logical("0", "1", "2")

    found = visibility(devices, devices[1:], {"ROCR_VISIBLE_DEVICES": "4,5,7", "HIP_VISIBLE_DEVICES": "0,1,2"})

    assert found == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "ROCR_VISIBLE_DEVICES": "5,7",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
