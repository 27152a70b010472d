"""The first impression: `flowctl --help`, and `flowctl run` of one empty trial where nothing runs yet, by phases."""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from measurement import ROUNDS, Measurement, note
from private_home import FLOWCTL, private_home

from flowctl.broker.embedded import running_server
from flowctl.broker.store import Broker

HELP_S = 0.2
RUN_S = 3.0
SCRIPT = Path(__file__).with_name("trials.py")


def main() -> None:
    phases: dict[str, list[float]] = {}
    totals = []
    with private_home():
        _seconds([FLOWCTL, "--help"])  # byte code and disk cache, as after an installation
        floor = [_seconds([sys.executable, "-c", "pass"]) for _ in range(2 * ROUNDS)]
        help_s = [_seconds([FLOWCTL, "--help"]) for _ in range(2 * ROUNDS)]
        floor += [_seconds([sys.executable, "-c", "pass"]) for _ in range(2 * ROUNDS)]
    for number in range(ROUNDS):
        total, found = _cold_run()
        totals.append(total)
        for name, seconds in found.items():
            phases.setdefault(name, []).append(seconds)
        note(f"round {number}: {total:.2f} s: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.items()))
    Measurement(
        "cold_start",
        median(totals),
        "s for `flowctl run` of one empty trial",
        median(floor),
        RUN_S,
        others={"help_s": (median(help_s), HELP_S)},
        details={"phases_s": {name: median(seconds) for name, seconds in phases.items()}, "runs_s": totals},
    ).say()


def _cold_run() -> tuple[float, dict[str, float]]:
    """(seconds in all, seconds of each phase): its moments as the server's records tell them."""
    with private_home() as settings:
        began = time.time()
        _seconds([FLOWCTL, "run", f"{SCRIPT}:empty", "--name", "cold"])
        over = time.time()
        server = running_server(settings.home)
        assert server is not None
        client = Broker.connect(settings).client
        boot = next(key for key in client.scan_iter("fc:boot:*"))
        moments = {
            "command starts, imports, compiles": server.started_ms / 1000,
            "server starts, run is submitted": int(client.hget("fc:run:cold", "created_ms")) / 1000,
            "worker starts": int(client.hget(boot, "started_ms")) / 1000,
            "worker accepts, trial is claimed": int(client.hget("fc:unit:cold:empty:0", "started_ms")) / 1000,
            "trial runs": int(client.hget("fc:unit:cold:empty:0", "ended_ms")) / 1000,
            "command ends, worker stops": over,
        }
    times = [began, *moments.values()]
    return over - began, {name: times[i + 1] - times[i] for i, name in enumerate(moments)}


def _seconds(command: list[str | Path]) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stdout.decode(errors='replace')[-2000:]}")
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
