"""No token is lost and no process is left: after crashes, restarts, cancels at any moment, trials that start others."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from cluster import ENDED, LEASE_TTL_S, WAIT_S, Cluster
from script import trains
from server import server_processes

from flowctl.broker.embedded import ensure_server, running_server

FULL = [pytest.mark.acceptance, pytest.mark.timeout(3600)]
HOLDS = "mark('held', 'start')\nwait_for('never')"
LIC = "{'lic': 1}"


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def restart_server(cluster: Cluster) -> None:
    """kill -9, and up again with what it had on disk."""
    for process in server_processes(cluster.home):
        process.kill()
        process.wait(20)
    ensure_server(cluster.home)


@pytest.mark.parametrize("server", ["stays", "is killed and started again"])
def test_a_token_comes_back_from_a_machine_that_died(cluster: Cluster, server: str) -> None:
    """B16: a limit of one, its holder killed with kill -9; the next one gets it within the lease's term and 5 s."""
    first_worker = cluster.worker(resources="cpu=1,lic=1", name="a")
    first = cluster.submit(trains(HOLDS, resources=LIC, max_failures=0, max_worker_losses=0))
    cluster.until(lambda: cluster.lines("held"), what="the holder")
    first_worker.kill(machine=True)
    killed = time.monotonic()
    if server != "stays":
        restart_server(cluster)
    cluster.worker(resources="cpu=1,lic=1", name="b")
    second = cluster.submit(trains("mark('second')", resources=LIC))
    document = cluster.json("status", "--resources")
    cluster.wait(second, timeout_s=WAIT_S)
    took_s = time.monotonic() - killed

    holders = [
        (holder["trial"], token["used"])
        for worker in document["workers"]
        for token in worker["tokens"]
        if token["name"] == "lic" and worker["worker"] == "a"
        for holder in token["holders"]
    ]
    assert holders == [(f"{first}/0", 1)], "who holds what a dead worker has is known all the time"
    assert took_s < WAIT_S
    cluster.wait(first, state=None)
    [trial] = cluster.results(first)
    assert trial["status"] == "failed" and trial["cause"]["kind"] == "worker_lost"


@pytest.mark.parametrize("server", ["stays", "is killed and started again"])
def test_a_pools_token_comes_back_from_a_machine_that_died(cluster: Cluster, server: str) -> None:
    """B16 with a cluster-wide token: it is back once the same machine's next worker has looked for what is left."""
    cluster.flowctl("up", check=True)
    cluster.flowctl("pool", "set", "seat=1", check=True)
    held = cluster.worker(cpu=1, name="a")
    first = cluster.submit(trains(HOLDS, resources="{'cpu': 1, 'seat': 1}", max_worker_losses=0))
    cluster.until(lambda: cluster.lines("held"), what="the holder")
    held.kill(machine=True)
    if server != "stays":
        restart_server(cluster)
    [pool] = cluster.json("pool", "list")["pools"]
    cluster.worker(cpu=1, name="a")
    second = cluster.submit(trains("pass", resources="{'cpu': 1, 'seat': 1}"))
    cluster.wait(second)
    cluster.wait(first, state="failed")

    assert [holder["trial"] for holder in pool["holders"]] == [f"{first}/0"] and pool["used"] == 1
    cluster.until(lambda: cluster.json("pool", "list")["pools"][0]["used"] == 0, what="the return of the seat")


SUBMITTER = """
import os, subprocess, sys, time
from pathlib import Path
from flowctl import experiment, grid

@experiment(param_space={"i": grid([0, 1, 2])})
def train(config):
    child = subprocess.Popen(["sleep", "900"], start_new_session=True)
    with open(Path(os.environ["SIDE"]) / "pids", "a") as file:
        file.write(f"{child.pid}\\n")
    time.sleep(0.2 * config.i)

if __name__ == "__main__":
    for line in sys.stdin:
        train.submit(name=line.strip())
        print("submitted", flush=True)
"""


@pytest.mark.parametrize("pairs", [20, pytest.param(300, marks=FULL)])
def test_submits_and_cancels_at_random_moments_leave_nothing(cluster: Cluster, pairs: int) -> None:
    """B19 in numbers: at once, before the claim, while it starts, while it runs, while it ends."""
    luck = random.Random(pairs)
    cluster.worker(resources="cpu=2,lic=1")
    cluster.worker(resources="cpu=1")
    pipe = subprocess.PIPE
    command = [sys.executable, str(cluster.script(SUBMITTER))]
    with subprocess.Popen(command, env=cluster.env, cwd=cluster.root, stdin=pipe, stdout=pipe, text=True) as submitter:
        assert submitter.stdin is not None and submitter.stdout is not None
        for number in range(pairs):
            submitter.stdin.write(f"r{number}\n")
            submitter.stdin.flush()
            assert submitter.stdout.readline() == "submitted\n"
            time.sleep(luck.choice([0.0, luck.uniform(0.0, 0.05), luck.uniform(0.0, 0.6)]))  # the moment is the point
            if luck.random() < 0.25:
                cluster.broker.calls.unit_cancel(cluster.unit(f"r{number}", luck.randrange(3)))
            cluster.broker.calls.run_cancel(f"r{number}")
        submitter.stdin.close()

    for number in range(pairs):
        cluster.until(partial(has_ended, cluster, f"r{number}"), what=f"the end of r{number}")
    cluster.until(lambda: not cluster.used(), what="the return of all tokens")
    found = cluster.json("resources", "--check")
    assert found["violations"] == [] and found["totals"]["cpu"] == {"capacity": 3, "used": 0, "free": 3}
    cluster.until(lambda: not list(cluster.marked()), what="the end of all processes")
    assert [pid for pid in map(int, cluster.lines("pids")) if is_sleeper(pid)] == []
    cluster.wait(cluster.submit(trains("pass", resources="{'cpu': 2, 'lic': 1}")))


def has_ended(cluster: Cluster, run: str) -> bool:
    return cluster.state(run) in ENDED


def is_sleeper(pid: int) -> bool:
    """Whether it is (still) a `sleep 900`, and not another process that got its number since."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", b"900"]
    except (FileNotFoundError, ProcessLookupError):
        return False


CHILDREN = """
import multiprocessing, subprocess
def wait(seconds):
    mark("b37", f"{os.getpid()}")
    subprocess.Popen(["sleep", str(seconds)])
    time.sleep(seconds)

if __name__ != "__mp_main__":
    plain = subprocess.Popen(["sleep", "900"])
    own = subprocess.Popen(["sleep", "901"], start_new_session=True)
    double = subprocess.Popen(["sh", "-c", "(setsid sleep 903 & echo $! > " + os.environ["SIDE"] + "/double) &"])
    forked = multiprocessing.get_context("fork").Process(target=wait, args=(902,))
    forked.start()
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(904)"
    deaf = subprocess.Popen([sys.executable, "-c", ignores])
    mark("b37", f"{plain.pid} {own.pid} {forked.pid} {deaf.pid}")
    ENDS
"""


@pytest.mark.parametrize("way", ["cancelled", "returns", "is killed", "its guardian is killed"])
def test_what_a_trial_started_ends_with_it_and_before_its_token_returns(cluster: Cluster, way: str) -> None:
    """B37: children, one in a session of its own, one forked twice, one that ignores SIGTERM, and theirs."""
    cluster.worker(resources="cpu=1,lic=1")
    ends = "wait_for('go')" if way == "returns" else "time.sleep(900)"
    text = trains(CHILDREN.replace("ENDS", ends), resources=LIC, max_worker_losses=0)
    run = cluster.submit(text, "--name", "b37")
    cluster.until(lambda: cluster.has_lines("b37", 2) and cluster.lines("double"), what="all children")
    pids = [int(pid) for line in cluster.lines("b37") for pid in (line.split()[0], *line.split()[2:])]
    pids += [int(cluster.lines("double")[0])]
    pids += [child.pid for pid in pids if is_alive(pid) for child in psutil.Process(pid).children(recursive=True)]
    checker = (
        "found = [pid for pid in PIDS if Path(f'/proc/{pid}').exists() "
        "and Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z']\nreport({'found': found})"
    )
    after = cluster.submit(trains(checker.replace("PIDS", repr(pids)), resources=LIC))
    pids = sorted({pid for pid in pids if is_alive(pid)})
    assert len(pids) >= 7 and cluster.state(after, 0) == "pending"
    trial = min(pid for pid in pids if pid in cluster.trial_pids(run) and os.getsid(pid) == pid and is_trial(pid))
    if way == "cancelled":
        cluster.flowctl("cancel", run, check=True)
    elif way == "returns":
        cluster.side.joinpath("go").touch()
    elif way == "is killed":
        psutil.Process(trial).kill()
    else:
        psutil.Process(psutil.Process(trial).ppid()).kill()
    cluster.wait(run, state=None)
    cluster.wait(after)

    assert cluster.results(after)[0]["metrics"]["found"] == [], "the token went on before all of them were gone"
    assert not any(map(is_alive, pids))


def is_trial(pid: int) -> bool:
    return b"trial_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_token_of_a_killed_worker_returns_within_its_term_though_nobody_comes_back(cluster: Cluster) -> None:
    """B16, its neighbour: nobody restarts the machine. What it had stays said, and the trial goes on elsewhere."""
    victim = cluster.worker(resources="cpu=1,lic=1", name="gone")
    cluster.worker(resources="cpu=1", name="other")
    run = cluster.submit(trains("mark('held', get_context().worker)\nwait_for('go')", resources=LIC))
    cluster.until(lambda: cluster.lines("held"), what="the trial")
    victim.kill(machine=True)
    cluster.until(lambda: cluster.state(run, 0) == "pending", what="the end of its lease", deadline_s=4 * LEASE_TTL_S)
    cluster.worker(resources="lic=1", name="third")
    cluster.side.joinpath("go").touch()
    cluster.wait(run)

    assert [line.split()[2] for line in cluster.lines("held")] == ["gone", "third"]
    assert running_server(cluster.home)
