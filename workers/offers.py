"""What a worker offers: cores, memory and devices that it finds, a slot per trial at once, what its owner declares."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.labels import is_label
from flowctl.dsl.resources import SLOT, UNITS_PER_TOKEN, format_amount, parse_offer
from flowctl.workers import machine, nvml
from flowctl.workers.devices import CUDA, Device, logical_devices, visible_devices

GPU = "gpu"
MAX_LABELS = 20


@dataclass(frozen=True)
class Offers:
    """Exact units per dimension. Detected ones are shared between the workers of a machine; declared ones are
    believed.

    `devices` are the worker's, in its order. `gpu_limit`: so many of them are offered at most; None: all. `notes` are
    what its owner should know.
    """

    detected: Mapping[str, int]
    declared: Mapping[str, int]
    labels: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    gpu_limit: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> dict[str, int]:
        """What it offers when no other worker of the machine does, by the names that people use; `gpu` in all."""
        count = len(self.devices) if self.gpu_limit is None else min(self.gpu_limit, len(self.devices))
        units = {name: n for name, n in {**self.detected, **self.declared}.items() if not name.startswith(f"{GPU}:")}
        return {**units, GPU: count * UNITS_PER_TOKEN} if count else units


def offers(text: str | None, *, slots: int, labels: str | None = None, env: Mapping[str, str] | None = None) -> Offers:
    """From `--resources cpu=2,license=1` and `--labels spot,zone=a`.

    `cpu`, `memory` and `gpu` are found on the machine where they are not named there, or named `auto`. `gpu=2` offers
    two of the devices that are found, or two logical ones where none is. Raises DeclarationError.
    """
    env = os.environ if env is None else env
    declared = parse_offer(text, place="--resources") if text else {}
    named = declared.pop(GPU, None)
    limit = None if named is None else named // UNITS_PER_TOKEN
    declared[SLOT] = slots * UNITS_PER_TOKEN
    detected = {}
    if "cpu" not in declared:
        detected["cpu"] = machine.cores() * UNITS_PER_TOKEN
    if "memory" not in declared:
        detected["memory"] = machine.memory_mib()
    devices, notes = ((), []) if limit == 0 else _found(env)
    if devices:
        detected |= {device.dimension: UNITS_PER_TOKEN for device in devices}
        if limit is not None and limit > len(devices):
            notes.append(f"--resources gpu={limit}: only {len(devices)} can be used here, and so many are offered")
    elif limit:
        devices, limit, count = logical_devices(limit, env), None, limit
        declared |= {device.dimension: UNITS_PER_TOKEN for device in devices}
        notes.append(f"--resources gpu={count}: no GPU is found here; {count} logical ones are offered")
    return Offers(
        detected=detected,
        declared=declared,
        labels=parse_worker_labels(labels, place="--labels"),
        devices=devices,
        gpu_limit=limit if devices else None,
        notes=tuple(notes),
    )


def parse_worker_labels(text: str | None, *, place: str) -> tuple[str, ...]:
    """Labels of a worker from `spot,zone=a`: sorted, each once. Raises DeclarationError."""
    labels = sorted({part.strip() for part in (text or "").split(",")} - {""})
    for label in labels:
        if not is_label(label):
            raise DeclarationError(f"{label!r} is not a label", place=place, cure="write spot,zone=a")
    if len(labels) > MAX_LABELS:
        raise DeclarationError(f"{len(labels)} labels are more than {MAX_LABELS}", place=place)
    return tuple(labels)


def slots_of(env: Mapping[str, str]) -> int:
    """Trials at once at most: FLOWCTL_SLOTS, else max(10, 2 × cores). Raises DeclarationError."""
    text = env.get("FLOWCTL_SLOTS") or str(max(10, 2 * machine.cores()))
    if not (text.isascii() and text.isdigit() and int(text)):
        raise DeclarationError(f"{text!r} is not a number of slots", place="FLOWCTL_SLOTS", cure="use at least 1")
    return int(text)


def offer_text(units: Mapping[str, int]) -> str:
    """A vector of a worker in one line: `cpu=8, gpu=2, memory=16GiB, slot=16`; devices are counted."""
    summed: dict[str, int] = {}
    for name, n in units.items():
        name = GPU if name.startswith(f"{GPU}:") else name
        summed[name] = summed.get(name, 0) + n
    return ", ".join(f"{name}={format_amount(name, n)}" for name, n in sorted(summed.items()))


def taken_by_others(offered: Mapping[str, int], found: Offers) -> dict[str, list[str]]:
    """What of the machine this worker found and does not offer, with the dimensions that others then offer; `offered`
    is what the server left it. With a limit on devices, those beyond it are not meant. `{}` stands for the others.
    """
    lacks = [name for name, n in found.detected.items() if n and not offered.get(name)]
    said = {}
    if "cpu" in lacks:
        said[_taken("all cores", is_one=False)] = ["cpu"]
    if "memory" in lacks:
        said[_taken("all memory", is_one=True)] = ["memory"]
    devices = [device for device in found.devices if device.dimension in lacks]
    wanted = len(found.devices) if found.gpu_limit is None else found.gpu_limit
    if devices and len(found.devices) - len(devices) < wanted:
        names = ", ".join(device.visible for device in devices)
        what = f"GPU {names}" if len(devices) == 1 else f"GPUs {names}"
        said[_taken(what, is_one=len(devices) == 1)] = [device.dimension for device in devices]
    return said


def _taken(what: str, *, is_one: bool) -> str:
    verb, them = ("is", "it") if is_one else ("are", "them")
    return f"{what} of this machine {verb} offered by {{}}; this worker offers {them} when that ends"


def _found(env: Mapping[str, str]) -> tuple[tuple[Device, ...], list[str]]:
    try:
        return visible_devices(nvml.cards_of_machine(), env.get(CUDA)), []
    except nvml.NvmlFailed as error:
        return (), [] if error.is_absent else [f"no GPU is offered: {error}"]
