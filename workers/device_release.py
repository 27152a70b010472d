"""When a device is free again: its tokens return only after NVML lists no process of the attempt on it.

A driver takes a moment to clear away a process that was killed. Where processes cannot be told (the driver does not
say, or this worker's container numbers them otherwise), free memory decides: back to what it was at the attempt's
start, but for 5%. On a part of a device memory says nothing, since others use it too: there the end of the processes is
enough.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowctl.workers.nvml import NvmlFailed, Occupancy

log = logging.getLogger("flowctl")
LIMIT_S = 10.0
LOOK_S = 0.1
TOLERANCE = 0.05
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's own pid namespace, fixed in the kernel; containers have others."""

Look = Callable[[Collection[str]], Mapping[str, Occupancy]]


@dataclass(frozen=True)
class Before:
    """Devices (ids) as they were when an attempt started: bytes free, processes; only `shared` by others too."""

    free: Mapping[str, int]
    pids: Mapping[str, tuple[int, ...]]
    shared: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(self.free)

    @classmethod
    def of(cls, found: Mapping[str, Occupancy], *, shared: tuple[str, ...] = ()) -> "Before":
        """From a look at them."""
        return cls(
            free={uuid: each.free for uuid, each in found.items()},
            pids={uuid: each.pids or () for uuid, each in found.items()},
            shared=shared,
        )

    def to_json(self) -> dict[str, Any]:
        """As a unit's file keeps it."""
        return {
            "free": dict(self.free),
            "pids": {uuid: list(pids) for uuid, pids in self.pids.items()},
            "shared": list(self.shared),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Before":
        """What `to_json` wrote; of an empty object, no devices."""
        pids = {uuid: tuple(found) for uuid, found in data.get("pids", {}).items()}
        return cls(free=data.get("free", {}), pids=pids, shared=tuple(data.get("shared", ())))


def busy(now: Mapping[str, Occupancy], before: Before, pids: Collection[int], *, can_map: bool) -> dict[str, str]:
    """The devices that are not free of an attempt yet, each with what shows it.

    `pids` are the processes that its tree is known to have had. Where the machine's own numbers are seen (`can_map`), a
    dead process that was not there before counts as its too: not every process of a tree is known.
    """
    found = {}
    for uuid, occupancy in now.items():
        listed = set(occupancy.pids or ())
        ours = listed & set(pids)
        if can_map:
            ours |= {pid for pid in listed - set(before.pids.get(uuid, ())) if not is_alive(pid)}
        if ours:
            found[uuid] = f"the driver still lists process {min(ours)}"
        elif (occupancy.pids is None or not can_map) and uuid in before.free and uuid not in before.shared:
            lacking = before.free[uuid] - occupancy.free
            if lacking > TOLERANCE * before.free[uuid]:
                found[uuid] = f"{lacking // 2**20} MiB of its memory are still in use"
    return found


def wait_until_free(before: Before, devices: Collection[str], pids: Collection[int], *, look: Look) -> dict[str, str]:
    """Looks until all are free, LIMIT_S at most; what is busy then, each with the reason."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = still_busy(before, devices, pids, look=look)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_S)


def still_busy(before: Before, devices: Collection[str], pids: Collection[int], *, look: Look) -> dict[str, str]:
    """One look. A driver that does not answer says nothing of a device, so it counts as busy."""
    try:
        return busy(look(devices), before, pids, can_map=sees_machine_pids())
    except NvmlFailed as error:
        return dict.fromkeys(devices, str(error))


def warn(unit: str, found: Mapping[str, str]) -> None:
    """Says which devices go back although something is on them, and what."""
    for uuid, why in found.items():
        log.warning("%s: GPU %s goes back %g s after its end, though %s", unit, uuid, LIMIT_S, why)


def sees_machine_pids() -> bool:
    """Whether process numbers here are those that the driver uses."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{pid}").exists()
