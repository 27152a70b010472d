"""When devices are free again, what is over a limit, and which cores are bound: values in, values out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowctl.workers.core_share import bound, choose, whole_cores
from flowctl.workers.decision import Budget, Decision, Ending, decide
from flowctl.workers.device_release import Before, busy, is_alive
from flowctl.workers.memory_limit import over
from flowctl.workers.nvml import Occupancy
from flowctl.workers.process import Exit

MIB, GIB = 2**20, 2**30


def on(*pids: int, free: int = 16 * GIB) -> Occupancy:
    return Occupancy(pids, free, 16 * GIB - free, 16 * GIB)


UNTOLD = Occupancy(None, 8 * GIB, 8 * GIB, 16 * GIB)
BEFORE = Before.of({"a": on(free=16 * GIB)})


@pytest.fixture
def dead_pid() -> int:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert not is_alive(process.pid)
    return process.pid


def test_a_device_is_busy_while_a_process_of_the_tree_is_listed() -> None:
    assert busy({"a": on(), "b": on(7)}, BEFORE, {5, 7}, can_map=True).keys() == {"b"}
    assert "process 7" in busy({"b": on(7)}, BEFORE, {7}, can_map=False)["b"]


def test_another_living_process_on_the_device_is_none_of_ours() -> None:
    assert busy({"a": on(os.getpid())}, BEFORE, {5}, can_map=True) == {}


def test_a_dead_process_that_was_not_there_before_counts_as_ours(dead_pid: int) -> None:
    assert busy({"a": on(dead_pid)}, BEFORE, {5}, can_map=True).keys() == {"a"}
    assert busy({"a": on(dead_pid)}, Before.of({"a": on(dead_pid)}), {5}, can_map=True) == {}
    assert busy({"a": on(dead_pid)}, BEFORE, {5}, can_map=False) == {}


@pytest.mark.parametrize(("free", "is_busy"), [(16 * GIB, False), (int(15.3 * GIB), False), (15 * GIB, True)])
@pytest.mark.parametrize("is_told", [True, False])
def test_where_processes_cannot_be_told_free_memory_decides(free: int, is_busy: bool, is_told: bool) -> None:
    now = Occupancy(() if is_told else None, free, 16 * GIB - free, 16 * GIB)

    assert bool(busy({"a": now}, BEFORE, {5}, can_map=not is_told)) is is_busy


def test_memory_says_nothing_of_a_shared_device_or_without_a_look_before() -> None:
    assert busy({"a": UNTOLD}, Before.of({"a": on()}, shared=("a",)), {5}, can_map=True) == {}
    assert busy({"a": UNTOLD}, Before({}, {}), {5}, can_map=True) == {}


def test_what_was_before_is_kept_in_a_file_and_read_back() -> None:
    before = Before.of({"a": on(3), "b": UNTOLD}, shared=("b",))

    assert Before.from_json(before.to_json()) == before
    assert Before.from_json({}).devices == ()


@pytest.mark.parametrize(
    ("asked", "used", "text"),
    [
        (2048, int(2.3 * GIB), "asked 2 GiB, used 2.3 GiB"),
        (512, 600 * MIB, "asked 512 MiB, used 600 MiB"),
        (2048, int(2.01 * GIB), "asked 2 GiB, used 2.01 GiB"),
        (1536, 3 * GIB, "asked 1.5 GiB, used 3 GiB"),
    ],
)
def test_what_was_asked_and_used_differ_as_text(asked: int, used: int, text: str) -> None:
    assert over(asked, used) == text


def ending(*, over_limit: str | None, stop_reason: str | None = None) -> Ending:
    return Ending(Exit(None, 9), None, stop_reason, None, False, (), over_limit)


def test_over_its_limit_is_a_failure_that_counts_with_its_cause() -> None:
    cause = {"kind": "out_of_memory", "text": "asked 2 GiB, used 2.3 GiB"}

    last = decide(ending(over_limit=cause["text"]), Budget(max_failures=0, fails=0))
    spared = decide(ending(over_limit=cause["text"]), Budget(max_failures=1, fails=0))

    assert last == Decision("failed", "failed", "out of memory", cause, 1)
    assert spared == Decision("failed", "pending", "retry after failure 1", cause, 1)
    assert decide(ending(over_limit="x", stop_reason="cancelled"), Budget(0, 0)).to == "cancelled"


@pytest.mark.parametrize(("cpu", "cores"), [(0.5, 1), (1, 1), (2, 2), (2.5, 3)])
def test_a_part_of_a_core_is_a_whole_one(cpu: float, cores: int) -> None:
    assert whole_cores(cpu) == cores


def test_cores_that_fewest_others_use_are_chosen() -> None:
    assert choose(2, {0, 1, 2, 3}, {}) == [0, 1]
    assert choose(2, {0, 1, 2, 3}, {"x": [0, 1]}) == [2, 3]
    assert choose(2, {0, 1, 2, 3}, {"x": [0, 1], "y": [2], "z": [0]}) == [1, 3]
    assert choose(3, {4, 5}, {"x": [4]}) == [4, 5]


def test_a_process_is_bound_for_as_long_as_its_attempt_lasts(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    everywhere = sorted(os.sched_getaffinity(0))
    folder = tmp_path
    try:
        with bound(child.pid, cpu=1, key="a@1", folder=folder, alive={"a@1"}) as first:
            assert sorted(os.sched_getaffinity(child.pid)) == first == everywhere[:1]
            with bound(child.pid, cpu=1, key="b@1", folder=folder, alive={"a@1", "b@1"}) as second:
                assert second == everywhere[1:2] or len(everywhere) == 1
            with bound(child.pid, cpu=1, key="c@1", folder=folder, alive={"c@1"}) as third:
                assert third == everywhere[:1], "an attempt whose guardian died holds no core"
    finally:
        child.kill()
        child.wait()
