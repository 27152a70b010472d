"""Whether bundles find room together: the same strategies as placement, on rooms that are only looked at.

It answers for people; placement decides by `scripts/include/gang.lua`. Machines count for the strategies, not workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from flowctl.broker.room_view import WHOLE, lacks
from flowctl.broker.worker_view import DEVICE, GPU, WorkerView
from flowctl.dsl.resources import Bundle

MAX_TRIES = 400
MAX_SEARCHED = 60
"""Larger gangs are only seated first fit, the largest bundle first."""

Takes: TypeAlias = Callable[[WorkerView, Bundle], bool]
"""Whether a worker may take a bundle at all: labels."""


@dataclass
class Room:
    """What is left of a worker while bundles are seated."""

    worker: WorkerView
    left: dict[str, int] = field(default_factory=dict)

    def take(self, need: Mapping[str, int]) -> dict[str, int]:
        """Seats a need that fits; returns what it took, to be given back."""
        taken = {dim: units for dim, units in need.items() if dim != GPU or GPU in self.left}
        if GPU in need and GPU not in taken:
            taken |= _devices(self.left, need[GPU])
        self.give(taken, sign=-1)
        return taken

    def give(self, taken: Mapping[str, int], *, sign: int = 1) -> None:
        for dim, units in taken.items():
            self.left[dim] = self.left.get(dim, 0) + sign * units


def unseated(bundles: Sequence[Bundle], strategy: str, rooms: Sequence[Room], takes: Takes) -> list[int]:
    """The bundles (by number) that find no place in the best seating that was found; empty: all fit together."""
    order = sorted(range(len(bundles)), key=lambda i: (-_size(bundles[i], rooms), i))
    machines: dict[str, list[Room]] = {}
    for room in rooms:
        machines.setdefault(room.worker.machine or room.worker.boot, []).append(room)
    if strategy == "STRICT_SPREAD":
        return _spread(bundles, order, machines, takes)
    if strategy == "STRICT_PACK":
        found = [_fill(bundles, order, _copies(own), takes) for own in machines.values()]
        return min(found, key=len) if found else list(order)
    return _fill(bundles, order, _copies(rooms), takes)


def _fill(bundles: Sequence[Bundle], order: Sequence[int], rooms: Sequence[Room], takes: Takes) -> list[int]:
    left = _first_fit(bundles, order, _copies(rooms), takes)
    if left and len(order) <= MAX_SEARCHED and _search(bundles, list(order), rooms, takes, iter(range(MAX_TRIES))):
        return []
    return left


def _first_fit(bundles: Sequence[Bundle], order: Sequence[int], rooms: Sequence[Room], takes: Takes) -> list[int]:
    left = []
    for i in order:
        room = next((each for each in rooms if _fits(each, bundles[i], takes)), None)
        if room is None:
            left.append(i)
        else:
            room.take(bundles[i].need)
    return left


def _search(
    bundles: Sequence[Bundle], order: list[int], rooms: Sequence[Room], takes: Takes, tries: Iterator[int]
) -> bool:
    if not order:
        return True
    first, *rest = order
    for room in rooms:
        if not _fits(room, bundles[first], takes):
            continue
        taken = room.take(bundles[first].need)
        if _search(bundles, rest, rooms, takes, tries):
            return True
        room.give(taken)
        if next(tries, None) is None:
            return False
    return False


def _spread(
    bundles: Sequence[Bundle], order: Sequence[int], machines: Mapping[str, Sequence[Room]], takes: Takes
) -> list[int]:
    """Each bundle on a machine of its own, by augmenting paths."""
    holder: dict[str, int] = {}

    def seat(i: int, tried: set[str]) -> bool:
        for name, rooms in machines.items():
            if name in tried or not any(_fits(room, bundles[i], takes) for room in rooms):
                continue
            tried.add(name)
            if name not in holder or seat(holder[name], tried):
                holder[name] = i
                return True
        return False

    return [i for i in order if not seat(i, set())]


def _fits(room: Room, bundle: Bundle, takes: Takes) -> bool:
    return not lacks(bundle.need, room.left) and takes(room.worker, bundle)


def _size(bundle: Bundle, rooms: Sequence[Room]) -> float:
    """The largest share that it takes of anything of the largest room."""
    shares = [0.0]
    for dim, units in bundle.need.items():
        most = max((room.left.get(dim, 0) for room in rooms), default=0)
        shares.append(units / most if most > 0 else 0.0)
    return max(shares)


def _copies(rooms: Sequence[Room]) -> list[Room]:
    return [Room(room.worker, dict(room.left)) for room in rooms]


def _devices(left: Mapping[str, int], asked: int) -> dict[str, int]:
    free = sorted((units, dim) for dim, units in left.items() if dim.startswith(DEVICE))
    if asked <= WHOLE:
        return {next(dim for units, dim in free if units >= asked): asked}
    return {dim: WHOLE for units, dim in free[-(asked // WHOLE) :]}
