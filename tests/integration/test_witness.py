"""The witness: a worker that is killed is known to be dead at once, not after its lease."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from cluster import Cluster, Worker

from flowctl.broker.view import now_ms

LEASE_S = 30
HOLD = """
import os, subprocess, time
from flowctl import experiment, report

@experiment(resources={"tok": 1})
def train(config):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(os.path.join(os.environ["SIDE"], "began"), "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    while not os.path.exists(os.path.join(os.environ["SIDE"], "go")):
        time.sleep(0.05)
"""


def witness_of(worker: Worker) -> psutil.Process:
    (found,) = [
        child
        for child in psutil.Process(worker.pid).children()
        if any("workers.witness" in part for part in child.cmdline())
    ]
    return found


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("only_main", [False, True], ids=["the whole worker", "its main process"])
def test_a_killed_worker_gives_its_tokens_back_long_before_its_lease_ends(cluster: Cluster, only_main: bool) -> None:
    cluster.env["FLOWCTL_LEASE_TTL_S"] = str(LEASE_S)
    first = cluster.worker(resources="cpu=1,tok=1", name="a")
    run = cluster.submit(HOLD)
    cluster.until(lambda: cluster.has_lines("began", 1), what="the trial")
    cluster.worker(resources="cpu=1,tok=1", name="b")
    witness = witness_of(first)
    killed_ms = now_ms(cluster.client)

    first.kill(only_main=only_main)

    cluster.until(lambda: cluster.has_lines("began", 2), what="the second attempt")
    (cluster.side / "go").touch()
    cluster.wait(run)
    trial = cluster.trial(run, 0)
    assert trial["attempts"] == 2
    assert trial["started_ms"] - killed_ms < LEASE_S * 1000 / 2
    assert not any(is_alive(int(pid)) for pid in cluster.lines("began")[0].split())
    cluster.until(lambda: not is_alive(witness.pid), what="the end of the witness")


def test_a_worker_that_ends_in_order_takes_its_witness_along(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=1)
    witness = witness_of(worker)

    worker.stop()

    cluster.until(lambda: not is_alive(witness.pid), what="the end of the witness")
    assert "was killed" not in worker.text()


def test_a_witness_that_is_killed_is_replaced(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=1)
    first = witness_of(worker)

    os.kill(first.pid, signal.SIGKILL)

    cluster.until(lambda: is_replaced(worker, first.pid), what="another witness")


def is_replaced(worker: Worker, before: int) -> bool:
    return any(
        child.pid != before and any("workers.witness" in part for part in child.cmdline())
        for child in psutil.Process(worker.pid).children()
        if child.status() != psutil.STATUS_ZOMBIE
    )
