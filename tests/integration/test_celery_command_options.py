"""Options of Celery's own command: each works, or the worker ends with one line that says why not."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import WAIT_S, Cluster
from trial_scripts import body

CELERY = [str(Path(sys.executable).with_name("celery")), "-A", "flowctl.workers.app", "worker"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("-Q", "something"), "-Q does not fit"),
        (("-X", "celery"), "-X does not fit"),
        (("--autoscale=3,1",), "--autoscale does not fit"),
        (("-B",), "-B does not fit"),
        (("--max-tasks-per-child", "1"), "--max-tasks-per-child does not fit"),
        (("--max-memory-per-child", "100000"), "--max-memory-per-child does not fit"),
        (("--time-limit", "5"), "--time-limit does not fit"),
        (("--soft-time-limit", "5"), "--soft-time-limit does not fit"),
        (("--pool-start-method", "spawn"), "--pool-start-method does not fit"),
        (("-c", "auto"), "-c auto does not fit"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_in_one_line(
    cluster: Cluster, options: tuple[str, ...], word: str
) -> None:
    done = subprocess.run(
        [*CELERY, *options],
        env=cluster.env,
        cwd=cluster.root,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("flowctl: ")]
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(said) == 1 and word in said[0]
    assert "Traceback" not in done.stdout + done.stderr
    assert cluster.client.zcard("fc:boots") == 0
    assert [path.name for path in cluster.root.iterdir() if "celerybeat" in path.name] == []


def test_name_events_concurrency_and_log_level_are_obeyed(cluster: Cluster) -> None:
    options = ["-n", "bob@%h", "-E", "-c", "3", "-l", "INFO", "-O", "fair"]
    bob = cluster.worker(command=[*CELERY, *options], env={"FLOWCTL_RESOURCES": "cpu=2"})

    run = cluster.submit(body("note('who', me.worker)", trials=3))
    cluster.wait(run)

    assert cluster.lines("who") == ["bob"] * 3
    offer = cluster.json("workers")["workers"][0]["offer"]
    assert (offer["cpu"], offer["slot"]) == (2, 3) and offer["memory"] > 0
    assert re.search(r"worker bob offers cpu=2, (gpu=\d+, )?memory=\d+[GM]iB, slot=3", bob.text())
    # Somebody who listens is told: the events of this worker are on.
    listener = cluster.client.pubsub()
    listener.psubscribe("*.celeryev/worker.heartbeat")
    cluster.until(lambda: (listener.get_message(timeout=1) or {}).get("type") == "pmessage", what="a heartbeat")
    listener.close()
    assert bob.stop() == 0


def test_a_worker_that_is_told_to_stop_many_times_at_once_stops(cluster: Cluster) -> None:
    """Service managers and process groups tell it twice; a signal that interrupts its own handler must not hang."""
    worker = cluster.worker(command=[*CELERY, "-c", "1"], env={"FLOWCTL_RESOURCES": "cpu=1"})

    while not worker.is_over and worker.text().count("Warm shutdown") < 200:
        worker.process.send_signal(signal.SIGTERM)

    assert worker.stop() == 0


def test_two_workers_on_one_machine_share_what_is_detected(cluster: Cluster) -> None:
    first = cluster.worker(slots=2, name="first")
    second = cluster.worker(slots=2, name="second")

    offers = {worker["worker"]: worker["offer"]["cpu"] for worker in cluster.json("workers")["workers"]}
    assert offers["first"] >= 1 and offers["second"] == 0
    assert "all cores of this machine are offered by first; this worker offers them when that ends" in second.text()
    assert "all cores" not in first.text()
