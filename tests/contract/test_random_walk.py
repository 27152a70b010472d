"""Random calls in any order, with lost leases, silent boots, repeats and stale fences between them: the invariants hold
throughout, no unit is lost, one attempt at a time speaks for a unit, and every run ends once workers keep working.

WALK_STEPS sets the length of all walks together (default 3000, 500 each), WALK_SEED the first seed, WALK_CHECK_EVERY
after how many steps the invariants are recomputed (default 5; 1 to find the step that broke one).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from broker_builder import World, step_of

from flowctl.broker.calls import Fence, Reply
from flowctl.broker.invariants import violations
from flowctl.dsl.states import RUN_ENDED

STEPS = 500
WALKS = max(1, int(os.environ.get("WALK_STEPS", "3000")) // STEPS)
SEED = int(os.environ.get("WALK_SEED", "1"))
CHECK_EVERY = int(os.environ.get("WALK_CHECK_EVERY", "5"))
MACHINES = ("m1", "m2")


@dataclass
class Guardian:
    """A process that once claimed: it may still run although its lease is lost."""

    fence: Fence
    boot: str
    seq: int = 0

    @property
    def key(self) -> str:
        return f"{self.fence.unit}@{self.fence.epoch}"


@dataclass
class Walk:
    """The world, what physically runs in it, and what was done so far."""

    world: World
    rng: random.Random
    guardians: list[Guardian] = field(default_factory=list)
    boots: list[str] = field(default_factory=list)
    totals: dict[tuple[str, str], int] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    fences: list[tuple[Fence, str]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)

    # --- what can happen ---

    def register(self) -> None:
        if len(self.boots) >= 5:
            return
        boot = f"b{len(self.fences)}x{self.rng.randrange(10**6)}"
        cores = self.rng.choice((1, 2, 4))
        detects = self.rng.random() < 0.5
        self.world.register(
            boot,
            worker=f"w{self.rng.randrange(6)}" if self.rng.random() < 0.3 else f"w-{boot}",
            machine=self.rng.choice(MACHINES),
            detected={"cpu": cores} if detects else {},
            declared={"slot": 3, "license": 1} | ({} if detects else {"cpu": cores}),
            swept=self.rng.random() < 0.5,
        )
        if self.world.client.zscore("fc:boots", boot) is not None:
            self.boots.append(boot)
        self.forget_gone()

    def beat(self) -> None:
        boot = self.one(self.boots)
        if boot is None:
            return
        running = [guardian.key for guardian in self.guardians if guardian.boot == boot]
        self.world.beat(boot, accepting=boot not in self.drained and self.rng.random() < 0.9, running=running)

    def register_again(self) -> None:
        boot = self.one(self.boots)
        if boot is not None:
            record = self.world.client.hgetall(f"fc:boot:{boot}")
            running = [guardian.key for guardian in self.guardians if guardian.boot == boot]
            self.world.register(
                boot,
                worker=record["worker"],
                machine=record["machine"],
                detected={"cpu": 2} if record["detected"] != "{}" else {},
                declared={"slot": 3, "license": 1} | ({} if record["detected"] != "{}" else {"cpu": 4}),
                running=running,
                swept=False,
            )

    def leave(self) -> None:
        boot = self.one(self.boots)
        if boot is not None:
            self.world.calls.worker_leave(boot, text="goodbye")
            self.forget_gone()

    def drain(self) -> None:
        boot = self.one(self.boots)
        if boot is not None:
            self.drained.add(boot)
            self.again(lambda: self.world.calls.worker_drain(boot, reason="drains"))

    def submit(self) -> None:
        run = f"r{len(self.runs)}"
        names = ["a", "b", "c"][: self.rng.randint(1, 3)]
        steps = [
            step_of(
                name,
                total=self.rng.randint(1, 5),
                after=[other for other in names[:i] if self.rng.random() < 0.5],
                kind=self.rng.choice(("stage", "experiment")),
                max_worker_losses=self.rng.choice((0, 2, -1, "none")),
                max_failures=self.rng.choice((0, 1, -1)),
                cpu=self.rng.choice((1, 1, 2)),
                license=int(self.rng.random() < 0.2),
            )
            for i, name in enumerate(names)
        ]
        self.again(lambda: self.world.create(run, *steps))
        self.runs.append(run)
        self.totals |= {(run, step["name"]): step["total"] for step in steps}

    def expand(self) -> None:
        name = self.one(list(self.totals))
        if name is None:
            return
        run, step = name
        first = self.rng.choice((0, 0, self.rng.randint(0, self.totals[name] - 1)))
        n = self.rng.randint(1, self.totals[name] - first)
        self.again(lambda: self.world.add(run, step, first=first, n=n))

    def claim(self) -> None:
        boot = self.one([boot for boot in self.boots if self.world.client.llen(f"fcq.{boot}")])
        if boot is None:
            return
        unit, epoch = self.world.messages(boot)[0]
        self.world.client.rpop(f"fcq.{boot}")
        fence = Fence(unit, epoch, f"{self.rng.getrandbits(64):016x}")
        self.fences.append((fence, boot))
        reply = self.again(lambda: self.world.calls.trial_claim(fence, boot=boot), same=("CANCELLED", "STALE"))
        if reply.word == "OK":
            for other in self.guardians:
                if other.fence.unit == unit:
                    assert self.world.calls.trial_renew(other.fence).word == "LOST", f"two speak for {unit}"
            self.guardians.append(Guardian(fence, boot))

    def report(self) -> None:
        guardian = self.one(self.guardians)
        if guardian is not None:
            guardian.seq += 1
            value = self.rng.choice((None, 0.5, self.rng.random(), float("nan"), float("inf"), 1e300))
            saves, seq, fence = self.rng.random() < 0.3, guardian.seq, guardian.fence
            reply = self.again(lambda: self.world.report(fence, seq=seq, value=value, saves=saves))
            self.heard(guardian, reply)

    def renew(self) -> None:
        guardian = self.one(self.guardians)
        if guardian is not None:
            self.heard(guardian, self.world.calls.trial_renew(guardian.fence))

    def finish(self) -> None:
        guardian = self.one(self.guardians)
        if guardian is not None:
            to = self.rng.choice(("completed", "completed", "failed", "cancelled", "pending", "placed"))
            delay, fence = self.rng.choice((0, 60_000)), guardian.fence
            reply = self.again(lambda: self.world.finish(fence, to, delay_ms=delay, fails_up=1))
            if reply.word != "BAD_STATE":
                self.guardians.remove(guardian)

    def handback(self) -> None:
        guardian = self.one(self.guardians)
        if guardian is not None:
            counted, delay, fence = self.rng.random() < 0.5, self.rng.choice((0, 60_000)), guardian.fence
            self.again(lambda: self.world.calls.trial_handback(fence, reason="why", delay_ms=delay, counted=counted))
            self.guardians.remove(guardian)

    def die(self) -> None:
        """A guardian dies and its worker says so."""
        guardian = self.one(self.guardians)
        if guardian is not None:
            self.guardians.remove(guardian)
            self.again(
                lambda: self.world.release(guardian.fence, boot=guardian.boot), same=("FREED", "LOST"), other="LOST"
            )

    def vanish(self) -> None:
        """A guardian dies unnoticed."""
        guardian = self.one(self.guardians)
        if guardian is not None:
            self.guardians.remove(guardian)

    def stale(self) -> None:
        """A fence of the past speaks up in every way; unless it is the present one, nothing may change."""
        if not self.fences:
            return
        fence, boot = self.rng.choice(self.fences)
        if any(guardian.fence == fence for guardian in self.guardians):
            return
        current = self.world.client.hmget(f"fc:unit:{fence.unit}", "epoch", "nonce", "state")
        if current[0] == str(fence.epoch):
            return
        before = self.world.dump()
        assert self.world.calls.trial_claim(fence, boot=boot).word == "STALE"
        assert self.world.calls.trial_renew(fence).word == "LOST"
        assert self.world.report(fence, seq=99).word == "LOST"
        assert self.world.finish(fence).word in ("LOST", "OK")
        assert self.world.calls.trial_handback(fence, reason="late").word in ("LOST", "OK")
        assert self.world.dump() == before

    def cancel_unit(self) -> None:
        name = self.one(list(self.totals))
        if name is not None:
            unit = f"{name[0]}:{name[1]}:{self.rng.randrange(self.totals[name])}"
            self.again(lambda: self.world.calls.unit_cancel(unit), same=("NOT_FOUND", "ENDED"), other="ENDED")

    def cancel_run(self) -> None:
        run = self.one(self.runs)
        if run is not None and self.rng.random() < 0.3:
            self.again(lambda: self.world.calls.run_cancel(run), other="ENDED")

    def expire(self) -> None:
        unit = self.one(self.world.client.zrange("fc:deadlines", 0, -1))
        if unit is not None:
            self.world.expire(unit)
            if self.rng.random() < 0.7:
                self.tick()

    def mature(self) -> None:
        unit = self.one(self.world.client.zrange("fc:delayed", 0, -1))
        if unit is not None:
            self.world.mature(unit)

    def silence(self) -> None:
        boot = self.one(self.boots)
        if boot is not None:
            self.world.silence(boot, self.rng.choice((6_000, 200_000)))
            self.tick()

    def tick(self) -> None:
        if self.rng.random() < 0.1:
            self.world.client.hset("fc:tick", "last_ms", self.world.now_ms() - 3_000)
            self.world.calls.tick()
        else:
            self.world.tick(limit=self.rng.choice((1, 50)))
        self.forget_gone()

    def take_expansion(self) -> None:
        reply = self.world.calls.expand_take(expand_ms=0)
        if reply.word == "OK":
            run, step, expanded, total = reply.rest
            self.world.add(run, step, first=int(expanded), n=int(total) - int(expanded))

    def journal(self) -> None:
        reply = self.world.calls.journal_take(owner="o")
        if reply.word == "OK":
            run, number, after, _ = reply.rest
            events = self.world.client.xrange(f"fc:events:{run}", min=f"({after}", count=10)
            last = events[-1][0] if events else ""
            self.world.calls.journal_done(run, owner="o", number=int(number), last_id=last, keep_ms=0)

    def trim(self) -> None:
        guardian = self.one(self.guardians)
        if guardian is not None:
            self.world.calls.tail_trim(guardian.fence, seq=guardian.seq)

    # --- how ---

    def one(self, items: list[Any]) -> Any:
        return self.rng.choice(sorted(items, key=str)) if items else None

    def again(self, call: Callable[[], Reply], *, same: tuple[str, ...] = (), other: str = "") -> Reply:
        """Makes a call; sometimes its reply is lost and it is made again: the same word, or the named other one."""
        reply = call()
        if self.rng.random() < 0.3:
            second = call()
            allowed = {reply.word, other, *same} - {""}
            assert second.word in allowed, f"first {reply}, then {second}"
        return reply

    def heard(self, guardian: Guardian, reply: Reply) -> None:
        if reply.word == "LOST":
            self.guardians.remove(guardian)

    def forget_gone(self) -> None:
        known = set(self.world.client.zrange("fc:boots", 0, -1))
        gone = [boot for boot in self.boots if boot not in known]
        self.boots = [boot for boot in self.boots if boot in known]
        self.guardians = [guardian for guardian in self.guardians if guardian.boot not in gone]

    def begin(self) -> None:
        for action in ("register", "register", "register", "submit", "submit", "submit"):
            getattr(self, action)()
        for boot in self.boots:
            self.world.beat(boot)

    def step(self) -> None:
        actions, weights = zip(*ACTIONS.items(), strict=True)
        action = self.rng.choices(actions, weights)[0]
        self.log.append(action)
        getattr(self, action)()

    # --- the end ---

    def settle(self) -> None:
        """Workers keep working: every run must end."""
        client, world = self.world.client, self.world
        for boot in self.boots:
            world.calls.worker_leave(boot, text="goodbye")
        self.boots, self.guardians = ["last"], []
        world.boot("last", cpu=8, slot=20, license=2)
        for _ in range(400):
            if all(world.run_state(run) in RUN_ENDED for run in self.runs):
                return
            world.beat("last", running=[guardian.key for guardian in self.guardians])
            for unit in client.zrange("fc:delayed", 0, -1):
                world.mature(unit)
            for key in client.zrange("fc:expanding", 0, -1):
                client.zadd("fc:expanding", {key: 0})
            self.take_expansion()
            world.tick()
            while client.llen("fcq.last"):
                self.claim()
            for guardian in list(self.guardians):
                world.finish(guardian.fence, "completed")
                self.guardians.remove(guardian)
        open_runs = {run: world.run_state(run) for run in self.runs if world.run_state(run) not in RUN_ENDED}
        raise AssertionError(f"these runs do not end: {open_runs}")


ACTIONS = {
    "register": 12,
    "beat": 24,
    "register_again": 1,
    "leave": 1,
    "drain": 1,
    "submit": 6,
    "expand": 14,
    "claim": 24,
    "report": 14,
    "renew": 4,
    "finish": 7,
    "handback": 3,
    "die": 3,
    "vanish": 2,
    "stale": 2,
    "cancel_unit": 3,
    "cancel_run": 1,
    "expire": 5,
    "mature": 4,
    "silence": 1,
    "tick": 10,
    "take_expansion": 4,
    "journal": 2,
    "trim": 1,
}


@pytest.mark.parametrize("seed", range(SEED, SEED + WALKS))
def test_random_walk_keeps_the_invariants(world: World, seed: int) -> None:
    walk = Walk(world, random.Random(seed))
    walk.begin()

    for number in range(STEPS):
        walk.step()
        if number % CHECK_EVERY:
            continue
        broken = violations(world.client)
        assert broken == [], f"seed {seed}, step {len(walk.log)}: {broken}\nlast: {walk.log[-5:]}"
    walk.settle()

    for (run, step), total in walk.totals.items():
        counts = [world.count(state, step, run=run) for state in ("completed", "failed", "cancelled")]
        assert sum(counts) == total, f"seed {seed}: {run}:{step} has {counts} of {total}"
