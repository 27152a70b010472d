"""A large cluster: 1,000 workers, 50 runs of 20 shapes, 100,000 pending. What placement, beats and memory cost the
server. Times are the server's own (commandstats).
"""

from statistics import median

from filled_store import Vector, accept, add_run, boot_of, fill, server_ms, timed_pass
from measurement import Measurement, note
from private_home import private_home

from flowctl.broker.store import Broker

WORKERS, RUNS, SHAPES, PENDING = 1_000, 50, 20, 100_000
BATCH = 50
ROUNDS = 20
NOTHING_FITS_MS, PLACED_MS, AT_REST_PERCENT, PENDING_BYTES = 10.0, 0.2, 25.0, 1_500.0


def main() -> None:
    with private_home() as settings:
        broker = Broker.connect(settings)
        broker.client.config_set("auto-aof-rewrite-percentage", 0)
        fill(broker, offers=_torn())
        before = broker.client.info("memory")["used_memory"]
        for run in range(RUNS):
            add_run(broker, f"run-{run:02d}", needs=_shapes(), pending=PENDING // RUNS)
        per_pending = (broker.client.info("memory")["used_memory"] - before) / PENDING
        accept(broker, WORKERS)
        note(f"filled: {per_pending:.0f} bytes per pending trial")
        nothing_ms = median(_full_pass(broker) for _ in range(ROUNDS))
        note(f"nothing fits: {nothing_ms:.2f} ms per full pass over all workers and buckets")
        at_rest = _at_rest_percent(broker)
        note(f"at rest: {at_rest:.1f}% of a core")
        _give_licenses(broker)
        placed_ms = median(_placed(broker) for _ in range(ROUNDS))
        note(f"{placed_ms * 1000:.0f} us per trial placed")
    Measurement(
        "simulation",
        nothing_ms,
        "ms of the server per full pass where nothing fits, 1,000 workers, 1,000 buckets",
        0.0,
        NOTHING_FITS_MS,
        others={
            "placed_ms": (placed_ms, PLACED_MS),
            "at_rest_percent": (at_rest, AT_REST_PERCENT),
            "bytes_per_pending": (per_pending, PENDING_BYTES),
        },
        details={"workers": WORKERS, "runs": RUNS, "shapes": SHAPES, "pending": PENDING},
    ).say()


def _shapes() -> list[Vector]:
    return [{"cpu": 10_000 + i * 500, "license": 10_000, "slot": 10_000} for i in range(SHAPES)]


def _torn() -> list[Vector]:
    """The dearest refusal: all that is asked for is free somewhere, nowhere together; no two workers alike."""
    either = ("license", "cpu")
    return [{"slot": 100_000, either[i % 2]: 640_000 + i} for i in range(WORKERS)]


def _full_pass(broker: Broker) -> float:
    broker.client.hset("fc:tick", mapping={"changed": "1"})
    ms, placed = timed_pass(broker, limit=BATCH)
    if placed:
        raise RuntimeError("something was placed where nothing fits")
    return ms


def _at_rest_percent(broker: Broker) -> float:
    """All workers beat and tick once per second, while all trials wait."""
    broker.client.config_resetstat()
    seconds = 3
    for _ in range(seconds):
        for number in range(WORKERS):
            broker.beat(boot_of(number), accepting=True, running=[])
            broker.tick()
    return server_ms(broker) / (seconds * 10)


def _give_licenses(broker: Broker) -> None:
    """Every worker starts again and offers what the trials ask for."""
    for number in range(WORKERS):
        boot = boot_of(number)
        fields = broker.client.hgetall(f"fc:boot:{boot}")
        kept = ("worker", "host", "machine", "pid", "queue", "template", "python", "keys")
        fields = {name: fields[name] for name in kept}
        offer = {"slot": 100_000, "cpu": 100_000 + number, "license": 50_000}
        broker.calls.worker_register(boot, fields=fields, detected={}, declared=offer, running=[], swept=True)
    accept(broker, WORKERS)


def _placed(broker: Broker) -> float:
    ms, placed = timed_pass(broker, limit=BATCH)
    if placed != BATCH:
        raise RuntimeError(f"{placed} were placed, not {BATCH}")
    return ms / placed


if __name__ == "__main__":
    main()
