"""What one attempt holds, as its guardian minds it: devices are looked at before user code and after its end, limits
are enforced meanwhile. An attempt without devices and limits costs nothing here.
"""

import contextlib
import logging
import time
from collections.abc import Collection
from pathlib import Path

from flowctl.workers import core_share, device_release, nvml, tree, units
from flowctl.workers.grant import Grant
from flowctl.workers.memory_limit import MemoryLimit

log = logging.getLogger("flowctl")


class Holdings:
    """Of the attempt (unit, epoch), whose guardian keeps its file in `folder`. `look_at` is the monotonic time of the
    next look at limits; `over_limit` why the attempt was to be killed.
    """

    def __init__(self, grant: Grant, *, unit: str, epoch: int, folder: Path, bundle: int = 0) -> None:
        self.grant = grant
        self.over_limit: str | None = None
        self._unit = unit
        self._epoch = epoch
        self._bundle = bundle
        self._folder = folder
        self._before = device_release.Before({}, {})
        self._limit: MemoryLimit | None = None
        self._bound = contextlib.ExitStack()
        self._is_used = False

    @property
    def look_at(self) -> float | None:
        """None: never."""
        return self._limit.look_at if self._limit is not None else None

    def note_devices(self, *, trial_pid: int) -> None:
        """Before user code: what there is to compare with at the end, kept also for who comes after this guardian."""
        if not self.grant.found_devices:
            return
        try:
            found = nvml.occupancy_bounded(self.grant.found_devices)
        except nvml.NvmlFailed as error:
            log.warning("%s: its devices cannot be looked at: %s", self._unit, error)
            return
        self._before = device_release.Before.of(found, shared=self.grant.shared)
        before = self._before.to_json()
        units.note_devices(
            self._folder,
            unit=self._unit,
            epoch=self._epoch,
            trial_pid=trial_pid,
            before=before,
            bundle=self._bundle,
        )

    def begin(self, enforce: Collection[str], *, trial_pid: int) -> None:
        """User code is about to run: enforces what its policy names."""
        self._is_used = bool(self.grant.found_devices)
        if "memory" in enforce and self.grant.memory_mib is not None:
            self._limit = MemoryLimit(self.grant.memory_mib)
        if "cpu" in enforce and self.grant.cpu:
            key, alive = f"{self._unit}@{self._epoch}", {file.key for file in units.running(self._folder)}
            cores = core_share.bound(trial_pid, cpu=self.grant.cpu, key=key, folder=self._folder, alive=alive)
            self._bound.enter_context(cores)

    def is_exceeded(self, *, is_over: bool) -> bool:
        """Whether the attempt is to be killed now for what it uses; never again once it was, or `is_over`."""
        if is_over:
            self._limit = None
        if self._limit is not None and time.monotonic() >= self._limit.look_at:
            self.over_limit = self._limit.exceeded()
            if self.over_limit is not None:
                self._limit = None
                return True
        return False

    def processes(self, trial_pid: int) -> set[int]:
        """The processes that must be off its devices, asked before they are removed; none if there is nothing to wait
        for, or it was asked before.
        """
        if not self._is_used:
            return set()
        self._is_used = False
        return {trial_pid, *tree.descendants()}

    def await_devices(self, pids: Collection[int]) -> None:
        """Returns when the devices are free of these processes, which are gone, or at last with a warning."""
        found = device_release.wait_until_free(
            self._before, self.grant.found_devices, pids, look=nvml.occupancy_bounded
        )
        device_release.warn(self._unit, found)

    def close(self) -> None:
        """Gives the cores back."""
        self._bound.close()
