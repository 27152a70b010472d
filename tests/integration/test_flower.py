"""Flower beside a worker with `--events` shows workers and tasks by name; a worker without works, and shows none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import WAIT_S, Cluster
from trial_scripts import body

pytest.importorskip("flower", reason="the extra 'flower' is not installed")

CELERY = str(Path(sys.executable).with_name("celery"))
HOLD = """
note('held', me.worker)
while not (Path(os.environ['SIDE']) / 'go').exists():
    time.sleep(0.05)
"""
FLOWCTL_EVENTS = [str(Path(sys.executable).with_name("flowctl")), "worker", "--events"]


def test_tasks_and_workers_are_shown_by_name_and_state(cluster: Cluster) -> None:
    cluster.worker(command=FLOWCTL_EVENTS, env={"FLOWCTL_WORKER_NAME": "seen"}, cpu=2, slots=2, name="seen")

    with flower(cluster) as port:
        cluster.until(lambda: named(get(port, "workers?refresh=1"), "seen"), what="the worker in Flower")
        run = cluster.submit(body("note('who', me.worker)", trials=3))
        cluster.wait(run)
        cluster.until(lambda: states(port, run) == ["SUCCESS"] * 3, what="three tasks in Flower")
        tasks = list(get(port, "tasks").values())
        stats = next(iter(get(port, "workers?refresh=1").values()))

    assert {task["name"] for task in tasks} == {"flowctl.run_unit"}
    assert {task["uuid"] for task in tasks} == {f"{run}:train:{index}.1" for index in range(3)}
    assert "flowctl.run_unit" in stats["registered"]
    assert stats["stats"]["pool"]["max-concurrency"] == 2
    shown = json.dumps([tasks, stats])
    assert cluster.broker.url.password not in shown
    assert (cluster.home / "secret.key").read_text().strip() not in shown


def test_events_survive_cut_connections(cluster: Cluster) -> None:
    cluster.worker(command=FLOWCTL_EVENTS, cpu=2, slots=2)

    with flower(cluster) as port:
        first = cluster.submit(body("note('did', 1)"))
        cluster.wait(first)
        cluster.until(lambda: states(port, first) == ["SUCCESS"], what="the first task in Flower")
        for kind in ("pubsub", "normal"):
            cluster.client.execute_command("CLIENT", "KILL", "TYPE", kind)
        second = cluster.submit(body("note('did', 2)", trials=2))
        cluster.wait(second)
        third = cluster.submit(body("note('did', 3)"))
        cluster.wait(third)
        cluster.until(lambda: states(port, third) == ["SUCCESS"], what="a task after the cut in Flower")

    assert sorted(cluster.lines("did")) == ["1", "2", "2", "3"]


def test_a_worker_without_events_works_and_shows_no_task(cluster: Cluster) -> None:
    cluster.worker(cpu=1, name="quiet")
    cluster.worker(command=FLOWCTL_EVENTS, env={"FLOWCTL_WORKER_NAME": "seen"}, resources="cpu=1,seen=1")

    with flower(cluster) as port:
        cluster.until(lambda: named(get(port, "workers?refresh=1"), "seen"), what="the worker in Flower")
        # A trial that fits nowhere else holds the worker with events, so that the next runs on the quiet one.
        held = cluster.submit(body(HOLD).replace('{"cpu": 1}', '{"cpu": 1, "seen": 1}'))
        cluster.until(lambda: cluster.lines("held"))
        unseen = cluster.submit(body("note('who', me.worker)"))
        cluster.wait(unseen)
        (cluster.side / "go").touch()
        cluster.wait(held)
        cluster.until(lambda: states(port, held) == ["SUCCESS"], what="the task of the other worker in Flower")
        shown, workers = states(port, unseen), get(port, "workers?refresh=1")

    assert (cluster.lines("who"), shown) == (["quiet"], [])
    assert not named(workers, "quiet")


@contextmanager
def flower(cluster: Cluster) -> Iterator[int]:
    """Flower on a free loopback port, once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [CELERY, "-A", "flowctl.workers.app", "flower", "--address=127.0.0.1", f"--port={port}"]
    log = cluster.root / "flower.log"
    with log.open("wb") as file:
        env = {**cluster.env, "FLOWER_UNAUTHENTICATED_API": "true"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            cwd=cluster.root,
            start_new_session=True,
        )
    try:
        cluster.until(lambda: answers(port) or process.poll() is not None, what="Flower's start")
        assert process.poll() is None, log.read_text()
        # It listens to events once its subscription stands.
        cluster.until(lambda: cluster.client.execute_command("PUBSUB", "NUMPAT") > 0, what="Flower's subscription")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)


def get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=WAIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def answers(port: int) -> bool:
    try:
        get(port, "tasks")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


def named(workers: dict[str, Any], name: str) -> bool:
    """Whether Flower knows a worker of that name, with what it answered."""
    return any(key.startswith(f"{name}@") and "stats" in value for key, value in workers.items())


def states(port: int, run: str) -> list[str]:
    """The states of a run's tasks in Flower."""
    return [task["state"] for name, task in get(port, "tasks").items() if name.startswith(f"{run}:")]
