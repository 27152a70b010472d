"""What placement costs the server: a batch from 1,000, 10,000 and 100,000 pending, and a call where nothing fits.

Times are the server's own (commandstats), so that neither the client nor the way there counts.
"""

import json
import sys
from statistics import median
from typing import Any

from measurement import ROUNDS, Measurement, note
from private_home import private_home

from flowctl.broker.store import Broker

PENDING = (1_000, 10_000, 100_000)
WORKERS = (1, 100)
SHAPES = 20
BATCH = 50
CHUNK = 1_000
NOTHING_FITS_MS = 1.0
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
KEY = "0" * 16
TEMPLATE = json.dumps(
    {"body": '[["@@UNIT@@", "@@EPOCH@@"], {}, {}]', "headers": {"id": "@@UNIT@@.@@EPOCH@@", "x": "x" * 700}}
)

Vector = dict[str, int]


def main() -> None:
    batch: dict[tuple[int, int], list[float]] = {}
    nothing_ms: dict[str, float] = {}
    with private_home() as settings:
        broker = Broker.connect(settings)
        # Rewriting the log after so many trials would run beside the calls that are timed.
        broker.client.config_set("auto-aof-rewrite-percentage", 0)
        for number in range(ROUNDS):
            for case in [(workers, pending) for workers in WORKERS for pending in PENDING]:
                batch.setdefault(case, []).append(_batch_ms(broker, workers=case[0], pending=case[1]))
            said = (f"{case[0]}×{case[1]} {values[-1]:.2f} ms" for case, values in batch.items())
            note(f"round {number}: " + ", ".join(said))
        for workers, pending, kinds in [(1, 1_000, 1), (100, 1_000, 100), (100, 1_000, 10), (100, 100_000, 100)]:
            name = f"{workers} workers of {kinds} kinds, {pending} pending"
            nothing_ms[name] = _nothing_fits_ms(broker, workers=workers, pending=pending, kinds=kinds)
        all_ms = _pass_ms(broker, {"changed": "1"})  # of the last filling: the dearest
    batch_ms = {workers: {pending: median(batch[workers, pending]) for pending in PENDING} for workers in WORKERS}
    few, many = batch_ms[100][PENDING[0]], batch_ms[100][PENDING[-1]]
    Measurement(
        "placement",
        many,
        f"ms of the server per batch of {BATCH}, 100 workers, 100,000 pending",
        few,
        2 * few,
        others={
            "nothing_fits_ms": (max(nothing_ms.values()), NOTHING_FITS_MS),
            "one_worker_batch_ms": (batch_ms[1][PENDING[-1]], 2 * batch_ms[1][PENDING[0]]),
        },
        details={
            "shapes": SHAPES,
            "nothing_fits_all_workers_all_buckets_ms": all_ms,
            "batch_ms": {f"{n} workers": {str(p): ms for p, ms in found.items()} for n, found in batch_ms.items()},
            "us_per_trial_placed": many * 1000 / BATCH,
            "nothing_fits_ms": nothing_ms,
        },
    ).say()


def _batch_ms(broker: Broker, *, workers: int, pending: int) -> float:
    """The first pass over a fresh store. What fits bounds each bucket's share: the same batch, however many wait."""
    _fill(broker, offers=_roomy(workers), needs=_shapes(), pending=pending)
    ms, placed = _timed_pass(broker)
    if placed != BATCH:
        raise RuntimeError(f"{placed} were placed, not a batch of {BATCH}")
    return ms


def _nothing_fits_ms(broker: Broker, *, workers: int, pending: int, kinds: int) -> float:
    _fill(broker, offers=_torn(workers, kinds=kinds), needs=_torn_shapes(), pending=pending)
    return _pass_ms(broker, {})


def _pass_ms(broker: Broker, mark: dict[str, str]) -> float:
    """A pass after one worker's tokens changed; with `changed` marked, after a bucket was opened: all are looked at."""
    calls = []
    for _ in range(4 * ROUNDS):
        broker.client.sadd("fc:freed", broker.client.hkeys("fc:free")[0])
        broker.client.hset("fc:tick", mapping={"changed": "0", **mark})
        calls.append(_timed_pass(broker))
    if any(placed for _, placed in calls):
        raise RuntimeError("something was placed where nothing fits")
    return median(ms for ms, _ in calls)


def _shapes() -> list[Vector]:
    """Large ones first, so that a batch runs through several buckets: each fits only where there is room enough."""
    return [
        {"cpu": (SHAPES - i) * 5_000, "slot": 10_000, **({"license": 10_000} if i % 4 == 3 else {})}
        for i in range(SHAPES)
    ]


def _roomy(workers: int) -> list[Vector]:
    """Room for a batch: one giant, or a hundred of ten sizes, some with licenses, no two with the same free."""
    if workers == 1:
        return [{"cpu": 10**8, "slot": 10**8, "license": 10**8}]
    return [
        {"cpu": (1 + i % 10) * 15_000 + i, "slot": 80_000, **({"license": 20_000} if i % 3 == 0 else {})}
        for i in range(workers)
    ]


def _torn_shapes() -> list[Vector]:
    return [{"cpu": 10_000 + i * 500, "license": 10_000, "slot": 10_000} for i in range(SHAPES)]


def _torn(workers: int, *, kinds: int) -> list[Vector]:
    """The dearest refusal: all that is asked for is free somewhere, but nowhere together. `kinds` of workers differ."""
    if workers == 1:
        return [{"cpu": 640_000, "slot": 100_000}]
    either = ("license", "cpu")
    return [{"slot": 100_000, either[i % 2]: 640_000 + i % kinds} for i in range(workers)]


def _fill(broker: Broker, *, offers: list[Vector], needs: list[Vector], pending: int) -> None:
    """A fresh store with these workers, accepting, and a run whose trials all wait."""
    calls = broker.calls
    broker.client.flushdb()
    calls.store_open(schema="1", store_id="bench")
    for number, offer in enumerate(offers):
        boot = f"{number:016x}"
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
        calls.worker_register(boot, fields=fields, detected={}, declared=offer, running=[], swept=True)
    steps: list[dict[str, Any]] = [
        {
            "name": f"s{i:02d}",
            "kind": "experiment",
            "total": pending // SHAPES,
            "after": [],
            "metric": "loss",
            "mode": "min",
            "max_failures": 0,
            "max_worker_losses": 3,
            "shape": f"{i:016x}",
            "shape_json": json.dumps({"need": need, "python": PYTHON, "key": KEY}),
        }
        for i, need in enumerate(needs)
    ]
    calls.run_create("bench", token="t", fields={"name": "bench", "location": "file:///nowhere"}, steps=steps)
    for step in steps:
        for first in range(0, step["total"], CHUNK):
            count = min(CHUNK, step["total"] - first)
            calls.trials_add("bench", step["name"], first=first, n=count, shape=step["shape"], limit=0)
    for number in range(len(offers)):
        calls.worker_beat(f"{number:016x}", accepting=True, running=[], limit=0)


def _timed_pass(broker: Broker) -> tuple[float, int]:
    """(ms that the server spent on a full pass over all workers, trials that it placed).

    A pass is due once a second; the mark of the last one is put back instead of waiting.
    """
    broker.client.hset("fc:tick", mapping={"full_ms": 0, "cursor": 0})
    broker.client.config_resetstat()
    placed = int(broker.calls.tick(limit=BATCH).value["placed"])
    stats = broker.client.info("commandstats")
    return sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats) / 1000, placed


if __name__ == "__main__":
    main()
