"""What placement has to do, said a second time and in small: the model that the broker is held against.

It keeps a ledger of its own (who holds what since which call) and computes from it, by plain search, what is free,
what fits and who comes first. Which of several good boots or devices is taken is the broker's choice: the model takes
it over, after it has checked that it was a good one. States of runs and steps are not modelled; they are told to it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WHOLE = 10_000
MAX_AVOIDED = 10
QUICK_UNITS = 3

Part = tuple[str, tuple[tuple[str, int], ...]]
Parts = tuple[Part, ...]
"""Per bundle the boot and the vector, sorted."""


class Broken(AssertionError):
    """The broker did what the model does not allow."""


@dataclass(frozen=True)
class Shape:
    id: str
    needs: tuple[tuple[tuple[str, int], ...], ...]
    labels: tuple[tuple[str, ...], ...]
    strategy: str

    @property
    def sums(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for need in self.needs:
            total.update(dict(need))
        return total


@dataclass
class Row:
    """What one bundle of an attempt holds on one boot; pools and cost stand in that of bundle 0."""

    vector: dict[str, int]
    pools: dict[str, int] = field(default_factory=dict)
    cost: int = 0
    is_orphan: bool = False


@dataclass
class Boot:
    name: str
    worker: str
    machine: str
    labels: frozenset[str]
    offer: dict[str, int]
    only: str = ""
    detected: tuple[str, ...] = ()
    limit: int = 99
    state: str = "up"
    is_accepting: bool = False
    is_suspect: bool = False
    rows: dict[str, Row] = field(default_factory=dict)
    quick: list[str] = field(default_factory=list)
    blamed: tuple[str, str, str] | None = None

    @property
    def takes(self) -> bool:
        return self.state == "up" and self.is_accepting


@dataclass
class Step:
    name: str
    number: int
    priority: int = 0
    limit: int | None = None
    repairs: bool = False


@dataclass
class Run:
    name: str
    seq: int
    steps: dict[str, Step]
    priority: int = 0
    weight: float = 1
    limit: int | None = None


@dataclass(eq=False)
class Unit:
    id: str
    run: str
    step: str
    index: int
    shape: Shape
    state: str = "pending"
    is_waiting: bool = True
    epoch: int = 0
    boots: tuple[str, ...] = ()
    avoid: list[str] = field(default_factory=list)
    is_aged: bool = False


@dataclass(frozen=True)
class Repair:
    """A bundle that a running unit lost and is to have again; its turn is that of its step when it was lost."""

    unit: Unit
    bundle: int
    turn: tuple[Any, ...]


@dataclass(frozen=True)
class Reservation:
    unit: str
    parts: Parts
    pools: Mapping[str, int]

    def hold(self, boot: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for name, vector in self.parts:
            if name == boot:
                total.update(dict(vector))
        return total


@dataclass
class Room:
    """What is free on a boot: amounts, and each device."""

    boot: Boot
    amounts: dict[str, int]
    devices: dict[str, int]

    def take(self, need: Iterable[tuple[str, int]]) -> Iterator[Room]:
        """Every room that could be left after this need was met here."""
        amounts, devices = dict(self.amounts), dict(self.devices)
        asked = 0
        for dim, n in need:
            if dim == "gpu":
                asked = n
            elif amounts.get(dim, 0) < n:
                return
            else:
                amounts[dim] -= n
        if not asked:
            yield Room(self.boot, amounts, devices)
        elif asked <= WHOLE:
            levels: dict[int, str] = {}
            for device, free in devices.items():
                if free >= asked:
                    levels.setdefault(free, device)
            for device in levels.values():
                yield Room(self.boot, amounts, {**devices, device: devices[device] - asked})
        else:
            whole = [device for device, free in devices.items() if free == WHOLE][: asked // WHOLE]
            if len(whole) == asked // WHOLE:
                yield Room(self.boot, amounts, {**devices, **dict.fromkeys(whole, 0)})

    @property
    def signature(self) -> tuple[object, ...]:
        return (self.boot.name, *sorted(self.amounts.items()), *sorted(self.devices.values()))


@dataclass
class Model:
    boots: dict[str, Boot] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    pools: dict[str, int] = field(default_factory=dict)
    reserved: Reservation | None = None
    repairs: list[Repair] = field(default_factory=list)
    _known: dict[object, bool] = field(default_factory=dict)

    # --- what is booked and what is free ---

    def pool_used(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for boot in self.boots.values():
            for row in boot.rows.values():
                used.update(row.pools)
        return used

    def share(self, run: str) -> int:
        rows = (item for boot in self.boots.values() for item in boot.rows.items())
        return sum(row.cost for name, row in rows if name.startswith(f"{run}:"))

    def room(self, boot: Boot, *, is_idle: bool = False, keeps: Reservation | None = None) -> Room:
        free = Counter(boot.offer)
        if not is_idle:
            for row in boot.rows.values():
                free.subtract(row.vector)
        if keeps is not None:
            free.subtract(keeps.hold(boot.name))
        plain = {dim: n for dim, n in free.items() if not dim.startswith("gpu:")}
        return Room(boot, plain, {dim: free[dim] for dim in boot.offer if dim.startswith("gpu:")})

    def cost(self, shape: Shape) -> int:
        """In billionths of the cluster: the largest of its shares."""
        total: Counter[str] = Counter()
        for boot in self.boots.values():
            for dim, n in boot.offer.items():
                total["gpu" if dim.startswith("gpu:") else dim] += n
        sizes = {**total, **self.pools}
        return math.ceil(10**9 * max((n / sizes[dim] for dim, n in shape.sums.items() if sizes.get(dim)), default=0))

    def asks_of_pools(self, shape: Shape) -> dict[str, int]:
        return {dim: n for dim, n in shape.sums.items() if dim in self.pools}

    def asks_of_boots(self, shape: Shape) -> list[list[tuple[str, int]]]:
        return [[(dim, n) for dim, n in need if dim not in self.pools] for need in shape.needs]

    def pools_left(self, kept: Reservation | None) -> dict[str, int]:
        used = self.pool_used()
        return {pool: n - used[pool] - (kept.pools.get(pool, 0) if kept else 0) for pool, n in self.pools.items()}

    def has_pools(self, shape: Shape, left: Mapping[str, int]) -> bool:
        return all(left[pool] >= n for pool, n in self.asks_of_pools(shape).items())

    # --- what fits ---

    def can_serve(self, boot: Boot, run: str, labels: Sequence[str]) -> bool:
        wanted = all((label[1:] not in boot.labels) if label[0] == "!" else label in boot.labels for label in labels)
        return boot.takes and boot.only in ("", run) and wanted

    def able(self, shape: Shape, run: str) -> set[str]:
        """Workers that could hold bundle 0 if they were idle."""
        need = self.asks_of_boots(shape)[0]
        boots = (boot for boot in self.boots.values() if self.can_serve(boot, run, shape.labels[0]))
        return {boot.worker for boot in boots if any(self.room(boot, is_idle=True).take(need))}

    def shunned(self, unit: Unit) -> set[str]:
        """Workers that this unit may not go to, for it failed there and others could hold it."""
        if not unit.avoid or len(unit.shape.needs) > 1 or not self.able(unit.shape, unit.run) - set(unit.avoid):
            return set()
        return set(unit.avoid)

    def fits(self, unit: Unit, rooms: Sequence[Room], pools: Mapping[str, int], how: str = "") -> bool:
        shape, shunned = unit.shape, self.shunned(unit)
        if not self.has_pools(shape, pools):
            return False
        needs = self.asks_of_boots(shape)
        serving = [
            [room for room in rooms if self.can_serve(room.boot, unit.run, labels) and room.boot.worker not in shunned]
            for labels in shape.labels
        ]
        key = (
            how or shape.strategy,
            tuple(map(tuple, needs)),
            tuple(tuple(room.signature for room in of) for of in serving),
        )
        if key not in self._known:
            if len(self._known) > 50_000:
                self._known.clear()
            order = sorted(range(len(needs)), key=lambda i: -sum(n for _, n in needs[i]))
            allowed = [{room.boot.name for room in of} for of in serving]
            now = {room.boot.name: room for of in serving for room in of}
            self._known[key] = self._seats(how or shape.strategy, order, needs, allowed, now, [])
        return self._known[key]

    def _seats(
        self,
        how: str,
        left: Sequence[int],
        needs: Sequence[Sequence[tuple[str, int]]],
        allowed: Sequence[set[str]],
        rooms: Mapping[str, Room],
        machines: Sequence[str],
    ) -> bool:
        if not left:
            return True
        for name in sorted(allowed[left[0]]):
            room = rooms[name]
            machine = room.boot.machine
            if how == "STRICT_PACK" and machines and machine != machines[0]:
                continue
            if how == "STRICT_SPREAD" and machine in machines:
                continue
            for after in room.take(needs[left[0]]):
                if self._seats(how, left[1:], needs, allowed, {**rooms, name: after}, [*machines, machine]):
                    return True
        return False

    # --- who comes first ---

    def in_order(self) -> list[Unit]:
        """All that wait and whose run and step may have one more at once, the first first."""
        active: Counter[object] = Counter()
        for unit in self.units.values():
            if unit.state in ("placed", "running"):
                active.update([unit.run, (unit.run, unit.step)])
        shares = {name: self.share(name) for name in self.runs}
        found = []
        for unit in self.units.values():
            run = self.runs[unit.run]
            step = run.steps[unit.step]
            has_turn = run.limit is None or active[run.name] < run.limit
            if unit.is_waiting and has_turn and (step.limit is None or active[run.name, step.name] < step.limit):
                load = shares[unit.run] / run.weight
                found.append(((-run.priority - step.priority, load, run.seq, step.number, unit.index), unit))
        return [unit for _, unit in sorted(found, key=lambda pair: pair[0])]

    def first(self, rooms: Sequence[Room], pools: Mapping[str, int]) -> Unit | None:
        """The first in order of those that fit."""
        return next((unit for unit in self.in_order() if self.fits(unit, rooms, pools)), None)

    # --- what the broker did ---

    def explain(
        self, placed: dict[str, Parts], repaired: dict[tuple[str, int], Part], *, only: str | None, limit: int
    ) -> int:
        """One pass of placement, on one boot or on all: takes from `placed` and `repaired` what it must have done.

        In order; repairs go before units of equal priority. A pass on one boot looks at all of them if a gang waits: it
        may need others. Returns how many units it placed.
        """
        kept = self.reserved
        if kept is not None and not self.still_waits(kept):
            kept = self.reserved = None
        if only is not None and only not in self.boots:
            return 0
        done = 0
        if kept is not None and (only is None or kept.hold(only)) and self.is_all_free(kept):
            if placed.get(kept.unit) != kept.parts:
                raise Broken(f"all that is kept for {kept} is free, but it was placed at {placed.get(kept.unit)}")
            self.book(self.units[kept.unit], placed.pop(kept.unit))
            kept, done = None, 1
            self.reserved = None
        waiting = [unit for unit in self.units.values() if unit.is_waiting]
        is_wide = only is None or any(
            len(unit.shape.needs) > 1 and self.has_pools(unit.shape, self.pools_left(kept)) for unit in waiting
        )
        untried, is_over = sorted(self.repairs, key=lambda repair: repair.turn), False
        while True:
            rooms = [self.room(boot, keeps=kept) for boot in self.boots.values() if is_wide or boot.name == only]
            unit = None if is_over else self.first(rooms, self.pools_left(kept))
            if untried and (unit is None or untried[0].turn[0] <= -self.priority(unit)):
                self.check_repair(untried.pop(0), rooms, repaired)
            elif unit is None:
                return done
            elif unit.id in placed:
                self.check_seats(unit, placed[unit.id], rooms)
                self.book(unit, placed.pop(unit.id))
                done += 1
            elif done < limit:
                raise Broken(f"{unit.id} ({unit.shape.id}) fits and is first in order, but was not placed: {placed}")
            else:
                is_over = True

    def priority(self, unit: Unit) -> int:
        run = self.runs[unit.run]
        return run.priority + run.steps[unit.step].priority

    def check_repair(self, repair: Repair, rooms: Sequence[Room], repaired: dict[tuple[str, int], Part]) -> None:
        """A bundle that fits somewhere comes back, by its strategy against those that are left."""
        unit, i = repair.unit, repair.bundle
        pools = self.boots[unit.boots[0]].rows[row_name(unit.id, unit.epoch, 0)].pools
        need = [(dim, n) for dim, n in unit.shape.needs[i] if dim not in pools]
        strategy = unit.shape.strategy
        machines = {self.boots[name].machine for name in unit.boots if name}
        good = [
            room.boot
            for room in rooms
            if self.can_serve(room.boot, unit.run, unit.shape.labels[i]) and any(room.take(need))
        ]
        preferred = [boot for boot in good if (boot.machine in machines) == (strategy in ("PACK", "STRICT_PACK"))]
        if preferred or strategy.startswith("STRICT"):
            good = preferred
        if not good:
            return
        if (unit.id, i) not in repaired:
            raise Broken(f"bundle {i} of {unit.id} fits on {[boot.name for boot in good]}, but was not repaired")
        name, vector = repaired.pop((unit.id, i))
        if name not in [boot.name for boot in good]:
            raise Broken(f"bundle {i} of {unit.id} was repaired on {name}, not on {[boot.name for boot in good]}")
        self.check_vector(f"bundle {i} of {unit.id}", vector, need)
        room = next(room for room in rooms if room.boot.name == name)
        free = {**room.amounts, **room.devices}
        if any(n > free[dim] for dim, n in vector):
            raise Broken(f"bundle {i} of {unit.id} takes more of {name} than is free")
        unit.boots = (*unit.boots[:i], name, *unit.boots[i + 1 :])
        self.boots[name].rows[row_name(unit.id, unit.epoch, i)] = Row(dict(vector))
        self.repairs.remove(repair)

    def check_vector(self, what: str, vector: Iterable[tuple[str, int]], need: Iterable[tuple[str, int]]) -> None:
        """Exactly what was asked: a share of one device, or whole ones."""
        got, asked = dict(vector), dict(need)
        share = asked.pop("gpu", 0)
        devices = sorted(got.pop(dim) for dim in list(got) if dim.startswith("gpu:"))
        if got != asked or devices != ([share] if 0 < share <= WHOLE else [WHOLE] * (share // WHOLE)):
            raise Broken(f"{what} asks for {list(need)} and got {list(vector)}")

    def still_waits(self, kept: Reservation) -> bool:
        """Whether it waits, for the same tokens of the same pools and boots."""
        unit = self.units.get(kept.unit)
        return unit is not None and unit.is_waiting and kept.pools == self.asks_of_pools(unit.shape)

    def is_all_free(self, kept: Reservation) -> bool:
        """Whether the unit that boots are kept for can go there now."""
        unit = self.units[kept.unit]
        if unit not in self.in_order() or not self.has_pools(unit.shape, self.pools_left(None)):
            return False
        for name in {name for name, _ in kept.parts}:
            if name not in self.boots or not self.boots[name].takes:
                return False
            room = self.room(self.boots[name])
            free = {**room.amounts, **room.devices}
            if any(n > free.get(dim, 0) for dim, n in kept.hold(name).items()):
                return False
        return True

    def check_seats(self, unit: Unit, parts: Parts, rooms: Sequence[Room], *, is_idle: bool = False) -> None:
        """Where the broker put a unit: exactly what it asked, nothing beyond what is free, as its strategy says."""
        shape, shunned = unit.shape, self.shunned(unit)
        needs = self.asks_of_boots(shape)
        if len(parts) != len(needs):
            raise Broken(f"{unit.id} asks for {len(needs)} bundles and got {len(parts)}")
        left = {room.boot.name: Counter({**room.amounts, **room.devices}) for room in rooms}
        for i, (name, vector) in enumerate(parts):
            boot, got = self.boots[name], dict(vector)
            if name not in left or not self.can_serve(boot, unit.run, shape.labels[i]) or boot.worker in shunned:
                raise Broken(f"bundle {i} of {unit.id} may not be on {name}")
            self.check_vector(f"bundle {i} of {unit.id}", vector, needs[i])
            left[name].subtract(got)
            short = {dim: n for dim, n in left[name].items() if dim in got and n < 0}
            if short:
                raise Broken(f"bundle {i} of {unit.id} takes more of {name} than is free: {short}")
        machines = [self.boots[name].machine for name, _ in parts]
        pools = dict.fromkeys(self.pools, 10**9)
        together = len(set(machines)) == 1
        apart = len(set(machines)) == len(machines)
        if not together and (
            shape.strategy == "STRICT_PACK"
            or (shape.strategy == "PACK" and self.fits(unit, rooms, pools, "STRICT_PACK"))
        ):
            raise Broken(f"{unit.id} ({shape.id}) is on {machines}, one machine could hold it")
        if not apart and (
            shape.strategy == "STRICT_SPREAD"
            or (shape.strategy == "SPREAD" and self.fits(unit, rooms, pools, "STRICT_SPREAD"))
        ):
            raise Broken(f"{unit.id} ({shape.id}) is on {machines}, each bundle could have a machine of its own")

    def book(self, unit: Unit, parts: Parts) -> None:
        unit.epoch += 1
        unit.state, unit.is_waiting, unit.is_aged = "placed", False, False
        unit.boots = tuple(name for name, _ in parts)
        cost = self.cost(unit.shape)
        for i, (name, vector) in enumerate(parts):
            row = Row(dict(vector))
            if i == 0:
                row.cost, row.pools = cost, self.asks_of_pools(unit.shape)
            self.boots[name].rows[row_name(unit.id, unit.epoch, i)] = row

    # --- what ends ---

    def give_back(self, unit: Unit, *, is_certain: bool = True) -> None:
        """Its attempt is over; what may still run on its own boot turns orphan."""
        for i, name in enumerate(unit.boots):
            row = row_name(unit.id, unit.epoch, i)
            if not name:  # lost, and not repaired yet
                continue
            if i == 0 and not is_certain:
                self.boots[name].rows[row].is_orphan = True
            else:
                del self.boots[name].rows[row]
        unit.boots, unit.state = (), ""
        self.repairs = [repair for repair in self.repairs if repair.unit is not unit]

    def on(self, boot: str, *states: str) -> list[Unit]:
        """Units with a bundle there."""
        return [unit for unit in self.units.values() if boot in unit.boots and unit.state in states]

    def take_back(self, boot: str) -> None:
        for unit in self.on(boot, "placed"):
            self.give_back(unit)

    def leave(self, boot: str) -> None:
        for unit in self.on(boot, "placed", "running"):
            step = self.runs[unit.run].steps[unit.step]
            if unit.state == "placed" or unit.boots[0] == boot or not step.repairs:
                self.give_back(unit, is_certain=unit.state == "placed" or unit.boots[0] == boot)
                continue
            for i, name in enumerate(unit.boots):
                if name == boot:
                    turn = (-self.priority(unit), self.runs[unit.run].seq, step.number)
                    # rows of equal turn go by their names
                    self.repairs.append(Repair(unit, i, (*turn, row_name(unit.id, unit.epoch, i))))
            unit.boots = tuple("" if name == boot else name for name in unit.boots)
        gone = self.boots.pop(boot)
        others = [other for other in self.boots.values() if other.machine == gone.machine]
        for other in others:  # in the order of their registration
            offered = {dim for each in others for dim in each.offer}
            mine = [dim for dim in other.offer if dim.startswith("gpu:")]
            new = [f"gpu:{device}" for device in other.detected if f"gpu:{device}" not in offered]
            for dim in new[: max(0, other.limit - len(mine))]:
                other.offer[dim] = WHOLE

    def register(self, boot: Boot) -> None:
        """With what its machine has left of the devices that it detected."""
        offered = {dim for other in self.boots.values() if other.machine == boot.machine for dim in other.offer}
        left = [f"gpu:{device}" for device in boot.detected if f"gpu:{device}" not in offered]
        boot.offer.update(dict.fromkeys(left[: boot.limit], WHOLE))
        self.boots[boot.name] = boot

    def judge(self, unit: Unit, boot: Boot, *, failed: bool, is_quick: bool, place: str) -> None:
        """`place` stands for all that tells one failure from another."""
        if not failed:
            boot.quick = []
            return
        if boot.worker not in unit.avoid and len(unit.avoid) < MAX_AVOIDED:
            unit.avoid.append(boot.worker)
        failure = (unit.run, unit.step, place)
        seen = self.failures.setdefault(failure, set())
        was_proven = len(seen) > 1
        seen.add(boot.worker)
        if len(seen) > 1:
            if not was_proven:
                self.acquit(failure)
            return
        if not is_quick:
            boot.quick = []
            return
        is_last = not self.able(unit.shape, unit.run) - {boot.worker}
        if is_last or unit.id in boot.quick:
            return
        boot.quick.append(unit.id)
        if len(boot.quick) >= QUICK_UNITS and boot.state == "up":
            boot.quick, boot.state, boot.blamed = [], "quarantined", failure
            self.take_back(boot.name)

    def acquit(self, failure: tuple[str, str, str]) -> None:
        """It fails on a second worker too: those that were taken out of service for it come back."""
        for boot in self.boots.values():
            if boot.state == "quarantined" and boot.blamed == failure:
                boot.state, boot.quick = "up", []

    # --- the reservation ---

    def is_kept(self, kept: Reservation) -> bool:
        """Whether it still waits, and the boots and pools that it names could meet it if they were idle."""
        if not self.still_waits(kept) or any(n > self.pools[pool] for pool, n in kept.pools.items()):
            return False
        for name, _ in kept.parts:
            boot = self.boots.get(name)
            if boot is None or not boot.takes or any(n > boot.offer.get(dim, 0) for dim, n in kept.hold(name).items()):
                return False
        return True

    def to_reserve(self) -> Unit | None:
        """The first in order that waited long and that the accepting workers could meet if they were idle.

        Of those with equal requests in a step the first speaks for all.
        """
        heads: dict[tuple[str, str, str], int] = {}
        for unit in self.units.values():
            if unit.is_waiting:
                key = (unit.run, unit.step, unit.shape.id)
                heads[key] = min(unit.index, heads.get(key, unit.index))
        rooms = [self.room(boot, is_idle=True) for boot in self.boots.values()]
        for unit in self.in_order():
            is_head = heads[unit.run, unit.step, unit.shape.id] == unit.index
            if is_head and unit.is_aged and self.fits(unit, rooms, self.pools):
                return unit
        return None

    def check_reserved(self, kept: Reservation) -> None:
        unit = self.to_reserve()
        if unit is None or unit.id != kept.unit:
            raise Broken(f"boots are kept for {kept.unit}; the first to have them is {unit.id if unit else 'nobody'}")
        rooms = [self.room(boot, is_idle=True) for boot in self.boots.values()]
        self.check_seats(unit, kept.parts, rooms)
        if kept.pools != self.asks_of_pools(unit.shape):
            raise Broken(f"of the pools {kept.pools} is kept for {unit.id}")

    def ledger(self) -> dict[str, dict[str, tuple[dict[str, int], dict[str, int], int, bool]]]:
        """boot → row → what it says."""
        found: dict[str, dict[str, tuple[dict[str, int], dict[str, int], int, bool]]] = defaultdict(dict)
        for name, boot in self.boots.items():
            found[name] = {row: (it.vector, it.pools, it.cost, it.is_orphan) for row, it in boot.rows.items()}
        return dict(found)


def row_name(unit: str, epoch: int, bundle: int) -> str:
    return f"{unit}@{epoch}{f'#{bundle}' if bundle else ''}"
