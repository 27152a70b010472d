"""What an empty trial costs: milliseconds per trial and slot, beside a fresh interpreter that loads the same payload.

Also shows that each trial had a process of its own, left a log and an outcome on storage.
"""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from measurement import ROUNDS, Measurement, note, spread
from private_home import private_home, worker
from trials import empty

from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.broker.view import load_run
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.folder import open_folder

TRIALS = int(os.environ.get("T", 500))
OVER_FLOOR_MS = 25.0
_LOAD = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"


def main() -> None:
    slots = len(os.sched_getaffinity(0))
    cost, floor, inside, waits = [], [], [], []
    with private_home() as settings:
        broker = Broker.connect(settings)
        with worker(settings, "--resources", f"cpu={slots}", "--slots", str(slots)):
            _run(settings, broker, "warm", trials=8 * slots)
            payload = next((settings.home / "cache" / "payload").glob("*.pkl"))
            for number in range(ROUNDS):
                before = _floor_ms(payload, slots=slots)
                wall, lives = _run(settings, broker, f"round-{number}", trials=TRIALS)
                after = _floor_ms(payload, slots=slots)
                floor.append((before + after) / 2)
                cost.append(wall * slots / TRIALS)
                inside.append(sum(lives) / len(lives))
                waits.append(cost[-1] - inside[-1])
                note(f"round {number}: {cost[-1]:.1f} ms, floor {floor[-1]:.1f} ms, claim to end {inside[-1]:.1f} ms")
    Measurement(
        "trial_cost", median(cost), "ms per trial and slot", median(floor), median(floor) + OVER_FLOOR_MS,
        details={
            "trials": TRIALS, "slots": slots, "trials_per_s": slots * 1000 / median(cost), "over_floor_ms": median(cost) - median(floor),
            "over_floor_budget_ms": OVER_FLOOR_MS, "claim_to_end_ms": median(inside), "between_trials_ms": median(waits),
            "rounds": {"cost_ms": spread(cost), "floor_ms": spread(floor)},
            "fresh_process_each": True, "log_and_outcome_each": True,
        },
    ).say()  # fmt: skip


def _run(settings: Settings, broker: Broker, name: str, *, trials: int) -> tuple[float, list[int]]:
    """(ms from the first placement to the last end, ms from claim to end of each trial), by the server's clock."""
    handle = empty.options(num_samples=trials).submit(name=name)
    client = broker.client
    placed = next(int(fields["at"]) for _, fields in client.xrange(f"fc:events:{name}", count=1000) if fields.get("to") == "placed")
    handle.wait(timeout_s=600)
    run = load_run(client, name)
    assert run is not None
    pipe = client.pipeline(transaction=False)
    for index in range(trials):
        pipe.hmget(f"fc:unit:{name}:empty:{index}", "started_ms", "ended_ms", "attempts")
    rows = [tuple(map(int, row)) for row in pipe.execute()]
    if any(attempts != 1 for _, _, attempts in rows):
        raise RuntimeError("a trial took more than one attempt: this round measures something else")
    _check(settings, run.location, name, trials=trials)
    return max(ended for _, ended, _ in rows) - placed, [ended - started for started, ended, _ in rows]


def _check(settings: Settings, location: str, name: str, *, trials: int) -> None:
    """Every trial: an outcome, a log, and in it a process that no other trial had, with nothing of one before in it."""
    folder = open_folder(location, name, settings)
    processes = set()
    for index in range(trials):
        reader = TrialReader(folder, "empty", index)
        outcome = reader.final_outcome()
        pid, started, has_module = reader.log().split()
        if outcome is None or outcome.status != "completed" or has_module != b"False":
            raise RuntimeError(f"{name}/{index} left {outcome}, {has_module!r}")
        processes.add((pid, started))
    if len(processes) != trials:
        raise RuntimeError(f"{trials} trials ran in {len(processes)} processes")


def _floor_ms(payload: Path, *, slots: int) -> float:
    """Ms per process and slot: fresh interpreters, started as a trial's is, `slots` at once."""
    each = TRIALS // 2 // slots
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(slots) as pool:
        start = time.perf_counter()
        list(pool.map(lambda _: _load_often(payload, folder, each), range(slots)))
        return (time.perf_counter() - start) * 1000 / each


def _load_often(payload: Path, folder: str, times: int) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for _ in range(times):
        subprocess.run(
            [sys.executable, "-c", _LOAD, str(payload)], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, check=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
