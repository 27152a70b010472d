"""`wait_for_gpu`: waits until devices are free, for a trial that must not meet what another left on its card."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping

from flowctl.workers import nvml
from flowctl.workers.devices import CUDA, find, visible_devices
from flowctl.workers.session import current


def wait_for_gpu(
    gpu_id: int | str | None = None, target_util: float = 0.01, retry: int = 20, delay_s: float = 5
) -> bool:
    """Waits until at most `target_util` of a device's memory is in use (0: all of it is free); returns True.

    gpu_id: a device of this machine by its index (as `nvidia-smi` numbers it; a number or text) or its uuid, or the
    beginning of one; None: all devices of this trial, or outside of one all that CUDA_VISIBLE_DEVICES names. It looks
    `retry` times, `delay_s` seconds apart, and once more after the last of them. A trial that holds a part of a device
    shares it with others, whose memory says nothing: it returns at once, with a note on stderr.

    Raises ValueError for an id of another type and for one that is not on this machine, and RuntimeError without a
    device, without NVML, and when the device is still in use after all tries: that is the trial's failure.
    """
    _check(gpu_id, target_util, retry, delay_s)
    found: Mapping[str, nvml.Occupancy] = {}
    try:
        waiting = _shared_left_out(_wanted(gpu_id))
        for left in range(retry, -1, -1):
            if not waiting:
                return True
            found = nvml.occupancy(waiting)
            waiting = [uuid for uuid in waiting if uuid not in found or _share(found[uuid]) > target_util]
            if waiting and left:
                time.sleep(delay_s)
    except nvml.NvmlFailed as error:
        raise RuntimeError(f"wait_for_gpu: GPUs cannot be looked at: {error}") from error
    if not waiting:
        return True
    unseen = "the driver does not show it"
    shares = ", ".join(
        f"{uuid} ({f'{_share(found[uuid]):.1%} in use' if uuid in found else unseen})" for uuid in waiting
    )
    tried = f"after {retry + 1} looks, {delay_s:g} s apart"
    raise RuntimeError(f"wait_for_gpu: still more than {target_util:.1%} of the memory in use {tried}: {shares}")


def _check(gpu_id: object, target_util: object, retry: object, delay_s: object) -> None:
    if gpu_id is not None and (isinstance(gpu_id, bool) or not isinstance(gpu_id, int | str)):
        raise ValueError(f"wait_for_gpu: gpu_id must be an index or a uuid, not {gpu_id!r} ({type(gpu_id).__name__})")
    if isinstance(retry, bool) or not isinstance(retry, int) or retry < 0:
        raise ValueError(f"wait_for_gpu: retry must be a number of looks, not {retry!r}")
    for name, value, most in (("target_util", target_util, 1.0), ("delay_s", delay_s, math.inf)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) <= most or math.isinf(float(value)):  # type: ignore[arg-type]
            raise ValueError(f"wait_for_gpu: {name} is {value!r}")


def _wanted(gpu_id: int | str | None) -> list[str]:
    session = current()
    if gpu_id is None and session is not None:
        declared = [str(device["id"]) for device in session.devices if device["is_logical"] and device["share"] >= 1]
        if declared:
            raise RuntimeError(
                f"wait_for_gpu: GPU {', '.join(declared)} was declared and not found: NVML knows no such"
            )
        held = [str(device["id"]) for device in session.devices]
    else:
        cards = nvml.cards()
        if gpu_id is not None:
            card = find(cards, gpu_id)
            if card is None:
                there = ", ".join(f"{each.index} ({each.uuid})" for each in cards) or "none"
                raise ValueError(f"wait_for_gpu: there is no GPU {gpu_id!r} on this machine; there are: {there}")
            return [card.uuid]
        held = [device.id for device in visible_devices(cards, os.environ.get(CUDA))]
    if not held:
        raise RuntimeError("wait_for_gpu: no GPU is assigned here; ask for one with resources={'gpu': 1}")
    return held


def _shared_left_out(uuids: list[str]) -> list[str]:
    session = current()
    shares = {str(device["id"]): float(device["share"]) for device in session.devices} if session else {}
    shared = [uuid for uuid in uuids if shares.get(uuid, 1.0) < 1]
    if shared:
        text = "this trial holds a part of it, and others may use the rest: it is not waited for"
        print(f"flowctl: wait_for_gpu: {', '.join(shared)}: {text}", file=sys.stderr)
    return [uuid for uuid in uuids if uuid not in shared]


def _share(occupancy: nvml.Occupancy) -> float:
    return occupancy.used / occupancy.total if occupancy.total else 0.0
