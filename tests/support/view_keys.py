"""Builders for the state that views read: runs, trials and workers as the broker's scripts leave them in the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

TOKEN = 10_000
COUNTED = ("pending", "placed", "running", "completed", "failed", "cancelled")


class Keys:
    """Writes keys of one run on a real server."""

    def __init__(self, client: Any, run: str = "r") -> None:
        self.client = client
        self.run = run

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def add_run(self, *, state: str = "running", created_ms: int | None = None, **fields: Any) -> None:
        created = created_ms if created_ms is not None else self.now_ms()
        whole = {"name": self.run, "state": state, "wanted": "run", "created_ms": created, "location": "file:///none"}
        self.client.hset(f"fc:run:{self.run}", mapping={**whole, "key_id": "k", "python": "3.11", "flow": "", **fields})
        self.client.zadd("fc:runs", {self.run: created})

    def add_step(self, name: str = "train", *, total: int, state: str = "running", **fields: Any) -> None:
        whole: dict[str, Any] = {"kind": "experiment", "state": state, "total": total, "expanded": total, "after": "[]"}
        whole.update({"metric": "loss", "mode": "min", "max_failures": 0, "max_worker_losses": 3})
        whole.update(dict.fromkeys(COUNTED, 0))
        self.client.rpush(f"fc:steps:{self.run}", name)
        self.client.hset(f"fc:step:{self.run}:{name}", mapping={**whole, **fields})

    def add_unit(self, index: int, state: str, step: str = "train", **fields: Any) -> str:
        """A unit, counted in its step."""
        unit = f"{self.run}:{step}:{index}"
        texts = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in fields.items()}
        self.client.hset(f"fc:unit:{unit}", mapping={"state": state, "shape": "s1", "epoch": 1, **texts})
        self.client.hincrby(f"fc:step:{self.run}:{step}", state, 1)
        if state in ("placed", "running"):
            self.client.sadd(f"fc:active:{self.run}", unit)
        if state == "failed":
            self.client.zadd(f"fc:failed:{self.run}", {unit: float(fields.get("ended_ms", 0))})
        if state == "pending":
            self.client.zadd(f"fc:bucket:{self.run}:{step}:s1", {unit: index})
        return unit

    def add_shape(
        self,
        *needs: dict[str, int],
        step: str = "train",
        shape: str = "s1",
        python: str = "3.11",
        key: str = "k",
        labels: Sequence[str] = (),
        strategy: str = "PACK",
    ) -> None:
        """A shape of one bundle or of several."""
        bundles = [{"need": need, "labels": list(labels)} for need in needs]
        row = {"bundles": bundles, "strategy": strategy, "python": python, "key": key}
        self.client.hset("fc:shapes", shape, json.dumps(row))
        self.client.sadd(f"fc:stepshapes:{self.run}:{step}", shape)

    def add_worker(
        self, name: str, offer: dict[str, int], used: dict[str, int] | None = None, *, quiet_ms: int = 0, **fields: Any
    ) -> str:
        boot, last_ms = f"boot-{name}", self.now_ms() - quiet_ms
        whole = {
            "worker": name,
            "host": "h",
            "machine": "m",
            "pid": 7,
            "state": "up",
            "accepting": "1",
            "python": "3.11",
        }
        whole.update({"keys": '["k"]', "started_ms": last_ms, "last_ms": last_ms, "version": "0.1.0"})
        self.client.hset(f"fc:boot:{boot}", mapping={**whole, **fields})
        self.client.hset(f"fc:offer:{boot}", mapping=offer)
        if used:
            self.client.hset(f"fc:used:{boot}", mapping=used)
        self.client.zadd("fc:boots", {boot: last_ms})
        return boot

    def book(
        self,
        boot: str,
        unit: str,
        tokens: dict[str, int],
        *,
        state: str = "held",
        for_ms: int = 0,
        pools: dict[str, int] | None = None,
    ) -> None:
        row = {"v": tokens, "s": state, "ms": self.now_ms() - for_ms, **({"p": pools} if pools else {})}
        self.client.hset(f"fc:alloc:{boot}", f"{unit}@1", json.dumps(row))
        for pool, units in (pools or {}).items():
            self.client.hincrby("fc:poolused", pool, units)
        for dimension, units in tokens.items():
            self.client.hincrby(f"fc:used:{boot}", dimension, units)
