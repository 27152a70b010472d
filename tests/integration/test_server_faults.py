"""A server that is killed or frozen in the middle of a sweep: an outage is no death of a trial."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest
from cluster import LEASE_TTL_S, Cluster
from server import eventually, server_processes
from trial_scripts import epochs, repeated

from flowctl.broker.embedded import ensure_server

TRIALS, EPOCHS = 4, 30


def sweep(cluster: Cluster) -> str:
    cluster.worker(cpu=2)
    run = cluster.submit(epochs(trials=TRIALS, epochs=EPOCHS, epoch_s=0.15))
    cluster.until(lambda: "kept 3" in cluster.lines("0"))
    return run


def goes_on(cluster: Cluster, run: str, seen: int) -> bool:
    return cluster.has_lines("0", seen + 3) or cluster.state(run) == "completed"


def check(cluster: Cluster, run: str) -> None:
    """Every trial took one attempt, did each epoch once and ended once; every row is there once."""
    cluster.wait(run)
    assert [trial["attempts"] for trial in cluster.results(run)] == [1] * TRIALS
    assert cluster.ends(run) == {cluster.unit(run, index): 1 for index in range(TRIALS)}
    for index in range(TRIALS):
        assert repeated(cluster.lines(str(index))) == []
        assert len(cluster.lines(str(index))) == 1 + 2 * EPOCHS
    rows = sorted((row["index"], row["training_iteration"]) for row in cluster.rows(run))
    assert rows == [(index, epoch) for index in range(TRIALS) for epoch in range(1, EPOCHS + 1)]
    assert cluster.violations() == []


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.acceptance, pytest.mark.timeout(3600)])])
def test_a_server_that_is_killed_and_started_again(cluster: Cluster, kills: int) -> None:
    run = sweep(cluster)
    for _ in range(kills):
        seen = len(cluster.lines("0"))
        for process in server_processes(cluster.home):
            process.kill()
            process.wait(20)
        ensure_server(cluster.home)
        cluster.until(partial(goes_on, cluster, run, seen), what="the trial's going on")
    check(cluster, run)


def test_trials_go_on_while_the_server_is_gone(cluster: Cluster) -> None:
    """Reports and checkpoints wait in the guardian; the trial does not."""
    run = sweep(cluster)
    for process in server_processes(cluster.home):
        process.kill()
        process.wait(20)
    more = min(len(cluster.lines("0")) + 10, 1 + 2 * EPOCHS)
    eventually(lambda: cluster.has_lines("0", more), deadline_s=60, what="the trial's going on without a server")
    ensure_server(cluster.home)
    check(cluster, run)


def test_a_server_that_is_frozen_for_longer_than_a_lease(cluster: Cluster) -> None:
    run = sweep(cluster)
    (server,) = server_processes(cluster.home)
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(LEASE_TTL_S + 3)  # longer than any lease is the point
    os.kill(server.pid, signal.SIGCONT)
    check(cluster, run)
