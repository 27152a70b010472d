"""What physically runs on a worker: one small file per attempt, written by its guardian before it claims, removed
when its tree is gone.

The worker's own thread reads them: it tells the server what still runs, and notices a guardian that died.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    trial_pid: int = 0
    """Of its trial process; noted only for an attempt that holds devices."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """Its devices as they were before it began (device_release.Before); nothing without devices."""
    bundle: int = 0
    """Not 0: it is a host on that bundle, with `number` there."""
    number: int = 0

    @property
    def key(self) -> str:
        """As allocation rows are named."""
        return f"{self.unit}@{self.epoch}" + (f"#{self.bundle}" if self.bundle else "")

    @property
    def ear(self) -> str:
        """The name by which its guardian is nudged."""
        return self.key if self.bundle else self.unit

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


def _path(folder: Path, unit: str, epoch: int, bundle: int = 0) -> Path:
    return folder / (f"{unit}@{epoch}" + (f"#{bundle}" if bundle else "") + ".json")


@contextlib.contextmanager
def taken(folder: Path, *, unit: str, epoch: int, nonce: str, bundle: int = 0, number: int = 0) -> Iterator[None]:
    """Says that this process has the attempt, or the host, for as long as the block lasts."""
    path = _path(folder, unit, epoch, bundle)
    fresh = path.with_suffix(f".{os.getpid()}")
    known: dict[str, Any] = {"unit": unit, "epoch": epoch, "nonce": nonce, "pid": os.getpid(), "started": _own_start()}
    fresh.write_text(json.dumps({**known, "bundle": bundle, "number": number}))
    fresh.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def note_devices(
    folder: Path, *, unit: str, epoch: int, trial_pid: int, before: Mapping[str, Any], bundle: int = 0
) -> None:
    """Adds what must be known to see, after its guardian's death, that its devices are free again."""
    path = _path(folder, unit, epoch, bundle)
    known = json.loads(path.read_text())
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({**known, "trial_pid": trial_pid, "before": dict(before)}))
    fresh.rename(path)


def running(folder: Path) -> list[UnitFile]:
    """All attempts of this boot, sorted by name."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(UnitFile(**json.loads(path.read_text())))
    return found


def remove(folder: Path, file: UnitFile) -> None:
    """Forgets an attempt whose guardian is dead and whose tree is gone."""
    _path(folder, file.unit, file.epoch, file.bundle).unlink(missing_ok=True)


_START: dict[int, float] = {}


def _own_start() -> float:
    pid = os.getpid()
    if pid not in _START:
        _START[pid] = psutil.Process().create_time()
    return _START[pid]


def fence(file: UnitFile) -> Fence:
    """The right that its guardian had."""
    return Fence(file.unit, file.epoch, file.nonce)
