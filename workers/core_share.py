"""Which cores an attempt is bound to, where that was asked for: those that fewest other bound ones of its worker use.

Guardians choose one after the other, under a lock on one small file; what a guardian that died had taken counts no
more. Attempts that are not bound run where they like, also there; so do those of another worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


def choose(count: int, allowed: Collection[int], taken: Mapping[str, Collection[int]]) -> list[int]:
    """`count` of the `allowed` cores, the least taken first, then by number; all of them if they are fewer."""
    load = Counter(core for cores in taken.values() for core in cores)
    return sorted(sorted(allowed, key=lambda core: (load[core], core))[:count])


def whole_cores(cpu: float) -> int:
    """A part of a core is bound to a whole one."""
    return max(1, math.ceil(cpu))


@contextlib.contextmanager
def bound(pid: int, *, cpu: float, key: str, folder: Path, alive: Collection[str]) -> Iterator[list[int]]:
    """Binds a process, and what it starts from now on, to as many cores as asked; they are taken for as long as the
    block lasts. `alive` names the attempts that run.
    """
    path = folder / "cores"
    with _locked(path) as taken:
        others = {name: cores for name, cores in taken.items() if name in alive and name != key}
        cores = choose(whole_cores(cpu), os.sched_getaffinity(0), others)
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, cores)
        taken.clear()
        taken.update({**others, key: cores})
    try:
        yield cores
    finally:
        with _locked(path) as taken:
            taken.pop(key, None)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[dict[str, list[int]]]:
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            taken = dict(json.loads(file.read() or "{}"))
        except ValueError:
            taken = {}
        yield taken
        file.seek(0)
        file.truncate()
        file.write(json.dumps(taken))
