"""A store as a benchmark wants it: workers that accept, runs whose trials wait, and full passes timed by the server."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from flowctl.broker.store import Broker

CHUNK = 1_000
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
KEY = "0" * 16
TEMPLATE = json.dumps(
    {"body": '[["@@UNIT@@", "@@EPOCH@@"], {}, {}]', "headers": {"id": "@@UNIT@@.@@EPOCH@@", "x": "x" * 700}}
)

Vector = dict[str, int]


def boot_of(number: int) -> str:
    """The boot of worker `number`."""
    return f"{number:016x}"


def fill(broker: Broker, *, offers: Sequence[Vector]) -> None:
    """A fresh store with these workers, not yet accepting."""
    broker.client.flushdb()
    broker.calls.store_open(schema="1", store_id="bench")
    for number, offer in enumerate(offers):
        boot = boot_of(number)
        fields = {
            "worker": f"w{number}",
            "host": "h",
            "machine": f"m{number}",
            "pid": "1",
            "queue": f"fcq.{boot}",
            "template": TEMPLATE,
            "python": PYTHON,
            "keys": json.dumps([KEY]),
            "slots": "10",
            "version": "0",
            "only": "",
        }
        broker.calls.worker_register(boot, fields=fields, detected={}, declared=offer, running=[], swept=True)


def add_run(broker: Broker, run: str, *, needs: Sequence[Vector], pending: int) -> None:
    """A run with one step per shape, which share `pending` trials evenly; nothing is placed yet."""
    steps: list[dict[str, Any]] = [
        {
            "name": f"s{i:02d}",
            "kind": "experiment",
            "total": pending // len(needs),
            "after": [],
            "metric": "loss",
            "mode": "min",
            "max_failures": 0,
            "max_worker_losses": 3,
            "shape": f"{i:016x}",
            "shape_json": json.dumps(
                {"bundles": [{"need": need, "labels": []}], "strategy": "PACK", "python": PYTHON, "key": KEY}
            ),
        }
        for i, need in enumerate(needs)
    ]
    broker.calls.run_create(run, token="t", fields={"name": run, "location": "file:///nowhere"}, steps=steps)
    for step in steps:
        for first in range(0, step["total"], CHUNK):
            count = min(CHUNK, step["total"] - first)
            broker.calls.trials_add(run, step["name"], first=first, groups=[(step["shape"], count)], limit=0)


def accept(broker: Broker, workers: int) -> None:
    """From here work can be placed."""
    for number in range(workers):
        broker.calls.worker_beat(boot_of(number), accepting=True, running=[], limit=0)


def timed_pass(broker: Broker, *, limit: int) -> tuple[float, int]:
    """(ms that the server spent on a full pass over all workers, trials that it placed).

    A pass is due once a second; the mark of the last one is put back instead of waiting.
    """
    broker.client.hset("fc:tick", mapping={"full_ms": 0, "cursor": 0})
    broker.client.config_resetstat()
    placed = int(broker.calls.tick(limit=limit).value["placed"])
    return server_ms(broker), placed


def server_ms(broker: Broker) -> float:
    """Milliseconds of the server in scripts since its statistics were reset."""
    stats = broker.client.info("commandstats")
    return float(sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)) / 1000
