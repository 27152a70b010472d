"""What physically runs on a worker: one small file per attempt, written by its guardian before it claims, removed
when its tree is gone.

The worker's own thread reads them: it tells the server what still runs, and notices a guardian that died.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from flowctl.broker.calls import Fence


@dataclass(frozen=True)
class UnitFile:
    """One attempt that a guardian of this boot has taken."""

    unit: str
    epoch: int
    nonce: str
    pid: int
    started: float

    @property
    def key(self) -> str:
        """As allocation rows are named."""
        return f"{self.unit}@{self.epoch}"

    @property
    def mark(self) -> str:
        """The end of FLOWCTL_ATTEMPT that this attempt's processes carry (after the boot)."""
        return f"{self.unit}/{self.epoch}/{self.nonce}"

    def is_alive(self) -> bool:
        """Whether its guardian lives: same pid, same start."""
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started) < 1
            return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


def _path(folder: Path, unit: str, epoch: int) -> Path:
    return folder / f"{unit}@{epoch}.json"


@contextlib.contextmanager
def taken(folder: Path, *, unit: str, epoch: int, nonce: str) -> Iterator[None]:
    """Says that this process has the attempt, for as long as the block lasts."""
    path = _path(folder, unit, epoch)
    fresh = path.with_suffix(f".{os.getpid()}")
    started = _own_start()
    fresh.write_text(json.dumps({"unit": unit, "epoch": epoch, "nonce": nonce, "pid": os.getpid(), "started": started}))
    fresh.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running(folder: Path) -> list[UnitFile]:
    """All attempts of this boot, sorted by name."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(UnitFile(**json.loads(path.read_text())))
    return found


def remove(folder: Path, file: UnitFile) -> None:
    """Forgets an attempt whose guardian is dead and whose tree is gone."""
    _path(folder, file.unit, file.epoch).unlink(missing_ok=True)


_START: dict[int, float] = {}


def _own_start() -> float:
    pid = os.getpid()
    if pid not in _START:
        _START[pid] = psutil.Process().create_time()
    return _START[pid]


def fence(file: UnitFile) -> Fence:
    """The right that its guardian had."""
    return Fence(file.unit, file.epoch, file.nonce)
