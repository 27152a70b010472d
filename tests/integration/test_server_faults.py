"""A server that is killed or frozen in the middle of a sweep: an outage is no death of a trial."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial

import pytest
from cluster import FLOWCTL, LEASE_TTL_S, WAIT_S, Cluster
from server import eventually, server_processes
from trial_scripts import epochs, repeated

from flowctl.broker.embedded import ensure_server, running_server, stop_server

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
    stop_server(cluster.home)  # a killed one would be started again by the worker
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


def kill_server(cluster: Cluster) -> int:
    """kill -9; the pid that it had."""
    (server,) = server_processes(cluster.home)
    server.kill()
    server.wait(20)
    return int(server.pid)


def started(cluster: Cluster, *args: str) -> subprocess.Popen[str]:
    """A command that goes on by itself."""
    pipe = subprocess.PIPE
    return subprocess.Popen([FLOWCTL, *args], env=cluster.env, cwd=cluster.root, stdout=pipe, stderr=pipe, text=True)


def following(cluster: Cluster, *args: str) -> subprocess.Popen[str]:
    """As `started`; returns once it has shown the run."""
    process = started(cluster, *args)
    assert process.stdout is not None and process.stdout.readline()
    return process


def scripts_called(cluster: Cluster) -> int:
    found = cluster.client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(found["calls"])


def test_run_ends_well_although_its_server_was_killed_and_nobody_types_anything(cluster: Cluster) -> None:
    script = cluster.script(epochs(trials=2, epochs=EPOCHS, epoch_s=0.1))
    process = following(cluster, "run", str(script), "--name", "x", "--resources", "cpu=2")
    cluster.until(lambda: "kept 3" in cluster.lines("0"))
    pid = kill_server(cluster)

    out, err = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0, out + err
    assert err.count("no contact with the server") <= 1, err
    assert [trial["attempts"] for trial in cluster.results("x")] == [1, 1]
    assert [each.pid for each in server_processes(cluster.home)] != [pid]


def test_a_worker_starts_a_killed_server_again(cluster: Cluster) -> None:
    run = sweep(cluster)
    kill_server(cluster)
    eventually(lambda: running_server(cluster.home), deadline_s=WAIT_S, what="another server")
    check(cluster, run)


def test_wait_says_once_that_there_is_no_contact_and_starts_a_killed_server_again(cluster: Cluster) -> None:
    run = cluster.submit(epochs(trials=1, epochs=1, epoch_s=0))
    before = scripts_called(cluster)
    process = started(cluster, "wait", run, "--timeout", "6")
    eventually(lambda: scripts_called(cluster) >= before + 5, what="waiting")
    kill_server(cluster)

    _, err = process.communicate(timeout=WAIT_S)

    assert process.returncode == 6
    assert err.count("no contact with the server") == 1, err
    assert len(server_processes(cluster.home)) == 1
    cluster.flowctl("cancel", run, check=True)


def test_a_server_that_was_stopped_stays_stopped_until_somebody_starts_it(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=1)
    run = cluster.submit(epochs(trials=1, epochs=EPOCHS, epoch_s=0.1))
    cluster.until(lambda: "kept 3" in cluster.lines("0"))
    watch = following(cluster, "watch", run)

    cluster.flowctl("down", "--force", check=True)

    eventually(lambda: worker.text().count("was stopped") >= 3, deadline_s=WAIT_S, what="the worker's looking")
    assert server_processes(cluster.home) == []
    assert watch.poll() is None
    cluster.flowctl("up", check=True)
    cluster.wait(run)
    _, err = watch.communicate(timeout=WAIT_S)
    assert (watch.returncode, err.count("was stopped")) == (0, 1), err
