"""The devices that a worker offers: which of the machine's cards its environment lets it see, in which order, by which
name.

CUDA_VISIBLE_DEVICES is read as CUDA reads it: entries are indices (leading digits count, as in CUDA) or uuids, or parts
of a uuid from its beginning that only one card has; all of the first entry's kind; the list ends before the first entry
that is none of them; an entry twice makes the whole list invalid. Indices count in the order of the PCI bus.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowctl.workers.nvml import Card

CUDA = "CUDA_VISIBLE_DEVICES"
COUNTERPARTS = (
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "MLU_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
)
"""What other vendors' runtimes read instead. A worker whose own environment sets one offers such devices."""

_INDEX = re.compile(r"\s*\+?([0-9]+)")


@dataclass(frozen=True)
class Device:
    """One device as a worker offers it: `id` names it in the accounts (`gpu:<id>`), `visible` is what stands for it in
    CUDA_VISIBLE_DEVICES. A logical one was declared and not found: nothing is known of it (`memory_mib` 0).
    """

    id: str
    name: str
    memory_mib: int
    visible: str
    is_logical: bool = False

    @property
    def dimension(self) -> str:
        """Its name among a worker's tokens."""
        return f"gpu:{self.id}"

    def to_json(self) -> dict[str, object]:
        """As a worker registers it."""
        return {"id": self.id, "name": self.name, "memory_mib": self.memory_mib, "visible": self.visible}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Device":
        """As `to_json` wrote it."""
        return cls(str(value["id"]), str(value["name"]), int(str(value["memory_mib"])), str(value["visible"]))


def visible_devices(cards: Sequence[Card], variable: str | None) -> tuple[Device, ...]:
    """The devices that a CUDA process with CUDA_VISIBLE_DEVICES=`variable` (None: unset) could use, in its order.

    Unset, all are: the slices of a card in MIG mode, and other cards whole. An entry that names a card in MIG mode is
    its first slice, all that CUDA would show of it.
    """
    if variable is None:
        return _all(cards)
    entries = variable.split(",")
    first = entries[0].strip()
    found: list[Device] = []
    for entry in entries:
        device = _by_uuid(cards, entry.strip(), first) if first[:4] in ("GPU-", "MIG-") else _by_index(cards, entry)
        if device is None:
            break
        if device.id in {each.id for each in found}:
            return ()
        found.append(device)
    return tuple(found)


def find(cards: Sequence[Card], name: int | str) -> Card | None:
    """The card or slice with this index or uuid (or the beginning of one that no other has); None if there is none."""
    text = str(name).strip()
    if text.isascii() and text.isdigit():
        return next((card for card in cards if card.index == int(text)), None)
    whole = [each for card in cards for each in (card, *card.slices)]
    fits = [card for card in whole if card.uuid == text] or [
        card for card in whole if text and card.uuid.startswith(text)
    ]
    return fits[0] if len(fits) == 1 else None


def logical_devices(count: int, env: Mapping[str, str]) -> tuple[Device, ...]:
    """Devices that were declared where none is found: `0`, `1`, …; seen by the entries of CUDA_VISIBLE_DEVICES where
    that has as many.
    """
    entries = _entries(env.get(CUDA, ""))
    names = entries[:count] if len(entries) >= count else [str(number) for number in range(count)]
    return tuple(Device(str(n), "declared", 0, seen, is_logical=True) for n, seen in enumerate(names))


def visibility(devices: Sequence[Device], assigned: Sequence[Device], env: Mapping[str, str]) -> dict[str, str]:
    """The variables that let a process see the `assigned` ones of a worker's `devices` and no other.

    CUDA_VISIBLE_DEVICES always, and those counterparts that the worker's environment `env` sets: their own entries, at
    the places of the assigned devices. Where ROCR_VISIBLE_DEVICES is one of them, the layers above it count what it
    leaves from 0.
    """
    places = [devices.index(device) for device in assigned]
    values = {CUDA: ",".join(device.visible for device in assigned)}
    if assigned and not assigned[0].is_logical:
        values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    for name in COUNTERPARTS:
        if name in env:
            entries = _entries(env[name])
            values[name] = ",".join(entries[place] for place in places if place < len(entries))
    if values.get("ROCR_VISIBLE_DEVICES"):
        counted = ",".join(str(number) for number in range(len(places)))
        above = (CUDA, "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
        values |= {name: counted for name in above if name in values}
    return values


def _all(cards: Sequence[Card]) -> tuple[Device, ...]:
    """By index; by uuid where there are slices, which have no index."""
    by_uuid = any(card.is_sliced for card in cards)
    devices = []
    for card in cards:
        for each in card.slices if card.is_sliced else (card,):
            devices.append(_device(each, each.uuid if by_uuid else str(each.index)))
    return tuple(devices)


def _by_index(cards: Sequence[Card], entry: str) -> Device | None:
    match = _INDEX.match(entry)
    card = find(cards, match[1]) if match else None
    if card is None:
        return None
    return _first_slice(card) if card.is_sliced else _device(card, str(card.index))


def _by_uuid(cards: Sequence[Card], entry: str, first: str) -> Device | None:
    """Only entries of the first one's kind count, and the beginning of a uuid says more than its kind."""
    kind = first[:4]
    card = find(cards, entry) if entry.startswith(kind) and len(entry) > len(kind) else None
    if card is None:
        return None
    return _first_slice(card) if card.is_sliced else _device(card, card.uuid)


def _first_slice(card: Card) -> Device | None:
    return _device(card.slices[0], card.slices[0].uuid) if card.slices else None


def _device(card: Card, visible: str) -> Device:
    return Device(card.uuid, card.name, card.memory_mib, visible)


def _entries(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
