"""What this process may use of its machine: cores and memory, as affinity and control groups (v1 and v2) allow.

Every group from the process' own up to the root of what is mounted may have a limit; the tightest holds. In a container
whose groups are named as the host sees them, the path is not there below the mount: the mount's root is then the
container's own group.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
MIB = 2**20


def cores(root: Path = ROOT) -> int:
    """Cores that this process may run on: its affinity, and its control groups' quota rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        quota = _quota(folder)
        if quota is not None:
            allowed = min(allowed, max(1, quota))
    return allowed


def memory_mib(root: Path = ROOT) -> int:
    """Memory that this process may use, in MiB rounded down: its control groups' limit, else all of the machine."""
    limits = [_physical(root)]
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit():
                limits.append(int(text))
    return max(0, min(limits)) // MIB


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process' control groups for a controller, its own first, then those around it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            mounts = (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified")
        elif controller in names.split(","):
            mounts = (root / "sys/fs/cgroup" / names, root / "sys/fs/cgroup" / controller)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mounts:
            if mount.is_dir():
                for n in range(len(parts), -1, -1):
                    yield mount.joinpath(*parts[:n])
                break


def _quota(folder: Path) -> int | None:
    """Whole cores of a group's quota, rounded up; None without one."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return -(-int(quota) // int(period))


def _physical(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
