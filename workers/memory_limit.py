"""The hard limit on memory of one attempt: what its processes use together is looked at twice a second.

Pages that several of them share count once (PSS). Reading that is slow for large processes, so it is done only where
the sum of what each has in memory (RSS), which is never less, is above the limit.
"""

from __future__ import annotations

import contextlib
import time

import psutil

LOOK_S = 0.5
MIB = 2**20


class MemoryLimit:
    """For the descendants of this process. `look_at` is the monotonic time of the next look."""

    def __init__(self, limit_mib: int) -> None:
        self._limit_mib = limit_mib
        self.look_at = time.monotonic()

    def exceeded(self) -> str | None:
        """What was asked and used, if that is more; None else."""
        self.look_at = time.monotonic() + LOOK_S
        processes = psutil.Process().children(recursive=True)
        if sum(map(_rss, processes)) <= self._limit_mib * MIB:
            return None
        used = sum(map(_pss, processes))
        return None if used <= self._limit_mib * MIB else over(self._limit_mib, used)


def over(limit_mib: int, used: int) -> str:
    """`asked 2 GiB, used 2.3 GiB`; with as many decimals as tell them apart."""
    unit, size = ("GiB", 1024 * MIB) if limit_mib >= 1024 else ("MiB", MIB)
    asked = limit_mib * MIB / size
    for decimals in (1, 2, 3, 6):
        texts = [f"{value:.{decimals}f}".rstrip("0").rstrip(".") for value in (asked, used / size)]
        if texts[0] != texts[1]:
            break
    return f"asked {texts[0]} {unit}, used {texts[1]} {unit}"


def _rss(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _pss(process: psutil.Process) -> int:
    """What a process that may not be read has of its own is at most its RSS."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return _rss(process)
    except psutil.NoSuchProcess:
        return 0
