"""Cancelling a run, and a trial in each of its states."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from cluster import Cluster
from trial_scripts import body

SLEEPER = body(
    """
note(f"up-{me.trial}", os.getpid())
try:
    time.sleep(600)
finally:
    note("cleaned", me.trial)
""",
    trials=5,
)


def test_a_trial_that_waits_and_one_that_runs(cluster: Cluster) -> None:
    cluster.worker(cpu=2)
    run = cluster.submit(SLEEPER)
    cluster.until(lambda: cluster.lines("up-0") and cluster.lines("up-1"))

    waiting = cluster.json("cancel", f"{run}/4")
    assert (waiting["state"], waiting["had_ended"]) == ("cancelled", False)
    assert cluster.state(run, 4) == "cancelled"
    cluster.flowctl("cancel", f"{run}/0", check=True)
    cluster.until(lambda: cluster.state(run, 0) == "cancelled")
    assert cluster.lines("cleaned") == ["0"]
    assert not psutil.pid_exists(int(cluster.lines("up-0")[0]))
    cluster.until(lambda: cluster.lines("up-2"), what="the next trial on the freed core")
    again = cluster.json("cancel", f"{run}/0")
    assert (again["state"], again["had_ended"]) == ("cancelled", True)

    cluster.flowctl("cancel", run, check=True)
    found = cluster.wait(run, state="cancelled")

    assert found["counts"]["cancelled"] == 5
    assert not cluster.lines("up-3") and not cluster.lines("up-4")
    assert [trial["status"] for trial in cluster.results(run)] == ["cancelled"] * 5
    once_more = cluster.json("cancel", run)
    assert (once_more["state"], once_more["had_ended"]) == ("cancelled", True)
    for index in range(3):
        history = cluster.trial(run, index)["history"]
        assert [attempt["outcome"] for attempt in history] == ["cancelled"]


@pytest.mark.parametrize("what", ["the trial", "the run"])
def test_what_is_placed_and_not_claimed(cluster: Cluster, what: str) -> None:
    """The worker is frozen meanwhile; the message that it finds afterwards runs nothing."""
    worker = cluster.worker(cpu=1)
    os.killpg(worker.pid, signal.SIGSTOP)
    run = cluster.submit(SLEEPER)
    assert cluster.state(run, 0) == "placed"

    cluster.flowctl("cancel", f"{run}/0" if what == "the trial" else run, check=True)
    if what == "the trial":
        assert cluster.state(run, 0) == "cancelled"
        cluster.flowctl("cancel", run, check=True)
    os.killpg(worker.pid, signal.SIGCONT)

    cluster.wait(run, state="cancelled")
    after = cluster.submit(body("note('after', 1)"))
    cluster.wait(after)
    assert not any(cluster.lines(f"up-{index}") for index in range(5))


def test_a_trial_that_ignores_it_is_killed_after_the_grace(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    run = cluster.submit(
        body("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote('up', os.getpid())\ntime.sleep(600)")
    )
    cluster.until(lambda: cluster.lines("up"))

    cluster.flowctl("cancel", run, check=True)

    cluster.wait(run, state="cancelled")
    assert not psutil.pid_exists(int(cluster.lines("up")[0]))
    assert cluster.trial(run, 0)["history"][0]["outcome"] == "cancelled"


def test_a_trial_that_reports_learns_of_it_at_once(cluster: Cluster) -> None:
    """`report` raises TrialStopped, which `except Exception` lets pass."""
    cluster.worker(cpu=1)
    run = cluster.submit(
        body(
            """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(1_000_000):
    try:
        report({'n': n})
    except Exception:
        note('caught', n)
    except BaseException as error:
        note('stopped', type(error).__name__)
        raise
    note('up', n)
    time.sleep(0.01)
"""
        )
    )
    cluster.until(lambda: cluster.lines("up"))

    cluster.flowctl("cancel", run, check=True)

    cluster.wait(run, state="cancelled")
    assert cluster.lines("stopped") == ["TrialStopped"]
    assert cluster.lines("caught") == []


def test_without_a_worker_the_server_ends_it(cluster: Cluster) -> None:
    run = cluster.submit(SLEEPER)

    cluster.flowctl("cancel", run, check=True)

    assert cluster.wait(run, state="cancelled")["counts"]["cancelled"] == 5
    assert cluster.flowctl("wait", run).returncode == 1


def test_what_does_not_exist_is_refused(cluster: Cluster) -> None:
    run = cluster.submit(SLEEPER)
    for target in ("nothing", f"{run}/9", f"{run}/nothing/0"):
        done = cluster.flowctl("cancel", target)
        assert done.returncode in (2, 5) and done.stderr.count("\n") == 1, done.stderr
    cluster.flowctl("cancel", run, check=True)


def test_the_name_of_an_experiment_does_not_cancel_its_whole_run(cluster: Cluster) -> None:
    run = cluster.submit(
        "from flowctl import experiment, flow\n"
        "@experiment(num_samples=2)\ndef one(config): ...\n"
        "@experiment(num_samples=2)\ndef two(config): ...\n"
        "@flow\ndef both():\n    one()\n    two()\n"
    )

    said = cluster.flowctl("cancel", f"{run}/two")

    assert said.returncode == 5
    assert "one experiment of a run cannot be cancelled yet" in said.stderr
    assert cluster.state(run) == "submitted"
    cluster.flowctl("cancel", run, check=True)
