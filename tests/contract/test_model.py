"""Random calls of every kind against a small model of placement (tests/support/placement_model.py): after each call no
token is lost or doubled, gangs are whole and as their strategy says, of those that fit the first in order is placed.

MODEL_STEPS sets the length of each walk (default 750), MODEL_SEED the first seed, MODEL_SEEDS how many there are,
MODEL_CHECK_EVERY after how many calls the invariants are recomputed too (default 8). A failure names its seed, step and
last calls; the same seed walks the same way. `-m acceptance` runs it at full size.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from broker_builder import CPU, TEMPLATE, World, shape_of, step_of, units
from placement_model import Boot, Broken, Model, Part, Parts, Reservation, Run, Shape, Step, Unit

from flowctl.broker.calls import Calls, Fence, Times
from flowctl.broker.invariants import violations

STEPS = int(os.environ.get("MODEL_STEPS", "750"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
SEEDS = int(os.environ.get("MODEL_SEEDS", "4"))
CHECK_EVERY = int(os.environ.get("MODEL_CHECK_EVERY", "8"))
FULL = [pytest.mark.acceptance, pytest.mark.timeout(3600)]
LONG_MS = 10**8
TIMES = Times(lease_ms=10**9, dispatch_ms=10**9, boot_gone_ms=150_000, reserve_ms=LONG_MS)
MOST_RUNS, MOST_BOOTS, MOST_LOG = 6, 6, 12
DEVICES = ("x", "y", "z")

SINGLES: tuple[Mapping[str, Any], ...] = (
    {"cpu": 1},
    {"cpu": 1},
    {"cpu": 2},
    {"cpu": 0.5, "memory": 1500},
    {"gpu": 0.5},
    {"gpu": 1 / 3},
    {"gpu": 1},
    {"gpu": 2},
    {"cpu": 1, "gpu": 0.25},
    {"license": 1},
    {"cpu": 1, "license": 0.5},
    {"lab": 1},
    {"cpu": 1, "labels": ["spot"]},
    {"cpu": 1, "labels": ["!spot", "zone=a"]},
)
PLAIN: tuple[Mapping[str, Any], ...] = ({"cpu": 1}, {"cpu": 0.5}, {"cpu": 0.25, "memory": 500})
GANGS: tuple[tuple[Sequence[Mapping[str, Any]], str], ...] = (
    (({"gpu": 0.1}, {"gpu": 0.9}, {"gpu": 0.9}), "PACK"),
    (({}, {"cpu": 1}, {"cpu": 1}), "PACK"),
    (({"cpu": 1}, {"cpu": 1}, {"cpu": 1}), "SPREAD"),
    (({"cpu": 1}, {"cpu": 2}), "SPREAD"),
    (({"cpu": 1}, {"cpu": 1}), "STRICT_SPREAD"),
    (({"cpu": 1, "labels": ["spot"]}, {"cpu": 1, "labels": ["!spot"]}, {"gpu": 0.5}), "STRICT_SPREAD"),
    (({"cpu": 1}, {"cpu": 1, "gpu": 0.5}), "STRICT_PACK"),
    (({"cpu": 2}, {"cpu": 2}, {"license": 0.5}), "STRICT_PACK"),
    (({"cpu": 2, "gpu": 0.3}, {"gpu": 0.3}, {"gpu": 0.7}, {"gpu": 0.7}), "PACK"),
    (({"cpu": 1, "license": 1}, {"gpu": 1}), "PACK"),
)


class Walk:
    """The server, the model beside it, and what was done so far."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.client, self.model = world, world.client, Model()
        world.calls = Calls(world.client, times=TIMES)
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self.done: Counter[str] = Counter()
        self.fences: dict[str, Fence] = {}
        self.orders: dict[str, dict[str, Any]] = {}
        self.wanted: set[str] = set()
        self.boots_made = self.runs_made = 0

    # --- what can happen ---

    def register(self) -> None:
        if len(self.model.boots) >= MOST_BOOTS:
            return
        rng, name = self.rng, f"b{self.boots_made:05}"
        self.boots_made += 1
        used = {boot.worker for boot in self.model.boots.values()}
        worker = rng.choice([f"w{i}" for i in range(8) if f"w{i}" not in used])
        detects = rng.random() < 0.5
        gpus = tuple(rng.sample(DEVICES, 3)) if detects else ()
        limit = rng.choice((None, 1, 2)) if detects else None
        boot = Boot(
            name,
            worker,
            rng.choice(("m0", "m1", "m2")),
            frozenset(rng.sample(("spot", "zone=a"), rng.randrange(3))),
            units({"cpu": rng.randint(2, 5), "slot": rng.randint(3, 6), "memory": 4000, "lab": 1}),
            only=rng.choice(sorted(self.model.runs)) if self.model.runs and rng.random() < 0.1 else "",
            detected=gpus,
            limit=99 if limit is None else limit,
        )
        logical = 0 if detects else rng.randrange(4)
        reply = self.world.register(
            name,
            worker=worker,
            machine=boot.machine,
            detected={f"gpu:{device}": 1 for device in gpus},
            declared={dim: n if dim == "memory" else n / CPU for dim, n in boot.offer.items()}
            | {f"gpu:{index}": 1 for index in range(logical)},
            devices=gpus or [str(index) for index in range(logical)],
            gpu_limit=limit,
            labels=sorted(boot.labels),
            only=boot.only,
        )
        assert reply.word == "OK", reply
        boot.offer |= {f"gpu:{index}": CPU for index in range(logical)}
        self.model.register(boot)
        self.settle()
        self.beats(boot, accepting=True)

    def beat(self) -> None:
        boot = self.one(self.model.boots)
        if boot is not None:
            self.beats(boot, accepting=self.rng.random() < 0.95)

    def beats(self, boot: Boot, *, accepting: bool) -> None:
        running = [name for name, row in boot.rows.items() if not row.is_orphan or self.rng.random() < 0.3]
        self.world.calls.worker_beat(boot.name, accepting=accepting, running=running)
        changed = boot.is_accepting != accepting or boot.is_suspect
        gone = [name for name, row in boot.rows.items() if row.is_orphan and name not in running]
        for name in gone:
            del boot.rows[name]
        boot.is_accepting, boot.is_suspect = accepting, False
        self.settle(*([(boot.name, 50)] if changed or gone else []))

    def drain(self) -> None:
        boot = self.one(self.model.boots)
        if boot is not None:
            self.world.calls.worker_drain(boot.name, reason="stops")
            boot.state, boot.is_accepting = "draining", False
            self.model.take_back(boot.name)
            self.settle((None, 16))

    def leave(self) -> None:
        leaving = {name: boot for name, boot in self.model.boots.items() if boot.state == "draining"}
        boot = self.one(leaving if leaving and self.rng.random() < 0.8 else self.model.boots)
        if boot is not None:
            self.done["gangs that lost a bundle"] += sum(
                unit.boots[0] != boot.name for unit in self.model.on(boot.name, "running")
            )
            self.world.calls.worker_leave(boot.name, text="goodbye")
            self.model.leave(boot.name)
            self.settle((None, 16))

    def rush(self) -> None:
        """Work gathers while nobody accepts; then each worker that opens takes as much as it can."""
        boots = [boot for boot in self.model.boots.values() if boot.state == "up"]
        for boot in boots:
            self.beats(boot, accepting=False)
        for _ in range(3):
            self.submit(is_plain=True)
        for boot in boots:
            if boot.name in self.model.boots:
                self.beats(boot, accepting=True)

    def restore(self) -> None:
        boot = self.one({name: boot for name, boot in self.model.boots.items() if boot.state == "quarantined"})
        if boot is not None:
            assert self.world.calls.worker_restore(boot.name).word == "OK"
            boot.state, boot.quick = "up", []
            self.settle((boot.name, 16))

    def submit(self, *, is_plain: bool = False) -> None:
        """A run of a few steps; a plain one asks for what most workers have."""
        rng = self.rng
        if sum(self.world.run_state(run) in ("submitted", "running") for run in self.model.runs) >= MOST_RUNS:
            return
        name = f"r{self.runs_made:05}"
        self.runs_made += 1
        names = ["a", "b", "c"][: rng.randint(1, 3)]
        priority, weight = rng.choice((0, 0, 0, 1)), rng.choice((1, 1, 2, 0.5))
        steps = [
            step_of(
                step,
                total=rng.randint(1, 5),
                after=[names[i - 1]] if i and rng.random() < 0.2 else [],
                max_worker_losses=rng.choice((0, 2, -1)),
                priority=rng.choice((0, 0, 0, 1, -1)),
                max_concurrent=rng.choice((None, None, None, 1, 2)),
                on_bundle_loss=rng.choice(("fail", "repair")),
            )
            | {"shape": "", "shape_json": ""}
            for i, step in enumerate(names)
        ]
        self.world.create(name, *steps, fields={"priority": priority, "weight": weight})
        run = Run(name, int(self.client.hget(f"fc:run:{name}", "seq")), {}, priority, weight)
        for i, step in enumerate(steps):
            repairs = step["on_bundle_loss"] == "repair"
            run.steps[step["name"]] = Step(step["name"], i, step["priority"], step["max_concurrent"] or None, repairs)
        self.model.runs[name] = run
        self.settle()
        for step in steps:
            self.add(name, step["name"], step["total"], is_plain=is_plain)

    def add(self, run: str, step: str, total: int, *, is_plain: bool) -> None:
        picks: list[Shape] = []
        texts: dict[str, str] = {}
        bundles, strategy = self.pick(is_plain=is_plain)
        for _ in range(total):
            if self.rng.random() < 0.3:
                bundles, strategy = self.pick(is_plain=is_plain)
            shape, text = shape_of(bundles, strategy)
            texts[shape] = text
            needs = tuple(tuple(sorted(units({**bundle, "slot": 1}).items())) for bundle in bundles)
            picks.append(Shape(shape, needs, tuple(tuple(bundle.get("labels") or ()) for bundle in bundles), strategy))
        waits = self.world.step_state(step, run=run) == "waiting"
        reply = self.world.calls.trials_add(run, step, first=0, groups=[(shape.id, 1) for shape in picks], shapes=texts)
        assert reply.word in ("OK", "ENDED"), reply
        if reply.word == "OK":
            for index, pick in enumerate(picks):
                unit = Unit(f"{run}:{step}:{index}", run, step, index, pick)
                self.model.units[unit.id] = unit
            self.settle(*([] if waits else [(None, 50)]))

    def pick(self, *, is_plain: bool) -> tuple[Sequence[Mapping[str, Any]], str]:
        if is_plain:
            return (self.rng.choice(PLAIN),), "PACK"
        return self.rng.choice(GANGS) if self.rng.random() < 0.4 else ((self.rng.choice(SINGLES),), "PACK")

    def claim(self) -> None:
        unit = self.one(self.units_in("placed"))
        if unit is None:
            return
        text = TEMPLATE.replace("@@UNIT@@", unit.id).replace("@@EPOCH@@", str(unit.epoch))
        assert self.client.lrem(f"fcq.{unit.boots[0]}", 0, text) == 1, f"the message of {unit.id} was not sent once"
        fence = self.fences[unit.id] = Fence(unit.id, unit.epoch, f"{self.rng.getrandbits(64):016x}")
        reply = self.world.calls.trial_claim(fence, boot=unit.boots[0])
        if reply.word == "CANCELLED":
            self.model.give_back(unit)
        else:
            held = Counter(dict(self.model.boots[unit.boots[0]].rows[f"{unit.id}@{unit.epoch}"].vector))
            held.update(self.model.boots[unit.boots[0]].rows[f"{unit.id}@{unit.epoch}"].pools)
            assert reply.value["tokens"] == held
        self.settle()

    def finish(self) -> None:
        unit = self.one(self.units_in("running"))
        if unit is None:
            return
        to = self.rng.choice(("completed", "completed", "completed", "failed", "pending", "pending"))
        if unit.id in self.wanted:
            to = "cancelled"
        failed, slow, now = to in ("failed", "pending"), self.rng.random() < 0.1, self.world.now_ms()
        self.client.hset(f"fc:unit:{unit.id}", "started_ms", now - 20_000 if slow else now)
        boot = self.model.boots[unit.boots[0]]
        place = boot.worker if self.rng.random() < 0.9 else "everywhere"
        delay_ms, cause = self.rng.choice((0, 0, 60_000)), {"kind": "exception", "text": "", "place": place}
        self.world.finish(self.fences[unit.id], to, fails_up=int(failed), delay_ms=delay_ms, cause=cause)
        self.model.give_back(unit)
        was = boot.state
        self.model.judge(unit, boot, failed=failed, is_quick=not slow, place=place)
        self.done["quarantines"] += boot.state != was
        self.settle((boot.name, 16), after=unit)

    def handback(self) -> None:
        unit = self.one(self.units_in("running"))
        if unit is not None:
            delay_ms = self.rng.choice((0, 60_000))
            self.world.calls.trial_handback(self.fences[unit.id], reason="why", delay_ms=delay_ms)
            self.model.give_back(unit)
            self.settle()

    def die(self) -> None:
        """The guardian of a unit dies, and its worker knows."""
        unit = self.one(self.units_in("placed", "running"))
        if unit is not None:
            fence, boot = self.fences.get(unit.id), unit.boots[0]
            if unit.state == "placed" or fence is None:
                fence = Fence(unit.id, unit.epoch, "f" * 16)
            assert self.world.release(fence, boot=boot).word == "OK"
            self.model.give_back(unit)
            self.settle((boot, 16))

    def expire(self) -> None:
        """A lease or a dispatch deadline passes."""
        unit = self.one(self.units_in("placed", "running"))
        if unit is not None:
            self.world.expire(unit.id)
            boot, was = self.model.boots[unit.boots[0]], unit.state
            self.model.give_back(unit, is_certain=was == "placed")
            if was == "running":
                self.suspect(boot)
            self.tick()

    def silence(self) -> None:
        boot = self.one(self.model.boots)
        if boot is not None:
            self.suspect(boot)
            self.tick(silent=boot.name)

    def suspect(self, boot: Boot) -> None:
        if not boot.is_suspect:
            boot.is_suspect, boot.is_accepting = True, False
            self.model.take_back(boot.name)

    def cancel_unit(self) -> None:
        unit = self.one(
            {unit.id: unit for unit in self.model.units.values() if unit.state in ("pending", "placed", "running")}
        )
        if unit is not None:
            was, boot = unit.state, unit.boots[:1]
            self.wanted.add(unit.id)
            self.world.calls.unit_cancel(unit.id)
            if was == "placed":
                self.model.give_back(unit)
            self.settle(*([(boot[0], 16)] if was == "placed" else []))

    def cancel_run(self) -> None:
        run = self.one(self.model.runs)
        if run is not None:
            self.world.calls.run_cancel(run.name)
            self.wanted |= {unit.id for unit in self.model.units.values() if unit.run == run.name}
            self.settle()

    def set_pool(self) -> None:
        size = self.rng.choice((None, 0, 0.5, 1, 2, 3))
        amount = None if size is None else int(size * CPU)
        self.world.calls.pool_set("license", amount)
        if amount is None:
            self.model.pools.pop("license", None)
        else:
            self.model.pools["license"] = amount
        self.settle((None, 50))

    def set_run(self) -> None:
        run = self.one(
            {
                name: run
                for name, run in self.model.runs.items()
                if self.world.run_state(name) in ("submitted", "running")
            }
        )
        if run is None:
            return
        step = self.one(run.steps) if self.rng.random() < 0.5 else None
        if step is not None and self.world.step_state(step.name, run=run.name) not in ("waiting", "ready", "running"):
            return
        name = self.rng.choice(("max_concurrent_trials", "max_concurrent_trials", "priority", "weight"))
        of = step or run
        if name == "max_concurrent_trials":
            value: float | None = self.rng.choice((None, None, 1, 2, 4))
            of.limit = None if value is None else int(value)
        elif name == "priority":
            value = of.priority = self.rng.randint(-1, 2)
        else:
            value, step = self.rng.choice((0.5, 1, 3)), None
            run.weight = value
        assert self.world.calls.run_set(run.name, step=step.name if step else "", name=name, value=value).word == "OK"
        self.settle((None, 50))

    def mature(self) -> None:
        unit = self.one({unit: unit for unit in self.client.zrange("fc:delayed", 0, -1)})
        if unit is not None:
            self.world.mature(unit)

    def age(self) -> None:
        """A unit has waited so long that boots may be kept for it."""
        unit = self.one({unit.id: unit for unit in self.model.units.values() if unit.is_waiting})
        if unit is not None:
            self.world.age(unit.id, LONG_MS)
            unit.is_aged = True

    def tick(self, *, silent: str = "") -> None:
        for boot in self.model.boots:
            self.client.zadd("fc:boots", {boot: self.world.now_ms() - (6_000 if boot == silent else 0)})
        self.world.tick()
        self.settle((None, 50), is_tick=True)

    # --- how ---

    def one(self, items: Mapping[str, Any]) -> Any:
        return items[self.rng.choice(sorted(items))] if items else None

    def units_in(self, *states: str) -> dict[str, Unit]:
        return {unit.id: unit for unit in self.model.units.values() if unit.state in states}

    def step(self) -> None:
        actions, weights = zip(*ACTIONS.items(), strict=True)
        action = self.rng.choices(actions, weights)[0]
        self.log.append(action)
        getattr(self, action)()
        self.forget_ended()

    def settle(self, *passes: tuple[str | None, int], after: Unit | None = None, is_tick: bool = False) -> None:
        """What the broker did is held against the model, which then has done the same."""
        placed, repaired = self.look()
        self.done["placed"] += len(placed)
        self.done["gangs placed"] += sum(len(parts) > 1 for parts in placed.values())
        was_kept = self.model.reserved
        for only, limit in passes:
            done = self.model.explain(placed, repaired, only=only, limit=limit)
            if after is not None and not done and (self.model.pools or self.has_limit(after)):
                self.model.explain(placed, repaired, only=None, limit=limit)
        if placed or repaired:
            raise Broken(f"placed, but it was not their turn or they do not fit: {placed} {repaired}")
        self.done["placed where kept"] += was_kept is not None and self.model.reserved is None
        self.check_reservation(is_tick=is_tick)
        self.check_ledger()
        self.done["calls"] += 1
        if self.done["calls"] % CHECK_EVERY == 0 and (broken := violations(self.client)):
            raise Broken(str(broken))

    def has_limit(self, unit: Unit) -> bool:
        run = self.model.runs[unit.run]
        return run.limit is not None or run.steps[unit.step].limit is not None

    def look(self) -> tuple[dict[str, Parts], dict[tuple[str, int], Part]]:
        """Takes over states of units, steps and runs; returns what was newly placed or repaired, and where."""
        model = self.model
        pipe = self.client.pipeline(transaction=False)
        for run in model.runs.values():
            pipe.hget(f"fc:run:{run.name}", "wanted")
            for name in run.steps:
                pipe.hget(f"fc:step:{run.name}:{name}", "state")
        for name in model.units:
            pipe.hmget(f"fc:unit:{name}", "state", "epoch", "gang")
        pipe.zrange("fc:delayed", 0, -1)
        answers = iter(pipe.execute())
        is_open = {}
        for run in model.runs.values():
            wanted = next(answers)
            for step in run.steps.values():
                state = next(answers)
                is_open[run.name, step.name] = state in ("ready", "running") and wanted != "cancel"
                if state in ("completed", "failed", "skipped", "cancelled"):
                    step.limit = None
        seen = {unit: next(answers) for unit in model.units}
        delayed = set(next(answers))
        placed: dict[str, Parts] = {}
        repaired: dict[tuple[str, int], Part] = {}
        for unit in model.units.values():
            state, epoch = seen[unit.id][0], int(seen[unit.id][1] or 0)
            if epoch == unit.epoch + 1 and not unit.boots:
                assert state == "placed"
                bundles = self.world.bundles(unit.id)
                placed[unit.id] = tuple((boot, tuple(sorted(vector.items()))) for boot, vector in bundles)
                unit.state, unit.is_waiting = "", True
            elif epoch == unit.epoch and (state in ("placed", "running")) == bool(unit.boots):
                unit.state = state
                if "" in unit.boots:
                    repaired |= self.repairs_of(unit, json.loads(seen[unit.id][2]))
                unit.is_waiting = state == "pending" and unit.id not in delayed and is_open[unit.run, unit.step]
            else:
                raise Broken(f"{unit.id} is {state} at epoch {epoch}; the model has {unit}")
        return placed, repaired

    def repairs_of(self, unit: Unit, boots: list[str]) -> dict[tuple[str, int], Part]:
        found = {}
        for i, boot in enumerate(boots):
            if unit.boots[i] == "" and boot:
                row = json.loads(self.client.hget(f"fc:alloc:{boot}", f"{unit.id}@{unit.epoch}#{i}"))
                found[unit.id, i] = (boot, tuple(sorted(row["v"].items())))
                self.done["bundles repaired"] += 1
            elif boot != unit.boots[i]:
                raise Broken(f"{unit.id} is on {boots}; the model has {unit}")
        return found

    def check_reservation(self, *, is_tick: bool) -> None:
        model, text = self.model, self.client.get("fc:reserve")
        kept = None
        if text:
            said = json.loads(text)
            parts = tuple((part["boot"], tuple(sorted(part["v"].items()))) for part in said["parts"])
            kept = Reservation(said["unit"], parts, said["pools"])
        if kept == model.reserved and (not is_tick or kept is None or model.is_kept(kept)):
            if is_tick and kept is None and (unit := model.to_reserve()):
                raise Broken(f"nothing is kept for {unit}")
            return
        if not is_tick or (model.reserved is not None and model.is_kept(model.reserved)):
            raise Broken(f"boots are kept for {kept}, the model keeps them for {model.reserved}")
        if kept is not None:
            model.check_reserved(kept)
            self.done["reservations"] += 1
        elif unit := model.to_reserve():
            raise Broken(f"nothing is kept for {unit}")
        model.reserved = kept

    def check_ledger(self) -> None:
        model = self.model
        pipe = self.client.pipeline(transaction=False)
        for name in model.boots:
            pipe.hgetall(f"fc:alloc:{name}")
            pipe.hgetall(f"fc:offer:{name}")
            pipe.hmget(f"fc:boot:{name}", "state", "accepting")
        pipe.hgetall("fc:poolused")
        pipe.hgetall("fc:pools")
        pipe.zrange("fc:boots", 0, -1)
        answers = iter(pipe.execute())
        for name, boot in model.boots.items():
            rows = {row: json.loads(text) for row, text in next(answers).items()}
            said = {row: (it["v"], it.get("p", {}), it.get("w", 0), it["s"] == "orphan") for row, it in rows.items()}
            if said != model.ledger()[name]:
                raise Broken(f"rows of {name} are {said}, the model has {model.ledger()[name]}")
            offer = {dim: int(n) for dim, n in next(answers).items() if int(n)}
            if offer != boot.offer:
                raise Broken(f"{name} offers {offer}, the model says {boot.offer}")
            state, accepting = next(answers)
            if (state, accepting) != (boot.state, str(int(boot.is_accepting))):
                raise Broken(f"{name} is {state}, accepting {accepting}; the model says {boot}")
        used = {pool: int(n) for pool, n in next(answers).items()}
        if used != {pool: n for pool, n in model.pool_used().items() if n}:
            raise Broken(f"of the pools {used} is in use, by the model {model.pool_used()}")
        assert {pool: int(n) for pool, n in next(answers).items()} == model.pools
        assert set(next(answers)) == set(model.boots)

    def forget_ended(self) -> None:
        """Runs that have ended and hold nothing any more leave the server: each walk stays small however long it is."""
        for name in list(self.model.runs):
            holds = any(row.startswith(f"{name}:") for boot in self.model.boots.values() for row in boot.rows)
            if holds or self.world.run_state(name) not in ("completed", "failed", "cancelled"):
                continue
            if self.model.reserved is not None and self.model.reserved.unit.startswith(f"{name}:"):
                continue
            del self.model.runs[name]
            for unit in [unit for unit in self.model.units.values() if unit.run == name]:
                del self.model.units[unit.id]
                self.client.zrem("fc:delayed", unit.id)
                self.client.srem("fc:leftovers", unit.id)
            self.client.delete(*self.client.keys(f"fc:*:{name}"), *self.client.keys(f"fc:*:{name}:*"))
            self.client.zrem("fc:runs", name)
            self.client.srem("fc:journals", name)


ACTIONS: dict[str, int] = {
    "register": 6,
    "beat": 14,
    "drain": 1,
    "leave": 3,
    "restore": 3,
    "rush": 2,
    "submit": 10,
    "claim": 30,
    "finish": 26,
    "handback": 2,
    "die": 3,
    "expire": 3,
    "silence": 1,
    "cancel_unit": 2,
    "cancel_run": 1,
    "set_pool": 3,
    "set_run": 4,
    "mature": 3,
    "age": 6,
    "tick": 8,
}


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((seed, STEPS) for seed in range(SEED, SEED + SEEDS)),
        *(pytest.param(seed, 20_000, marks=FULL) for seed in range(SEED + 100, SEED + 103)),
    ],
)
def test_the_broker_does_what_the_model_says(world: World, seed: int, steps: int) -> None:
    walk = Walk(world, seed)
    try:
        for _ in range(3):
            walk.register()
        for _ in range(steps):
            walk.step()
    except (Broken, AssertionError) as error:
        raise AssertionError(f"seed {seed}, step {len(walk.log)}: {error}\nlast: {walk.log[-MOST_LOG:]}") from error

    print(f"\nseed {seed}, {steps} steps: {dict(walk.done)}")
