"""A worker is cut off for longer than its lease and comes back: its device is nobody's while the old process lives.

Trials write down their device and that they are alive, twenty times per second, and look whether a process that had the
device before is still there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice

import pytest
from cluster import Cluster, Worker
from intervals import clashes, intervals
from script import trains
from wire import Wire, wire

FULL = [pytest.mark.acceptance, pytest.mark.timeout(3600)]
WAYS = ("the worker is frozen", "its wire is cut", "all of it is frozen")
TRIAL = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
me, side = get_context(), Path(os.environ["SIDE"])

def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

before = (side / "pids").read_text().split() if (side / "pids").exists() else []
mark("device", f"start {me.worker} {os.environ['CUDA_VISIBLE_DEVICES']}")
if left := [pid for pid in before if is_alive(pid)]:
    mark("clash", left)
child = subprocess.Popen(["sleep", "900"], start_new_session=True)
with open(side / "pids", "a") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
while not (side / GO).exists():
    mark("device", "end")
    time.sleep(0.05)
"""


@pytest.fixture
def line(cluster: Cluster) -> Iterator[Wire]:
    cluster.flowctl("up", check=True)
    with wire(cluster.broker.url.path) as made:
        yield made


def cut_worker(cluster: Cluster, line: Wire) -> Worker:
    """A worker on a machine of its own, with the only device of the cluster; it speaks through the wire."""
    password = cluster.broker.url.password
    env = {"FLOWCTL_BROKER_URL": f"redis://:{password}@127.0.0.1:{line.port}/0", "FLOWCTL_MACHINE": "machine-cut"}
    env["FLOWCTL_SECRET_KEY"] = (cluster.home / "secret.key").read_text().strip()
    return cluster.worker(resources="cpu=1,gpu=1", name="cut", env=env)


def submit(cluster: Cluster, go: str) -> str:
    text = trains(TRIAL.replace("GO", repr(go)), resources="{'gpu': 1}", max_worker_losses=-1)
    return cluster.submit(text)


def cut_off(way: str, worker: Worker, line: Wire, trial: int) -> None:
    if way == "its wire is cut":
        line.cut()
        return
    if way == "all of it is frozen":
        os.killpg(os.getsid(trial), signal.SIGSTOP)
    os.killpg(worker.pid, signal.SIGSTOP)


def bring_back(way: str, worker: Worker, line: Wire, trial: int) -> None:
    if way == "its wire is cut":
        line.mend()
        return
    os.killpg(worker.pid, signal.SIGCONT)
    if way == "all of it is frozen":
        os.killpg(os.getsid(trial), signal.SIGCONT)


def has_lost(cluster: Cluster, run: str) -> bool:
    return cluster.state(run, 0) == "pending" and len(cluster.client.lrange(f"fc:attempts:{run}:train:0", 0, -1)) == 1


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=FULL)])
def test_its_device_waits_for_the_end_of_the_old_process(cluster: Cluster, line: Wire, rounds: int) -> None:
    """The lost trial and another run's want the device meanwhile. The old process ignores SIGTERM."""
    worker = cut_worker(cluster, line)
    cluster.worker(cpu=1, name="steady")
    for number, way in enumerate(islice(cycle(WAYS), rounds)):
        go = f"go-{number}"
        begun = len(intervals(cluster.lines("device")))
        first = submit(cluster, go)
        cluster.until(lambda: len(intervals(cluster.lines("device"))) > begun, what="the first trial")  # noqa: B023
        cluster.until(partial(cluster.has_lines, "pids", begun + 1), what="its child")
        trial = intervals(cluster.lines("device"))[-1].pid
        second = submit(cluster, go)
        cut_off(way, worker, line, trial)
        cluster.until(partial(has_lost, cluster, first), what=f"the loss of {first} ({way})")
        cluster.wait(cluster.submit(trains("pass")))  # on the other worker: time enough for a mistake
        held, ran = cluster.used(), len(intervals(cluster.lines("device")))
        bring_back(way, worker, line, trial)
        cluster.until(lambda: len(intervals(cluster.lines("device"))) > begun + 1, what="the next trial")  # noqa: B023
        cluster.side.joinpath(go).touch()
        for run in (first, second):
            cluster.wait(run)

        assert held == {worker.boot: {"gpu:0": 10000, "slot": 10000}}, (way, "a lost trial's device stays booked")
        assert ran == begun + 1, way
        assert cluster.lines("clash") == [], way
    found = intervals(cluster.lines("device"))
    assert len(found) == 3 * rounds and clashes(found) == []


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=FULL)])
def test_so_it_does_when_the_worker_is_killed_and_started_again(cluster: Cluster, line: Wire, rounds: int) -> None:
    """The next start of the worker ends what the dead one left, also in a session of its own, before it serves."""
    for number in range(rounds):
        worker = cut_worker(cluster, line)
        go = f"go-{number}"
        begun = len(intervals(cluster.lines("device")))
        run = submit(cluster, go)
        cluster.until(partial(cluster.has_lines, "pids", begun + 1), what="the trial and its child")
        worker.kill(machine=True)
        again = cut_worker(cluster, line)
        cluster.until(lambda: len(intervals(cluster.lines("device"))) > begun + 1, what="the next trial")  # noqa: B023
        cluster.side.joinpath(go).touch()
        cluster.wait(run)
        again.stop()
        assert cluster.lines("clash") == []
    assert clashes(intervals(cluster.lines("device"))) == []
