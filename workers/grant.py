"""What an attempt holds on its worker, and what that is in its processes: variables, numbers, devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowctl.dsl.resources import UNITS_PER_TOKEN, as_declared
from flowctl.workers.devices import Device, visibility

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""How many threads numeric libraries start."""


@dataclass(frozen=True)
class Grant:
    """The tokens of one attempt (or of one bundle of it) as booked, on a worker that offers `offered` in this order."""

    tokens: Mapping[str, int]
    offered: Sequence[Device] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that it holds, or shares, in the worker's order."""
        return tuple(device for device in self.offered if self.tokens.get(device.dimension))

    @property
    def found_devices(self) -> tuple[str, ...]:
        """The ids of those that NVML knows: a logical device has no card to look at."""
        return tuple(device.id for device in self.devices if not device.is_logical)

    @property
    def shared(self) -> tuple[str, ...]:
        """The ids of devices that it holds a part of: others may use them at the same time."""
        return tuple(device.id for device in self.devices if self.tokens[device.dimension] < UNITS_PER_TOKEN)

    @property
    def cpu(self) -> float:
        """Cores."""
        return self.tokens.get("cpu", 0) / UNITS_PER_TOKEN

    @property
    def memory_mib(self) -> int | None:
        """None if it asked for none."""
        return self.tokens.get("memory")

    @property
    def context(self) -> dict[str, Any]:
        """What of it `get_context()` shows: `resources` as they are declared, and devices as CUDA_VISIBLE_DEVICES has
        them.
        """
        return {"resources": as_declared(self.tokens), "devices": [device.visible for device in self.devices]}

    @property
    def session(self) -> list[dict[str, Any]]:
        """What `wait_for_gpu` must know of the devices: NVML's id of each, and the share that is the attempt's."""
        shares = [(device, self.tokens[device.dimension] / UNITS_PER_TOKEN) for device in self.devices]
        return [{"id": device.id, "share": share, "is_logical": device.is_logical} for device, share in shares]

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """The worker's environment `own` as this attempt gets it: it sees its own devices, none without one, and
        numeric libraries start as many threads as it has cores (at least one) unless the worker's user said otherwise.
        """
        threads = str(max(1, int(self.cpu)))
        given = {**own, **visibility(self.offered, self.devices, own)}
        return {**dict.fromkeys(THREADS, threads), **given}
