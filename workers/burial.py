"""What is left of attempts whose guardian is dead: their processes are removed, their devices waited for, and then that
is said with certainty.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from functools import partial

from flowctl.broker.calls import HostFence
from flowctl.broker.store import Broker
from flowctl.workers import device_release, nvml, tree, units
from flowctl.workers.device_release import Before
from flowctl.workers.identity import Identity
from flowctl.workers.units import UnitFile

log = logging.getLogger("flowctl")


class Burials:
    """Those of one worker. NVML is asked in processes of its own: this one forks."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._begun: dict[str, tuple[float, set[int]]] = {}

    def bury(self, broker: Broker, file: UnitFile) -> bool:
        """Removes the trial's tree and says so. False: its devices are not free of it yet; ask at the next beat."""
        mark = f"{self._identity.boot}/{file.mark}"
        swept = tree.sweep_marked(lambda found: found == mark)
        before = Before.from_json(file.before)
        if before.devices:
            since, pids = self._begun.setdefault(file.key, (time.monotonic(), {file.trial_pid}))
            pids.update(swept)
            found = device_release.still_busy(before, before.devices, pids, look=nvml.occupancy_asked)
            if found and time.monotonic() - since < device_release.LIMIT_S:
                return False
            device_release.warn(file.unit, found)
            self._begun.pop(file.key)
        text = f"its guardian on {self._identity.worker} died"
        if file.bundle:
            host = HostFence(file.unit, file.epoch, file.bundle, file.number, file.nonce)
            cause = {"kind": "guardian_lost", "text": text}
            broker.calls.host_end(host, boot=self._identity.boot, state="lost", result={"cause": cause})
        else:
            broker.calls.trial_release(units.fence(file), boot=self._identity.boot, cause="guardian_lost", text=text)
        units.remove(self._identity.units, file)
        return True

    def sweep_dead_boots(self) -> None:
        """Holding the name's lock proves that no other boot of it lives; its trial processes go, and its devices are
        waited for, before this one offers anything.
        """
        for folder in sorted(self._identity.folder.iterdir()):
            boot = folder.name.split("-")[0]
            if boot == self._identity.boot:
                continue
            left = units.running(folder)
            swept = tree.sweep_marked(partial(_is_of_boot, boot))
            if swept:
                log.warning("removed %s processes that an earlier start of this worker left", len(swept))
            await_devices(left, swept)
            shutil.rmtree(folder, ignore_errors=True)


def await_devices(files: Sequence[UnitFile], swept: Sequence[int]) -> None:
    """Returns when the devices of these attempts are free of the processes that were removed, or at last with a
    warning.
    """
    for file in files:
        before = Before.from_json(file.before)
        if before.devices:
            pids = {file.trial_pid, *swept}
            found = device_release.wait_until_free(before, before.devices, pids, look=nvml.occupancy_asked)
            device_release.warn(file.unit, found)


def _is_of_boot(boot: str, mark: str) -> bool:
    return mark.startswith(f"{boot}/")
