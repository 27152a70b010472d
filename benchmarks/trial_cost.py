"""What an empty trial costs: milliseconds per trial and slot, beside a fresh interpreter that loads the same payload.

Also shows that each trial had a process of its own, left a log and an outcome on storage. Wall time needs a machine
with nothing else to do; the processor time in the details says the same on a busy one.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import psutil
from measurement import ROUNDS, Measurement, note, spread
from private_home import private_home, worker
from trials import empty

from flowctl.broker.embedded import running_server
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.broker.view import load_run
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.folder import open_folder

TRIALS = 500
OVER_FLOOR_MS = 25.0
_LOAD = "import pickle, sys; pickle.loads(pickle.load(open(sys.argv[1], 'rb'))[0])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="per round")
    parser.add_argument(
        "--slots", type=int, default=len(os.sched_getaffinity(0)), help="trials at once (default: the cores)"
    )
    options = parser.parse_args()
    trials, slots = options.trials, options.slots
    cost, floor, inside = [], [], []
    cpu: dict[str, list[float]] = {}
    with private_home() as settings:
        broker = Broker.connect(settings)
        server = running_server(settings.home)
        assert server is not None
        with worker(settings, "--resources", f"cpu={slots}", "--slots", str(slots)) as pid:
            _run(settings, broker, "warm", trials=8 * slots)
            payload = next((settings.home / "cache" / "payload").glob("*.pkl"))
            for number in range(ROUNDS):
                before = _floor(payload, slots=slots, processes=trials // 2)
                used = _cpu_ms(pid, server.pid)
                wall, lives = _run(settings, broker, f"round-{number}", trials=trials)
                used = {who: (ms - used[who]) / trials for who, ms in _cpu_ms(pid, server.pid).items()}
                after = _floor(payload, slots=slots, processes=trials // 2)
                floor.append((before[0] + after[0]) / 2)
                cost.append(wall * slots / trials)
                inside.append(sum(lives) / len(lives))
                for who, ms in {**used, "all": sum(used.values()), "floor": (before[1] + after[1]) / 2}.items():
                    cpu.setdefault(who, []).append(ms)
                note(
                    f"round {number}: {cost[-1]:.1f} ms, floor {floor[-1]:.1f} ms, claim to end {inside[-1]:.1f} ms; "
                    f"processor {cpu['all'][-1]:.1f} ms, floor {cpu['floor'][-1]:.1f} ms"
                )
    Measurement(
        "trial_cost",
        median(cost),
        "ms per trial and slot",
        median(floor),
        median(floor) + OVER_FLOOR_MS,
        details={
            "trials": trials,
            "slots": slots,
            "trials_per_s": slots * 1000 / median(cost),
            "over_floor_ms": median(cost) - median(floor),
            "claim_to_end_ms": median(inside),
            "between_trials_ms": median(a - b for a, b in zip(cost, inside, strict=True)),
            "cpu_ms": {who: median(ms) for who, ms in cpu.items()},
            "rounds": {"cost_ms": spread(cost), "floor_ms": spread(floor)},
            "load_average": os.getloadavg()[0],
            "fresh_process_each": True,
            "log_and_outcome_each": True,
        },
    ).say()


def _cpu_ms(worker_pid: int, server_pid: int) -> dict[str, float]:
    """Processor time so far of the worker, its guardians, the trials that these have waited for, and the server."""
    main = psutil.Process(worker_pid).cpu_times()
    guardians = [child.cpu_times() for child in psutil.Process(worker_pid).children()]
    server = psutil.Process(server_pid).cpu_times()
    return {
        "trial": 1000 * sum(times.children_user + times.children_system for times in guardians),
        "guardian": 1000 * sum(times.user + times.system for times in guardians),
        "worker": 1000 * (main.user + main.system),
        "server": 1000 * (server.user + server.system),
    }


def _run(settings: Settings, broker: Broker, name: str, *, trials: int) -> tuple[float, list[int]]:
    """(ms from the first placement to the last end, ms from claim to end of each trial), by the server's clock."""
    handle = empty.options(num_samples=trials).submit(name=name)
    client = broker.client
    placed = next(
        int(fields["at"])
        for _, fields in client.xrange(f"fc:events:{name}", count=1000)
        if fields.get("to") == "placed"
    )
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


def _floor(payload: Path, *, slots: int, processes: int) -> tuple[float, float]:
    """(wall ms per process and slot, processor ms per process) of fresh interpreters, `slots` at once."""
    each = max(1, processes // slots)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(slots) as pool:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        list(pool.map(lambda _: _load_often(payload, folder, each), range(slots)))
        wall_s = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s * 1000 / each, cpu_s * 1000 / (each * slots)


def _load_often(payload: Path, folder: str, times: int) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for _ in range(times):
        subprocess.run(
            [sys.executable, "-c", _LOAD, str(payload)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )


if __name__ == "__main__":
    main()
