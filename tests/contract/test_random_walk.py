"""Random calls in any order, with lost leases, silent boots, repeats and stale fences between them: the invariants hold
throughout, no unit is lost, one attempt at a time speaks for a unit, no device is in two processes at once, and every
run ends once workers keep working.

WALK_STEPS sets the length of all walks together (default 3000, 500 each), WALK_SEED the first seed, WALK_CHECK_EVERY
after how many steps the invariants are recomputed (default 5; 1 to find the step that broke one).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from broker_builder import World, step_of

from flowctl.broker.calls import Fence, HostFence, Reply
from flowctl.broker.invariants import violations
from flowctl.dsl.states import RUN_ENDED

STEPS = 500
WALKS = max(1, int(os.environ.get("WALK_STEPS", "3000")) // STEPS)
SEED = int(os.environ.get("WALK_SEED", "1"))
CHECK_EVERY = int(os.environ.get("WALK_CHECK_EVERY", "5"))
MACHINES = ("m1", "m2")
DEVICES = ("x", "y", "z")
GANGS: tuple[dict[str, Any], ...] = (
    {"bundles": [{"cpu": 1}, {"cpu": 1}], "strategy": "STRICT_SPREAD"},
    {"bundles": [{}, {"cpu": 1, "license": 1}, {"gpu": 0.5}], "strategy": "PACK"},
    {"bundles": [{"gpu": 0.4}, {"gpu": 0.6}, {"cpu": 1}], "strategy": "SPREAD"},
    {"bundles": [{"cpu": 1}, {"gpu": 0.3, "quota": 1}], "strategy": "STRICT_PACK"},
)


@dataclass
class Host:
    """Code that a guardian's attempt runs on one of its further bundles."""

    fence: HostFence
    boot: str

    @property
    def key(self) -> str:
        return f"{self.fence.unit}@{self.fence.epoch}#{self.fence.bundle}"


@dataclass
class Guardian:
    """A process that once claimed: it may still run although its lease is lost."""

    fence: Fence
    boot: str
    seq: int = 0
    devices: frozenset[tuple[str, str]] = frozenset()

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
    hosts: list[Host] = field(default_factory=list)
    numbers: int = 0

    # --- what can happen ---

    def register(self) -> None:
        if len(self.boots) >= 5:
            return
        boot, rng = f"b{len(self.fences)}x{self.rng.randrange(10**6)}", self.rng
        cores, detects, logical = rng.choice((1, 2, 4)), rng.random() < 0.5, rng.randrange(3)
        cards = rng.sample(DEVICES, 3) if detects else []
        self.world.register(
            boot,
            worker=f"w{rng.randrange(6)}" if rng.random() < 0.3 else f"w-{boot}",
            machine=rng.choice(MACHINES),
            detected={"cpu": cores} | {f"gpu:{card}": 1 for card in cards} if detects else {},
            declared={"slot": 5, "license": 1}
            | ({} if detects else {"cpu": cores} | {f"gpu:{index}": 1 for index in range(logical)}),
            devices=cards or [str(index) for index in range(logical)],
            gpu_limit=rng.choice((None, 1, 2)) if detects else None,
            labels=rng.sample(("spot", "zone=a"), rng.randrange(3)),
            swept=rng.random() < 0.5,
        )
        if self.world.client.zscore("fc:boots", boot) is not None:
            self.boots.append(boot)
        self.forget_gone()

    def beat(self) -> None:
        boot = self.one(self.boots)
        if boot is None:
            return
        self.world.beat(
            boot, accepting=boot not in self.drained and self.rng.random() < 0.9, running=self.runs_on(boot)
        )

    def register_again(self) -> None:
        boot = self.one(self.boots)
        if boot is not None:
            record = self.world.client.hgetall(f"fc:boot:{boot}")
            offer = self.world.client.hgetall(f"fc:offer:{boot}")
            cards = [device["id"] for device in json.loads(record["devices"])]
            detects, limit = record["detected"] != "{}", record["gpu_limit"]
            self.world.register(
                boot,
                worker=record["worker"],
                machine=record["machine"],
                detected={"cpu": 2} | {f"gpu:{card}": 1 for card in cards} if detects else {},
                declared={"slot": 5, "license": 1}
                | ({} if detects else {"cpu": 4} | {f"gpu:{card}": 1 for card in cards}),
                devices=cards,
                gpu_limit=int(limit) if limit else None,
                labels=json.loads(record["labels"]),
                running=self.runs_on(boot),
                swept=False,
            )
            kept = self.world.client.hgetall(f"fc:offer:{boot}")
            assert all(int(n) <= int(kept.get(dim, 0)) for dim, n in offer.items() if dim.startswith("gpu:"))

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
                priority=self.rng.choice((0, 0, 1)),
                max_concurrent=self.rng.choice((None, None, 2)),
                pending_timeout_ms=self.rng.choice((None, None, 3_600_000)),
                on_bundle_loss=self.rng.choice(("fail", "repair")),
                labels=self.rng.choice(((), (), ("spot",), ("!spot",))),
                **self.request(),
            )
            for i, name in enumerate(names)
        ]
        self.again(lambda: self.world.create(run, *steps))
        self.runs.append(run)
        self.totals |= {(run, step["name"]): step["total"] for step in steps}

    def request(self) -> dict[str, Any]:
        if self.rng.random() < 0.4:
            return self.rng.choice(GANGS)
        return {
            "cpu": self.rng.choice((1, 1, 2)),
            "gpu": self.rng.choice((0, 0, 0.3, 0.5, 1, 2)),
            "license": int(self.rng.random() < 0.2),
            "quota": 0.5 * (self.rng.random() < 0.2),
        }

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
        message = json.loads(self.world.client.rpop(f"fcq.{boot}"))
        if "#" in message["epoch"]:
            self.claim_host(message["unit"], message["epoch"], boot)
            return
        unit, epoch = message["unit"], int(message["epoch"])
        fence = Fence(unit, epoch, f"{self.rng.getrandbits(64):016x}")
        self.fences.append((fence, boot))
        reply = self.again(lambda: self.world.calls.trial_claim(fence, boot=boot), same=("CANCELLED", "STALE"))
        if reply.word == "OK":
            for other in self.guardians:
                if other.fence.unit == unit:
                    assert self.world.calls.trial_renew(other.fence).word == "LOST", f"two speak for {unit}"
            self.begin_process(Guardian(fence, boot), reply)

    def begin_process(self, guardian: Guardian, reply: Reply) -> None:
        """Its whole devices are in no other process of that machine, whether or not that one's lease was lost."""
        machine = self.world.client.hget(f"fc:boot:{guardian.boot}", "machine")
        tokens = {dim: n for dim, n in reply.value["tokens"].items() if dim.startswith("gpu:")}
        whole = frozenset((machine, dim) for dim, n in tokens.items() if n == 10_000 and dim[4:] in DEVICES)
        for other in self.guardians:
            assert not whole & other.devices, f"{guardian.key} is given {whole & other.devices}, {other.key} still runs"
        guardian.devices = whole
        self.guardians.append(guardian)

    def start_host(self) -> None:
        """An attempt with further bundles runs something on one of them."""
        guardian = self.one([each for each in self.guardians if self.world.field(each.fence.unit, "gang")])
        if guardian is not None:
            self.numbers += 1
            number, bundle = self.numbers, self.rng.randint(1, 2)
            self.again(
                lambda: self.world.calls.host_start(guardian.fence, bundle=bundle, number=number, digest="d"),
            )

    def claim_host(self, unit: str, name: str, boot: str) -> None:
        epoch, _, rest = name.partition("#")
        bundle, _, number = rest.partition(".")
        fence = HostFence(unit, int(epoch), int(bundle), int(number), f"{self.rng.getrandbits(64):016x}")
        reply = self.again(lambda: self.world.calls.host_claim(fence, boot=boot))
        if reply.word == "OK":
            assert not [host for host in self.hosts if host.key == Host(fence, boot).key], f"two on {unit}{name}"
            self.hosts.append(Host(fence, boot))

    def end_host(self) -> None:
        host = self.one(self.hosts)
        if host is not None:
            self.hosts.remove(host)
            if self.rng.random() < 0.8:
                self.again(
                    lambda: self.world.calls.host_end(host.fence, boot=host.boot, state="completed", result={}),
                    other="LOST",
                )

    def renew_host(self) -> None:
        host = self.one(self.hosts)
        if host is not None:
            self.world.calls.host_renew(host.fence)

    def stop_host(self) -> None:
        host = self.one(self.hosts)
        if host is not None:
            by = [each.fence for each in self.guardians if each.fence.unit == host.fence.unit]
            for fence in by:
                self.world.calls.host_stop(fence, bundle=host.fence.bundle, number=host.fence.number)

    def outlive(self) -> None:
        """Bundles that still host something after their attempt may return from the next beat on."""
        for boot in self.boots:
            for name, text in self.world.client.hgetall(f"fc:alloc:{boot}").items():
                row = json.loads(text)
                if "after" in row:
                    self.world.client.hset(f"fc:alloc:{boot}", name, json.dumps(row | {"after": 0}))

    def set_pool(self) -> None:
        name = self.rng.choice(("license", "quota"))
        self.world.calls.pool_set(name, self.rng.choice((None, 0, 5_000, 10_000, 30_000)))

    def set_run(self) -> None:
        run = self.one(self.runs)
        if run is not None:
            name = self.rng.choice(("max_concurrent_trials", "priority", "weight"))
            value = {
                "max_concurrent_trials": self.rng.choice((None, 1, 3)),
                "priority": self.rng.randint(-1, 1),
                "weight": 2,
            }
            step = self.rng.choice(("", "a")) if name != "weight" else ""
            self.world.calls.run_set(run, step=step, name=name, value=value[name])

    def age(self) -> None:
        name = self.one(list(self.totals))
        if name is not None:
            unit = f"{name[0]}:{name[1]}:{self.rng.randrange(self.totals[name])}"
            if self.world.state(unit) == "pending" and self.world.step_state(name[1], run=name[0]) in (
                "ready",
                "running",
            ):
                self.world.age(unit, self.rng.choice((60_000, 60_000, 3_600_000)))

    def restore(self) -> None:
        boot = self.one(self.boots)
        if boot is not None:
            self.world.calls.worker_restore(boot)

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

    def runs_on(self, boot: str) -> list[str]:
        """Rows of what physically runs there."""
        there: list[Guardian | Host] = [*self.guardians, *self.hosts]
        return [each.key for each in there if each.boot == boot]

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
        self.hosts = [host for host in self.hosts if host.boot not in gone]

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
        self.boots, self.guardians, self.hosts = ["last", "spare"], [], []
        for pool in ("license", "quota"):
            world.calls.pool_set(pool, 20_000)
        world.boot("last", machine="one", cpu=8, slot=20, gpu=2, labels=["spot"])
        world.boot("spare", machine="two", cpu=8, slot=20, gpu=2)
        for _ in range(400):
            if all(world.run_state(run) in RUN_ENDED for run in self.runs):
                return
            for boot in self.boots:
                client.hdel(f"fc:boot:{boot}", "quick")
                world.beat(boot, running=self.runs_on(boot))
            for unit in client.zrange("fc:delayed", 0, -1):
                world.mature(unit)
            for key in client.zrange("fc:expanding", 0, -1):
                client.zadd("fc:expanding", {key: 0})
            self.take_expansion()
            world.tick()
            while any(client.llen(f"fcq.{boot}") for boot in self.boots):
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
    "start_host": 4,
    "end_host": 3,
    "renew_host": 1,
    "stop_host": 1,
    "outlive": 2,
    "set_pool": 2,
    "set_run": 2,
    "age": 2,
    "restore": 1,
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
