"""Builders for tests of the broker: a world of boots, runs and attempts on a real server, spoken to by its scripts.

Time is never slept through: deadlines are moved to the past by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from flowctl.broker.calls import NOTHING, Calls, Fence, Reply, Times
from flowctl.broker.invariants import violations
from flowctl.broker.keys import unowned

CPU = 10_000
TEMPLATE = '{"unit": "@@UNIT@@", "epoch": "@@EPOCH@@"}'
TIMES = Times(lease_ms=15_000, dispatch_ms=15_000, boot_gone_ms=150_000)
KEY = "k1"


def step_of(
    name: str = "train",
    *,
    total: int = 1,
    after: Sequence[str] = (),
    kind: str = "experiment",
    mode: str | None = "max",
    max_failures: int = 0,
    max_worker_losses: int | str = 3,
    python: str = "3.11",
    key: str = KEY,
    labels: Sequence[str] = (),
    bundles: Sequence[Mapping[str, Any]] = (),
    strategy: str = "PACK",
    priority: int = 0,
    max_concurrent: int | None = None,
    pending_timeout_ms: int | None = None,
    on_bundle_loss: str = "fail",
    **need: float,
) -> dict[str, Any]:
    """A step as `run_create` takes it; `need` in cores, devices and tokens, memory in MiB (default: one core).

    A gang has `bundles` instead: needs, each with "labels" of its own if it wants any.
    """
    shape, text = shape_of(bundles or [{**(need or {"cpu": 1}), "labels": labels}], strategy, python=python, key=key)
    return {
        "name": name,
        "kind": kind,
        "total": total,
        "after": list(after),
        "metric": "loss" if mode else None,
        "mode": mode,
        "max_failures": max_failures,
        "max_worker_losses": max_worker_losses,
        "shape": shape,
        "shape_json": text,
        "on_bundle_loss": on_bundle_loss,
        "priority": priority,
        "max_concurrent": "" if max_concurrent is None else max_concurrent,
        "pending_timeout_ms": "" if pending_timeout_ms is None else pending_timeout_ms,
    }


def shape_of(
    bundles: Sequence[Mapping[str, Any]], strategy: str = "PACK", *, python: str = "3.11", key: str = KEY
) -> tuple[str, str]:
    """(id, JSON) of a request, with the slot that each bundle takes."""
    made: list[dict[str, Any]] = [
        {"need": units({**bundle, "slot": 1}), "labels": list(bundle.get("labels") or ())} for bundle in bundles
    ]
    text = json.dumps({"bundles": made, "strategy": strategy, "python": python, "key": key}, sort_keys=True)
    names = "..".join(
        "-".join([*(f"{dim}{n}" for dim, n in sorted(bundle["need"].items())), *bundle["labels"]]) for bundle in made
    )
    return re.sub(r"[^\w.-]", "_", f"{names}-{strategy}-{python}-{key}"), text


def units(amounts: Mapping[str, Any]) -> dict[str, int]:
    """Tokens as exact units, rounded down: 10,000 to the token, memory in MiB as it is; zeros and texts left out."""
    return {
        dim: int(n) if dim == "memory" else int(n * CPU + 1e-6)
        for dim, n in amounts.items()
        if isinstance(n, (int, float)) and n
    }


@dataclass(frozen=True)
class Placed:
    """A placement as it stands: where, and at which epoch."""

    unit: str
    boot: str
    epoch: int


class World:
    """One server under test."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls = Calls(client, times=TIMES)
        self._nonces = count(1)
        self._shapes: dict[tuple[str, str], str] = {}

    # --- given ---

    def boot(
        self,
        boot: str = "b1",
        *,
        worker: str | None = None,
        machine: str | None = None,
        cpu: float | None = 4,
        slot: int = 10,
        gpu: int = 0,
        gpus: Sequence[str] = (),
        gpu_limit: int | None = None,
        labels: Sequence[str] = (),
        detected: Mapping[str, float] | None = None,
        python: str = "3.11",
        keys: Sequence[str] = (KEY,),
        only: str = "",
        running: Sequence[str] = (),
        swept: bool = True,
        beats: bool = True,
        **declared: float,
    ) -> str:
        """A registered boot that accepts; `cpu`, `slot`, `detected` and `declared` in tokens, `memory` in MiB.

        `gpu` logical devices are declared; `gpus` are detected ones, of which it offers at most `gpu_limit`.
        """
        reply = self.register(
            boot,
            worker=worker or f"worker-{boot}",
            machine=machine or f"machine-{boot}",
            detected={**(detected or {}), **{f"gpu:{device}": 1 for device in gpus}},
            declared={
                "slot": slot,
                **({} if cpu is None else {"cpu": cpu}),
                **{f"gpu:{index}": 1 for index in range(gpu)},
                **declared,
            },
            devices=gpus or [str(index) for index in range(gpu)],
            gpu_limit=gpu_limit,
            labels=labels,
            python=python,
            keys=keys,
            only=only,
            running=running,
            swept=swept,
        )
        assert reply.word == "OK", reply
        if beats:
            self.beat(boot)
        return boot

    def register(
        self,
        boot: str,
        *,
        worker: str,
        machine: str = "m",
        scope: str = "",
        detected: Mapping[str, float] | None = None,
        declared: Mapping[str, float] | None = None,
        devices: Sequence[str] = (),
        gpu_limit: int | None = None,
        labels: Sequence[str] = (),
        python: str = "3.11",
        keys: Sequence[str] = (KEY,),
        only: str = "",
        running: Sequence[str] = (),
        swept: bool = True,
    ) -> Reply:
        fields = {
            "worker": worker,
            "host": "host",
            "machine": machine,
            "scope": scope or machine,
            "pid": "1",
            "queue": f"fcq.{boot}",
            "template": TEMPLATE,
            "python": python,
            "keys": json.dumps(list(keys)),
            "slots": "10",
            "version": "0",
            "only": only,
            "labels": json.dumps(sorted(labels)),
            "devices": json.dumps(
                [{"id": device, "name": "", "memory_mib": 0, "visible": device} for device in devices]
            ),
            "gpu_limit": "" if gpu_limit is None else str(gpu_limit),
        }
        return self.calls.worker_register(
            boot,
            fields=fields,
            detected=units(detected or {}),
            declared=units(declared or {"slot": 10, "cpu": 4}),
            running=running,
            swept=swept,
        )

    def run(
        self, run: str = "r1", *steps: dict[str, Any], expand: bool = True, fields: Mapping[str, float] = NOTHING
    ) -> str:
        """A created run with all its units; without steps it has one of one unit."""
        plan = steps or (step_of(),)
        reply = self.create(run, *plan, fields=fields)
        assert reply.word == "OK", reply
        if expand:
            for step in plan:
                self.add(run, step["name"], n=step["total"])
        return run

    def create(
        self, run: str, *steps: dict[str, Any], token: str = "t", fields: Mapping[str, float] = NOTHING
    ) -> Reply:
        """`fields` are of the run's record: priority, weight."""
        for step in steps:
            self._shapes[run, step["name"]] = step["shape"]
        texts = {name: str(value) for name, value in fields.items()}
        return self.calls.run_create(
            run, token=f"{token}-{run}", fields={"name": run, "location": "file:///x", **texts}, steps=steps
        )

    def add(self, run: str, step: str = "train", *, first: int = 0, n: int = 1) -> Reply:
        return self.calls.trials_add(run, step, first=first, groups=[(self._shapes[run, step], n)])

    def running(self, unit: str = "r1:train:0", **more: Any) -> Fence:
        """A placed unit, claimed with a fresh nonce on its boot."""
        placed = self.placement(unit)
        assert placed is not None, f"{unit} is {self.state(unit)}"
        fence = self.fence(placed)
        assert self.claim(fence, **more).word == "OK"
        return fence

    # --- when ---

    def beat(self, boot: str = "b1", *, accepting: bool = True, running: Sequence[str] | None = None) -> Reply:
        """A beat that names, unless told otherwise, every row of the boot as alive."""
        alive = self.client.hkeys(f"fc:alloc:{boot}") if running is None else running
        return self.calls.worker_beat(boot, accepting=accepting, running=alive)

    def tick(self, *, limit: int = 50, is_full: bool = True) -> dict[str, Any]:
        """A tick of a cluster that has ticked just now (no grace), with all that is due from time to time."""
        self.client.hset("fc:tick", "last_ms", self.now_ms())
        if is_full:
            self.client.hset("fc:tick", mapping={"full_ms": 0, "reserve_ms": 0})
        return self.calls.tick(limit=limit).value

    def claim(self, fence: Fence, *, boot: str | None = None) -> Reply:
        return self.calls.trial_claim(fence, boot=boot or self.field(fence.unit, "boot") or "b1")

    def report(self, fence: Fence, *, seq: int = 1, value: float | None = 0.5, saves: bool = False) -> Reply:
        checkpoint = {"epoch": fence.epoch, "nonce": fence.nonce, "seq": seq, "iteration": seq}
        row = {"epoch": fence.epoch, "nonce": fence.nonce, "seq": seq, "metrics": {"loss": value}}
        return self.calls.trial_report(
            fence,
            seq=seq,
            row=json.dumps(row),
            last=json.dumps({"loss": value}),
            iteration=seq,
            value=value,
            checkpoint=checkpoint if saves else None,
        )

    def finish(
        self,
        fence: Fence,
        to: str = "completed",
        *,
        reason: str = "finished",
        cause: Mapping[str, Any] | None = None,
        fails_up: int = 0,
        delay_ms: int = 0,
    ) -> Reply:
        return self.calls.trial_finish(
            fence,
            to=to,
            reason=reason,
            cause=cause,
            outcome="failed" if to == "pending" else to,
            fails_up=fails_up,
            delay_ms=delay_ms,
            last="",
        )

    def release(self, fence: Fence, *, boot: str = "b1", cause: str = "guardian_lost") -> Reply:
        return self.calls.trial_release(fence, boot=boot, cause=cause, text="its guardian died")

    def expire(self, unit: str) -> None:
        """Moves the unit's deadline to this very millisecond."""
        assert self.client.zscore("fc:deadlines", unit) is not None
        self.client.zadd("fc:deadlines", {unit: self.now_ms()})

    def miss(self, unit: str) -> dict[str, Any]:
        """The unit's deadline passes, and a tick sees it."""
        self.expire(unit)
        return self.tick()

    def mature(self, unit: str) -> None:
        """Ends the unit's delay."""
        assert self.client.zscore("fc:delayed", unit) is not None
        self.client.zadd("fc:delayed", {unit: self.now_ms()})

    def age(self, unit: str, ms: int) -> None:
        """The unit has been pending for that long, and its step ready."""
        assert self.state(unit) == "pending"
        since, step = self.now_ms() - ms, f"fc:step:{unit.rpartition(':')[0]}"
        self.client.hset(f"fc:unit:{unit}", "since_ms", since)
        ready, timeout = self.client.hmget(step, "ready_ms", "pending_timeout_ms")
        if ready:
            self.client.hset(step, "ready_ms", min(int(ready), since))
        if timeout:
            self.client.zadd("fc:timeouts", {unit: since + int(timeout)})

    def silence(self, boot: str, ms: int) -> None:
        """Nothing was heard of the boot for that long."""
        self.client.zadd("fc:boots", {boot: self.now_ms() - ms})

    # --- then ---

    def state(self, unit: str = "r1:train:0") -> str | None:
        return self.field(unit, "state")

    def field(self, unit: str, name: str) -> str | None:
        value: str | None = self.client.hget(f"fc:unit:{unit}", name)
        return value

    def run_state(self, run: str = "r1") -> str:
        return str(self.client.hget(f"fc:run:{run}", "state"))

    def step_state(self, step: str = "train", *, run: str = "r1") -> str:
        return str(self.client.hget(f"fc:step:{run}:{step}", "state"))

    def count(self, name: str, step: str = "train", *, run: str = "r1") -> int:
        return int(self.client.hget(f"fc:step:{run}:{step}", name))

    def placement(self, unit: str = "r1:train:0") -> Placed | None:
        state, boot, epoch = self.client.hmget(f"fc:unit:{unit}", "state", "boot", "epoch")
        return Placed(unit, boot, int(epoch)) if state in ("placed", "running") else None

    def fence(self, placed: Placed) -> Fence:
        return Fence(placed.unit, placed.epoch, f"{next(self._nonces):016x}")

    def row(self, fence: Fence, *, boot: str = "b1") -> dict[str, Any] | None:
        text = self.client.hget(f"fc:alloc:{boot}", f"{fence.unit}@{fence.epoch}")
        return json.loads(text) if text else None

    def used(self, boot: str = "b1", dim: str = "cpu") -> int:
        return int(self.client.hget(f"fc:used:{boot}", dim) or 0)

    def pool_used(self, pool: str) -> int:
        return int(self.client.hget("fc:poolused", pool) or 0)

    def bundles(self, unit: str = "r1:train:0") -> list[tuple[str, dict[str, int]]]:
        """What a placed or running unit holds: per bundle the boot and the vector."""
        placed = self.placement(unit)
        if placed is None:
            return []
        boots = json.loads(self.field(unit, "gang") or "null") or [placed.boot]
        names = [f"{unit}@{placed.epoch}{f'#{i}' if i else ''}" for i in range(len(boots))]
        rows = [self.client.hget(f"fc:alloc:{boot}", name) for boot, name in zip(boots, names, strict=True)]
        return [(boot, json.loads(row)["v"]) for boot, row in zip(boots, rows, strict=True)]

    def devices(self, unit: str = "r1:train:0", *, bundle: int = 0) -> dict[str, int]:
        """The devices that a bundle of a placed or running unit holds, with the units of each."""
        _, vector = self.bundles(unit)[bundle]
        return {dim.partition(":")[2]: n for dim, n in vector.items() if dim.startswith("gpu:")}

    def placed(self, *, run: str = "r1", step: str = "train") -> list[int]:
        """Indices of the step's units that are placed or running."""
        prefix = f"{run}:{step}:"
        return sorted(
            int(unit.removeprefix(prefix))
            for unit in self.client.smembers(f"fc:active:{run}")
            if unit.startswith(prefix)
        )

    def offer(self, boot: str = "b1", dim: str = "cpu") -> int:
        return int(self.client.hget(f"fc:offer:{boot}", dim) or 0)

    def messages(self, boot: str = "b1") -> list[tuple[str, int]]:
        """What waits on the boot's queue, the oldest first."""
        found = [json.loads(text) for text in self.client.lrange(f"fcq.{boot}", 0, -1)]
        return [(message["unit"], int(message["epoch"])) for message in reversed(found)]

    def events(self, run: str = "r1", kind: str = "trial") -> list[tuple[str, str]]:
        """Transitions in order, as (from, to)."""
        rows = self.client.xrange(f"fc:events:{run}")
        return [(fields.get("from", ""), fields.get("to", "")) for _, fields in rows if fields["kind"] == kind]

    def attempts(self, unit: str = "r1:train:0") -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.client.lrange(f"fc:attempts:{unit}", 0, -1)]

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def dump(self, *, but: Sequence[str] = ()) -> dict[str, bytes]:
        """Everything in the server, byte for byte, except these keys."""
        return {key: self.client.dump(key) for key in sorted(self.client.scan_iter(count=1000)) if key not in but}

    def complaints(self) -> list[str]:
        """Broken invariants and keys without an owner."""
        return [*violations(self.client), *unowned(self.client)]
