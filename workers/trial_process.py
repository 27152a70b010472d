"""Which process a running trial is, for a person who wants to look at it or to kill it: known on its own host only."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from flowctl.broker.view import UnitView
from flowctl.broker.worker_view import WorkerView
from flowctl.workers import tree


@dataclass(frozen=True)
class TrialPlace:
    """Where the trial's process runs. `pid` is None on another host, and where it has not begun or has just ended."""

    host: str
    pid: int | None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" if self.pid is not None else f"on {self.host}; 'status' there names it"


def find_process(unit: UnitView, workers: Sequence[WorkerView]) -> TrialPlace | None:
    """Where a running unit's process is; None if its worker is not known (any more)."""
    worker = next((each for each in workers if each.boot == unit.boot), None)
    if worker is None:
        return None
    pid = None
    if worker.host == socket.gethostname():
        found = tree.find_marked(f"{unit.boot}/{unit.unit}/{unit.epoch}/{unit.nonce}")
        pid = next((each for each in found if _leads_session(each)), None)
    return TrialPlace(worker.host, pid)


def _leads_session(pid: int) -> bool:
    """The trial itself does; what it started does not, if it did not ask for that."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
