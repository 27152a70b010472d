"""What placement costs the server: a batch from 1,000, 10,000 and 100,000 pending, and a call where nothing fits.

Times are the server's own (commandstats), so that neither the client nor the way there counts.
"""

from statistics import median

from filled_store import Vector, accept, add_run, fill, timed_pass
from measurement import ROUNDS, Measurement, note
from private_home import private_home

from flowctl.broker.store import Broker

PENDING = (1_000, 10_000, 100_000)
WORKERS = (1, 100)
SHAPES = 20
BATCH = 50
NOTHING_FITS_MS = 1.0


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
    ms, placed = timed_pass(broker, limit=BATCH)
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
        calls.append(timed_pass(broker, limit=BATCH))
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
    fill(broker, offers=offers)
    add_run(broker, "bench", needs=needs, pending=pending)
    accept(broker, len(offers))


if __name__ == "__main__":
    main()
