"""A worker that Celery's own command starts on our application equals `flowctl worker`, or says why it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cluster import WAIT_S, Cluster
from trial_scripts import body

CELERY = [str(Path(sys.executable).with_name("celery")), "-A", "flowctl.workers.app", "worker"]


def test_it_takes_trials_like_any_other(cluster: Cluster) -> None:
    env = {"FLOWCTL_RESOURCES": "cpu=2", "FLOWCTL_WORKER_NAME": "plain"}
    plain = cluster.worker(command=[*CELERY, "-c", "2"], env=env, name="plain")
    other = cluster.worker(cpu=1, name="other")
    run = cluster.submit(body("note('who', me.worker)\ntime.sleep(0.3)", trials=9))

    cluster.wait(run)

    shares = {name: cluster.lines("who").count(name) for name in ("plain", "other")}
    assert sum(shares.values()) == 9 and min(shares.values()) >= 1
    offers = {worker["worker"]: worker["offer"] for worker in cluster.json("workers")["workers"]}
    assert {name: (offer["cpu"], offer["memory"] > 0) for name, offer in offers.items()} == {
        "plain": (2, True),
        "other": (1, False),  # the machine's memory is the first one's
    }
    assert offers["plain"]["slot"] == 2
    assert plain.stop() == 0 and other.stop() == 0


def test_it_hands_its_trials_back_when_it_is_stopped(cluster: Cluster) -> None:
    plain = cluster.worker(command=[*CELERY, "-c", "1"], env={"FLOWCTL_RESOURCES": "cpu=1"})
    run = cluster.submit(body("note('up', me.attempt)\ntime.sleep(600 if me.attempt == 1 else 0)"))
    cluster.until(lambda: cluster.lines("up"))

    assert plain.stop() == 0

    said = "draining: trials are asked to stop and go back with their checkpoints; SIGQUIT kills"
    assert plain.text().count(said) == 1
    assert cluster.state(run, 0) == "pending"
    cluster.worker(cpu=1)
    cluster.wait(run)


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_another_pool_is_refused_in_one_line(cluster: Cluster, pool: str) -> None:
    done = refused(cluster, [*CELERY, "-P", pool])

    assert f"the pool '{pool.removesuffix('s')}' cannot carry trials" in done
    assert "-P prefork" in done
    assert cluster.client.zcard("fc:boots") == 0


@pytest.mark.parametrize("command", [CELERY, [str(Path(sys.executable).with_name("flowctl")), "worker"]])
def test_a_server_that_is_not_there_is_said_in_one_line(cluster: Cluster, command: list[str]) -> None:
    line = refused(cluster, command, FLOWCTL_BROKER_URL="redis://:secret@127.0.0.1:9/0", FLOWCTL_SECRET_KEY="k" * 40)

    assert "127.0.0.1:9" in line
    assert "secret" not in line


def refused(cluster: Cluster, command: list[str], **env: str) -> str:
    """The one line with which a worker that cannot start ends; Celery's own remarks to a root user left out."""
    env = {**cluster.env, **env}
    done = subprocess.run(
        command, env=env, cwd=cluster.root, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode not in (0, None), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("flowctl: ")]
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0]
