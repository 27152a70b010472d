"""Workers that are killed, in whole or in part, and workers that are told to stop, while trials run on them."""

from __future__ import annotations

import csv
import io
import os
import random
import signal
import subprocess
import time
from functools import partial

import psutil
import pytest
from cluster import ENDED, FLOWCTL, LEASE_TTL_S, Cluster, Worker
from trial_scripts import body, epochs, repeated

ALLOWED_S = LEASE_TTL_S + 2.0
"""A trial of a dead worker runs elsewhere within the lease's term and two seconds."""

SLOW = 3.0
"""How much longer that may take on a machine that is shared with others, as where the tests run."""

FULL = [pytest.mark.acceptance, pytest.mark.timeout(3600)]


def on(cluster: Cluster, run: str, worker: Worker) -> list[str]:
    """The units of a run that are placed or running on this start of a worker."""
    units = cluster.client.smembers(f"fc:active:{run}")
    return sorted(unit for unit in units if cluster.client.hget(f"fc:unit:{unit}", "boot") == worker.boot)


def epoch_of(cluster: Cluster, unit: str) -> int:
    return int(cluster.client.hget(f"fc:unit:{unit}", "epoch") or 0)


def moved(cluster: Cluster, unit: str, boot: str, epoch: int) -> bool:
    """Whether a unit was claimed after this epoch by another boot, or has ended."""
    state, now_on, now_at = cluster.client.hmget(f"fc:unit:{unit}", "state", "boot", "epoch")
    return state in ENDED or (state == "running" and now_on != boot and int(now_at) > epoch)


@pytest.mark.parametrize(
    ("rounds", "slow"), [pytest.param(2, SLOW, id="2"), pytest.param(20, 1.0, id="20", marks=FULL)]
)
def test_trials_of_a_killed_worker_run_elsewhere(cluster: Cluster, rounds: int, slow: float) -> None:
    luck = random.Random(6)
    cluster.worker(cpu=4, name="steady")
    for round_ in range(rounds):
        victim = cluster.worker(cpu=2, name=f"victim{round_}")
        run = cluster.submit(epochs(trials=6, epochs=8, epoch_s=0.25), "--name", f"round{round_}")
        time.sleep(luck.uniform(0.0, 2.5))  # the instant of the death is the point
        victim.kill()
        killed = time.monotonic()
        theirs = {unit: epoch_of(cluster, unit) for unit in on(cluster, run, victim)}
        for unit, epoch in theirs.items():
            what = f"{unit} elsewhere (round {round_})"
            left_s = killed + ALLOWED_S * slow - time.monotonic()
            cluster.until(partial(moved, cluster, unit, victim.boot, epoch), what=what, deadline_s=left_s)
        cluster.wait(run)
        check(cluster, run, trials=6, epochs=8)
        files = [cluster.side / str(index) for index in range(6)]
        for file in files:
            file.unlink()
    cluster.worker(cpu=2, name="victim0").stop()


def check(cluster: Cluster, run: str, *, trials: int, epochs: int) -> None:
    """Every trial ended once, with all its rows once, and repeated nothing that a checkpoint had kept."""
    assert set(cluster.ends(run).values()) == {1}
    assert len(cluster.ends(run)) == trials
    for index in range(trials):
        assert repeated(cluster.lines(str(index))) == []
        assert f"kept {epochs}" in cluster.lines(str(index))
    rows = cluster.rows(run)
    assert sorted((row["index"], row["training_iteration"]) for row in rows) == [
        (index, epoch) for index in range(trials) for epoch in range(1, epochs + 1)
    ]
    assert cluster.violations() == []


def test_a_worker_that_dies_before_it_claims(cluster: Cluster) -> None:
    """Frozen first, so that what is placed on it is surely unclaimed when it dies."""
    victim = cluster.worker(cpu=2, name="victim")
    os.killpg(victim.pid, signal.SIGSTOP)
    run = cluster.submit(epochs(trials=2, epochs=2, epoch_s=0.01))
    assert len(on(cluster, run, victim)) == 2
    victim.kill()
    killed = time.monotonic()
    cluster.worker(cpu=2, name="other")

    left_s = killed + ALLOWED_S * SLOW - time.monotonic()
    cluster.until(lambda: on(cluster, run, victim) == [], what="the return of what was placed", deadline_s=left_s)
    cluster.wait(run)

    assert [trial["attempts"] for trial in cluster.results(run)] == [1, 1]
    assert all(cluster.trial(run, index)["losses"] == 0 for index in range(2))
    check(cluster, run, trials=2, epochs=2)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=FULL)])
def test_a_worker_that_dies_while_it_claims(cluster: Cluster, rounds: int) -> None:
    for round_ in range(rounds):
        victim = cluster.worker(cpu=1, name=f"victim{round_}")
        run = cluster.submit(epochs(trials=1, epochs=2, epoch_s=0.01), "--name", f"round{round_}")
        while cluster.state(run, 0) not in ("running", *ENDED):
            pass
        victim.kill()
        other = cluster.worker(cpu=1, name=f"other{round_}")
        cluster.wait(run)
        other.stop()
        check(cluster, run, trials=1, epochs=2)
        (cluster.side / "0").unlink()


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=FULL)])
def test_a_worker_that_dies_while_it_finishes(cluster: Cluster, rounds: int) -> None:
    """Killed when the outcome record appears: the outcome is published by the next attempt, which runs no user code."""
    for round_ in range(rounds):
        victim = cluster.worker(cpu=1, name=f"victim{round_}")
        run = cluster.submit(epochs(trials=1, epochs=2, epoch_s=0.01), "--name", f"round{round_}")
        folder = cluster.storage / run / "steps" / "train" / "0000" / "000000"
        while not list(folder.glob("outcome-*")):
            pass
        victim.kill()
        was_published = cluster.state(run, 0) == "completed"
        other = cluster.worker(cpu=1, name=f"other{round_}", far=True)
        cluster.wait(run)
        other.stop()
        check(cluster, run, trials=1, epochs=2)
        assert [line for line in cluster.lines("0") if line.startswith("start")] == ["start 1 0"]
        assert cluster.trial(run, 0)["attempts"] == (1 if was_published else 2)
        (cluster.side / "0").unlink()


def test_a_killed_guardian_is_noticed_by_its_worker(cluster: Cluster) -> None:
    """No lease need run out: the worker sweeps what the trial left and says that it is gone."""
    worker = cluster.worker(cpu=1)
    run = cluster.submit(
        epochs(trials=1, epochs=6, epoch_s=0.2).replace(
            "    done = restored()",
            "    import subprocess\n"
            "    note('pids', subprocess.Popen(['sleep', '600'], start_new_session=True).pid)\n"
            "    done = restored()",
        )
    )
    cluster.until(lambda: "kept 2" in cluster.lines("0"))
    trial = cluster.trial_pids(run, 0)[0]
    guardian = psutil.Process(trial).ppid()
    assert guardian in worker.guardians()
    os.kill(guardian, signal.SIGKILL)

    cluster.wait(run)

    history = cluster.trial(run, 0)["history"]
    assert [attempt["outcome"] for attempt in history] == ["lost", "completed"]
    assert history[0]["cause"]["kind"] == "guardian_lost"
    assert not any(psutil.pid_exists(pid) for pid in (trial, *map(int, cluster.lines("pids"))))
    check(cluster, run, trials=1, epochs=6)
    again = cluster.submit(body("note('again', me.trial)"))
    cluster.wait(again)
    assert not worker.is_over


def test_a_worker_whose_main_process_is_killed(cluster: Cluster) -> None:
    """Its guardians and trials end with it or are fenced off; what they did is not done again."""
    victim = cluster.worker(cpu=2, name="victim")
    run = cluster.submit(epochs(trials=2, epochs=6, epoch_s=0.2))
    cluster.until(lambda: "kept 1" in cluster.lines("0"))
    victim.kill(only_main=True)
    cluster.worker(cpu=2, name="other")

    cluster.wait(run)

    check(cluster, run, trials=2, epochs=6)
    victim.kill_group()


def test_a_worker_that_is_frozen_for_longer_than_a_lease(cluster: Cluster) -> None:
    """Its trial runs elsewhere; when it wakes up, it is told so, ends what it has, and is of use again."""
    frozen = cluster.worker(cpu=1, name="frozen")
    run = cluster.submit(epochs(trials=1, epochs=10, epoch_s=0.3))
    cluster.until(lambda: "kept 2" in cluster.lines("0"))
    (unit,) = on(cluster, run, frozen)
    trial = cluster.trial_pids(run, 0)[0]
    os.killpg(frozen.pid, signal.SIGSTOP)
    cluster.worker(cpu=1, name="other")
    cluster.until(partial(moved, cluster, unit, frozen.boot, 1), what="the trial elsewhere")
    assert cluster.used()[frozen.boot]["cpu"] == 10_000, "what a lost trial holds is not given away"
    os.killpg(frozen.pid, signal.SIGCONT)

    cluster.wait(run)

    assert [attempt["outcome"] for attempt in cluster.trial(run, 0)["history"]] == ["lost", "completed"]
    cluster.until(lambda: not psutil.pid_exists(trial), what="the end of the lost trial")
    check(cluster, run, trials=1, epochs=10)
    cluster.until(lambda: not cluster.used(), what="the return of what the lost trial held")
    again = cluster.submit(body("note('who', me.worker)\ntime.sleep(0.5)", trials=4))
    cluster.wait(again)
    assert set(cluster.lines("who")) == {"frozen", "other"}


def test_a_worker_that_is_told_to_stop_hands_its_trials_back(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=2, name="first")
    run = cluster.submit(epochs(trials=2, epochs=10, epoch_s=0.2))
    cluster.until(lambda: all("kept 2" in cluster.lines(str(index)) for index in range(2)))

    assert worker.stop() == 0

    assert [cluster.state(run, index) for index in range(2)] == ["pending", "pending"]
    assert cluster.client.zrange("fc:boots", 0, -1) == []
    assert cluster.used() == {}
    for index in range(2):
        trial = cluster.trial(run, index)
        assert trial["failures"] == 0 and trial["losses"] == 0
        assert trial["checkpoint"]["iteration"] >= 2
        assert [attempt["outcome"] for attempt in trial["history"]] == ["preempted"]
    cluster.worker(cpu=2, name="second")
    cluster.wait(run)
    check(cluster, run, trials=2, epochs=10)


def test_a_trial_that_ignores_the_stop_of_its_worker(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=1)
    run = cluster.submit(
        body("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote('up', os.getpid())\ntime.sleep(600)")
    )
    cluster.until(lambda: cluster.lines("up"))

    assert worker.stop() == 0

    assert not psutil.pid_exists(int(cluster.lines("up")[0]))
    assert cluster.state(run, 0) == "pending"
    assert cluster.trial(run, 0)["failures"] == 0
    cluster.flowctl("cancel", run, check=True)


@pytest.mark.parametrize("trial_s", [0.3, pytest.param(1.0, marks=FULL)])
def test_two_workers_share_a_sweep_whose_submitter_dies(cluster: Cluster, trial_s: float) -> None:
    workers = [cluster.worker(cpu=1, name=name) for name in ("left", "right")]
    script = body(
        f"note(me.trial, me.worker)\ntime.sleep({trial_s})\nreport({{'score': config.x * 2}})",
        trials=24,
        options="metric='score', mode='max'",
    )
    terminal = subprocess.Popen(
        [FLOWCTL, "submit", str(cluster.script(script)), "--name", "shared", "--watch"],
        env=cluster.env,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    cluster.until(lambda: cluster.lines("0"))
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.wait()
    assert int(cluster.client.hget("fc:step:shared:train", "completed")) < 3

    cluster.wait("shared")

    rows = list(csv.DictReader(io.StringIO(cluster.flowctl("results", "shared", "--csv", check=True).stdout)))
    assert len(rows) == 24
    columns = {"trial", "status", "attempts", "worker", "started", "duration_s", "config.x", "metrics.score"}
    assert columns <= set(rows[0])
    for row in rows:
        assert row["status"] == "completed" and row["attempts"] == "1"
        assert float(row["duration_s"]) >= trial_s
        assert int(row["metrics.score"]) == 2 * int(row["config.x"])
        assert cluster.lines(row["config.x"]) == [row["worker"]]
    shares = [sum(row["worker"] == worker.name for row in rows) for worker in workers]
    assert sum(shares) == 24 and min(shares) >= 8, shares
