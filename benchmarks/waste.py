"""How long freed tokens lie idle: from a release to the next claim on its worker, beside a bare message.

Budgets: the gap between trials (median and 95th percentile, by the server's clock), and the part of slot time in which
no user code runs, with trials of 2 s. The floor of the gap is what pushing and taking one message takes. Wall time
needs a machine with nothing else to do.
"""

import argparse
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from measurement import Measurement, note, spread
from private_home import private_home, worker
from trials import sleeping

from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.folder import open_folder

TRIALS, SHORT_S = 300, 0.05
LONG_TRIALS, LONG_S = 20, 2.0
MEDIAN_MS, P95_MS = 10.0, 50.0
IDLE = 0.10
ENDED = ("completed", "failed", "cancelled", "pending")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="short ones")
    parser.add_argument("--slots", type=int, default=len(os.sched_getaffinity(0)), help="trials at once")
    options = parser.parse_args()
    slots = options.slots
    with private_home() as settings:
        broker = Broker.connect(settings)
        floor = _floor_ms(broker.client)
        with worker(settings, "--resources", f"cpu={slots}", "--slots", str(slots)):
            _run(settings, broker, "warm", trials=4 * slots, pause_s=0.0)
            gaps = gaps_ms(_run(settings, broker, "short", trials=options.trials, pause_s=SHORT_S))
            note(f"release to claim: {spread(gaps)}")
            events = _run(settings, broker, "long", trials=LONG_TRIALS * slots // 2, pause_s=LONG_S)
            busy = _user_share(settings, broker, "long", events, trials=LONG_TRIALS * slots // 2, slots=slots)
            note(f"user code: {busy:.1%} of slot time")
    found = spread(gaps)
    Measurement(
        "waste",
        found["median"],
        "ms from release to the next claim, median",
        floor,
        MEDIAN_MS,
        others={"p95_ms": (found["p95"], P95_MS), "idle_share": (1 - busy, IDLE)},
        details={
            "slots": slots,
            "gaps": len(gaps),
            "gap_ms": found,
            "user_code_share": busy,
            "long_trial_s": LONG_S,
            "load_average": os.getloadavg()[0],
        },
    ).say()


def gaps_ms(events: Sequence[Mapping[str, str]]) -> list[float]:
    """From each release to the claim that it made room for: all slots are taken throughout, so the next one in turn."""
    free: deque[int] = deque()
    gaps = []
    for event in events:
        if event.get("kind") != "trial":
            continue
        at = int(event["at"])
        if event.get("from") == "running" and event.get("to") in ENDED:
            free.append(at)
        elif event.get("to") == "running" and free:
            gaps.append(float(at - free.popleft()))
    return gaps


def _run(settings: Settings, broker: Broker, name: str, *, trials: int, pause_s: float) -> list[dict[str, str]]:
    """Runs trials that sleep; all events of the run in order: those on storage and those still in the server."""
    handle = sleeping.options(num_samples=trials, param_space={"pause_s": pause_s}).submit(name=name)
    location = handle.wait(timeout_s=600).location
    found = {str(event["id"]): event for event in open_folder(location, name, settings).journal_read()}
    found |= dict(broker.client.xrange(f"fc:events:{name}"))
    return [found[key] for key in sorted(found, key=lambda each: tuple(map(int, each.split("-"))))]


def _user_share(
    settings: Settings, broker: Broker, name: str, events: Sequence[Mapping[str, str]], *, trials: int, slots: int
) -> float:
    """The sum of what trials measured themselves, over all slots from the first placement to the last end."""
    folder = open_folder(str(broker.client.hget(f"fc:run:{name}", "location")), name, settings)
    times = []
    for index in range(trials):
        start, end = map(float, TrialReader(folder, "sleeping", index).log().split())
        times.append(end - start)
    placed = min(int(event["at"]) for event in events if event.get("to") == "placed")
    ended = max(int(event["at"]) for event in events if event.get("kind") == "trial" and event.get("from") == "running")
    return sum(times) / (slots * (ended - placed) / 1000)


def _floor_ms(client: Any) -> float:
    """The median of pushing a message and taking it, without anything around it."""
    took = []
    for _ in range(200):
        start = time.perf_counter()
        client.lpush("fc-bench-floor", "x" * 1000)
        client.brpop("fc-bench-floor", timeout=1)
        took.append((time.perf_counter() - start) * 1000)
    return spread(took)["median"]


if __name__ == "__main__":
    main()
