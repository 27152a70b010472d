"""Cores and memory as control groups allow them, read from trees of files as Linux lays them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowctl.workers import machine

ALL = len(os.sched_getaffinity(0))
GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    """A root folder with these files; 8 GiB of memory."""
    for name, text in {"proc/meminfo": "MemFree: 1 kB\nMemTotal:       8388608 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_a_machine_without_groups_offers_all(tmp_path: Path) -> None:
    root = tree(tmp_path, {})

    assert machine.cores(root) == ALL
    assert machine.memory_mib(root) == 8192


def test_second_version_own_group_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job",
            "sys/fs/cgroup/user/job/memory.max": str(2 * GIB),
            "sys/fs/cgroup/user/job/cpu.max": "50000 100000",
            "sys/fs/cgroup/user/memory.max": "max",
            "sys/fs/cgroup/user/cpu.max": "max 100000",
        },
    )

    assert machine.memory_mib(root) == 2048
    assert machine.cores(root) == 1


def test_a_group_around_it_limits_too(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job",
            "sys/fs/cgroup/user/job/memory.max": str(4 * GIB),
            "sys/fs/cgroup/user/memory.max": str(GIB),
        },
    )

    assert machine.memory_mib(root) == 1024


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(3 * GIB)})

    assert machine.memory_mib(root) == 3072


FIRST_VERSION = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize("inside", ["", "docker/abc/"])
def test_first_version_limits_by_the_host_path_or_at_the_mount(tmp_path: Path, inside: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": FIRST_VERSION,
            f"sys/fs/cgroup/memory/{inside}memory.limit_in_bytes": str(GIB),
            f"sys/fs/cgroup/cpu,cpuacct/{inside}cpu.cfs_quota_us": "100000",
            f"sys/fs/cgroup/cpu,cpuacct/{inside}cpu.cfs_period_us": "100000",
        },
    )

    assert machine.memory_mib(root) == 1024
    assert machine.cores(root) == 1


def test_first_version_without_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": FIRST_VERSION,
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        },
    )

    assert machine.memory_mib(root) == 8192
    assert machine.cores(root) == ALL


@pytest.mark.parametrize(("quota", "cores"), [("10000 100000", 1), ("150000 100000", 2), ("900000000 100000", ALL)])
def test_a_quota_is_rounded_up_to_whole_cores_and_never_above_the_affinity(
    tmp_path: Path, quota: str, cores: int
) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota})

    assert machine.cores(root) == min(cores, ALL)


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "nonsense\n0::/\n", "sys/fs/cgroup/cpu.max": "what is this"})

    assert machine.cores(root) == ALL


def test_this_machine_has_something() -> None:
    assert machine.cores() >= 1
    assert machine.memory_mib() >= 64
