"""Trials that are killed, that ignore being asked to end, and that leave processes behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest
from cluster import Cluster
from trial_scripts import body, epochs, repeated


def test_a_killed_trial_goes_on_from_its_last_checkpoint(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    run = cluster.submit(epochs(trials=1, epochs=8, epoch_s=0.3, options="max_failures=1"))
    cluster.until(lambda: "kept 5" in cluster.lines("0"), what="epoch 5")
    os.kill(cluster.trial_pids(run, 0)[0], signal.SIGKILL)

    cluster.wait(run)

    trial = cluster.trial(run, 0)
    assert [attempt["outcome"] for attempt in trial["history"]] == ["failed", "completed"]
    first = trial["history"][0]["cause"]
    assert (first["kind"], first["signal"], first["text"]) == ("signal", 9, "killed by signal 9")
    assert "killed by signal 9" in cluster.flowctl("status", f"{run}/0").stdout
    starts = [line for line in cluster.lines("0") if line.startswith("start")]
    assert starts in (["start 1 0", "start 2 5"], ["start 1 0", "start 2 6"])
    assert repeated(cluster.lines("0")) == []
    assert [row["training_iteration"] for row in cluster.results(run, "--rows")] == list(range(1, 9))


def test_without_a_failure_to_spare_it_fails_with_its_cause(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    run = cluster.submit(body("note('up', os.getpid())\ntime.sleep(600)"))
    cluster.until(lambda: cluster.lines("up"))
    os.kill(int(cluster.lines("up")[0]), signal.SIGTERM)

    cluster.wait(run, state="failed")

    assert cluster.trial(run, 0)["cause"]["text"] == "killed by signal 15"
    assert cluster.client.hget(f"fc:step:{run}:train", "failed") == "1"


LEAVER = body(
    """
import subprocess
note('pids', subprocess.Popen(['sleep', '600']).pid)
note('pids', subprocess.Popen(['sleep', '600'], start_new_session=True).pid)
note('pids', subprocess.Popen(['sleep', '600'], start_new_session=True, env={}).pid)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note('pids', os.getpid())
        os.execve('/bin/sleep', ['sleep', '600'], {})
    os._exit(0)
os.wait()
while len((Path(os.environ['SIDE']) / 'pids').read_text().split()) < 4:
    time.sleep(0.01)
note('ready', os.getpid())
if HOLD:
    time.sleep(600)
"""
)


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_nothing_that_a_trial_started_outlives_it(cluster: Cluster, how: str) -> None:
    cluster.worker(cpu=1)
    run = cluster.submit(LEAVER.replace("HOLD", str(how == "is killed")))
    cluster.until(lambda: cluster.lines("ready"))
    if how == "is killed":
        os.kill(int(cluster.lines("ready")[0]), signal.SIGKILL)

    cluster.wait(run, state="completed" if how == "returns" else "failed")

    left = [pid for pid in map(int, cluster.lines("pids")) if psutil.pid_exists(pid)]
    assert len(cluster.lines("pids")) == 4
    assert left == []


REPORTER = """
for n in range(100_000):
    report({'n': n})
    note(me.trial, n)
    time.sleep(0.002)
"""


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=[pytest.mark.acceptance, pytest.mark.timeout(3600)])])
def test_a_metric_that_report_took_survives_trial_and_guardian(cluster: Cluster, rounds: int) -> None:
    """Both are killed at once, right after `report` returned; another process reads the value in `results`.

    No trial may be lost even once, so that none is started again while its rows are looked at.
    """
    luck = random.Random(10)
    cluster.worker(cpu=3)
    run = cluster.submit(body(REPORTER, trials=rounds, options="max_worker_losses=0"))
    for index in range(rounds):
        least = luck.randrange(1, 60)
        cluster.until(partial(cluster.has_lines, str(index), least), what="a report")
        pids = cluster.trial_pids(run, index)
        guardian = psutil.Process(pids[0]).ppid()
        for pid in (guardian, *pids) if luck.random() < 0.5 else (*pids, guardian):
            kill(pid)
        returned = set(map(int, cluster.lines(str(index))))
        values = {row["n"] for row in cluster.trial_rows(run, index)}
        assert returned <= values, f"round {index}: lost {sorted(returned - values)[:5]} of {len(returned)}"
    cluster.wait(run, state="failed")
    assert {cluster.trial(run, index)["reason"] for index in (0, rounds - 1)} == {"lost too often"}


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_side_folder_is_private(cluster: Cluster) -> None:
    """The trial starts in an empty folder of its own, which is gone afterwards, and sees no secret."""
    cluster.worker(cpu=1)
    run = cluster.submit(
        body(
            """
note('cwd', os.getcwd())
note('names', sorted(os.listdir('.')))
secrets = {'FLOWCTL_BROKER_URL', 'FLOWCTL_SECRET_KEY', 'FLOWCTL_JOIN'}
note('secrets', sorted(secrets & set(os.environ)))
note('modules', sorted(name for name in sys.modules if name.split('.')[0] in ('redis', 'celery', 'kombu')))
"""
        )
    )
    cluster.wait(run)
    assert cluster.lines("names") == ["[]"]
    assert cluster.lines("secrets") == ["[]"]
    assert cluster.lines("modules") == ["[]"]
    cluster.until(lambda: not Path(cluster.lines("cwd")[0]).exists(), what="the removal of the attempt's folder")
