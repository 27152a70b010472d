"""What `flowctl run` says and does when it is left before its run has ended, and what it says of a failed one."""

from __future__ import annotations

import signal
import subprocess

import pytest
from cluster import FLOWCTL, WAIT_S, Cluster
from script import script, trains

LONG = trains(
    "report({'m': config.x})\nmark('up')\nwait_for('go')", param_space="{'x': grid([1, 2])}", metric="'m'", mode="'min'"
)


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command that goes on while the test looks."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [FLOWCTL, *arguments], env=cluster.env, cwd=cluster.root, stdout=pipe, stderr=pipe, text=True
    )


def test_ctrl_c_while_another_worker_has_the_run_detaches(cluster: Cluster) -> None:
    cluster.worker(cpu=1, name="sep")
    run = start(cluster, "run", str(cluster.script(LONG)), "--name", "left")
    cluster.until(lambda: cluster.has_lines("up", 1), what="a trial")

    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=WAIT_S)

    assert run.returncode == 130
    assert err.splitlines()[-1] == "detached; the run goes on on worker sep; end it: flowctl cancel left"
    (cluster.side / "go").touch()
    cluster.wait("left")


def test_ctrl_c_stops_the_own_worker_and_the_best_so_far_stays_visible(cluster: Cluster) -> None:
    run = start(cluster, "run", str(cluster.script(LONG)), "--name", "left")
    cluster.until(lambda: cluster.has_lines("up", 2), what="the trials")

    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=WAIT_S)

    assert run.returncode == 130
    assert err.splitlines()[-1] == "stopped; go on with: flowctl run --attach left"
    shown = cluster.flowctl("status", "left", check=True).stdout
    assert "best m 1  left/0" in shown and "2 pending" in shown
    cluster.flowctl("cancel", "left", check=True)


def test_a_reader_that_goes_is_left_as_by_ctrl_c(cluster: Cluster) -> None:
    run = start(cluster, "run", str(cluster.script(LONG)), "--name", "left")
    assert run.stdout is not None and run.stderr is not None
    assert run.stdout.readline().startswith("left  ")

    run.stdout.close()
    err = run.stderr.read()

    assert run.wait(WAIT_S) == 141
    assert err.splitlines()[0] == "flowctl: nobody reads on (broken pipe)"
    assert err.splitlines()[-1] == "stopped; go on with: flowctl run --attach left"
    assert cluster.state("left") not in ("completed", "failed", "cancelled")
    cluster.flowctl("cancel", "left", check=True)


def test_a_watcher_whose_reader_goes_leaves_the_run_alone(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    cluster.submit(LONG, "--name", "seen")
    watch = start(cluster, "watch", "seen")
    assert watch.stdout is not None and watch.stderr is not None
    assert watch.stdout.readline().startswith("seen  ")

    watch.stdout.close()
    (cluster.side / "go").touch()

    assert watch.wait(WAIT_S) == 141
    assert "the run goes on; look on: flowctl watch seen; end it: flowctl cancel seen" in watch.stderr.read()
    cluster.wait("seen")


FLOW = script(
    """\
@experiment(param_space={"x": grid([1, 2])}, metric="m", mode="min")
def train(config):
    report({"m": config.x})


@stage
def final(config):
    raise ValueError("bad luck")


@flow
def pipe():
    return final(train().best.config)
"""
)


def test_closing_lines_of_a_failed_flow_name_the_step_that_failed_and_its_log(cluster: Cluster) -> None:
    done = cluster.flowctl("run", str(cluster.script(FLOW)), "--name", "f")

    assert done.returncode == 1
    *_, best, failed, results, log = done.stdout.splitlines()
    assert best.startswith("best m 1  f/0")
    assert failed.startswith("failed: f/final: ValueError: bad luck  at script1.py:")
    assert (results, log) == ("results: flowctl results f", "log: flowctl logs f/final")
    listed = cluster.flowctl("results", "f", check=True)
    assert "f/final failed: ValueError: bad luck" in listed.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("report({'los': 1})", "no trial reported 'loss'; they reported: los; did you mean 'los'?"),
        ("pass", "nothing was reported: call report({'loss': …}) in the trial"),
        ("report({'loss': float('nan')})", "no trial has a finite loss"),
        ("open('data.csv')", "trials run in an empty folder of their own: use an absolute path"),
        ("report(loss=1)", 'TypeError: report takes one dictionary: report({"loss": 1})'),
    ],
)
def test_what_a_first_script_gets_wrong_is_said_at_the_end(cluster: Cluster, body: str, said: str) -> None:
    text = trains(body, metric="'loss'", mode="'min'")

    done = cluster.flowctl("run", str(cluster.script(text)), "--name", "r")

    assert said in done.stdout


def test_a_misspelled_metric_is_noticed_while_the_trial_runs(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    text = trains("report({'los': 1})\nmark('up')\nwait_for('go')", metric="'loss'", mode="'min'")
    watch = start(cluster, "run", str(cluster.script(text)), "--name", "typo")
    cluster.until(lambda: cluster.has_lines("up", 1), what="the report")
    notice = "typo/0 reports los; not the metric 'loss'; did you mean 'los'?"

    cluster.until(lambda: notice in cluster.flowctl("status", "typo").stdout, what="the notice")
    assert cluster.status("typo")["notices"] == [notice]
    (cluster.side / "go").touch()
    assert notice in watch.communicate(timeout=WAIT_S)[0]


def test_attaching_to_what_has_ended_says_so(cluster: Cluster) -> None:
    cluster.flowctl("run", str(cluster.script(trains("pass"))), "--name", "over", check=True)

    again = cluster.flowctl("run", "--attach", "over")

    assert again.returncode == 5
    assert "over: the run has ended (completed) and cannot go on" in again.stderr


def test_resources_of_run_are_checked_before_anything_is_submitted(cluster: Cluster) -> None:
    done = cluster.flowctl("run", str(cluster.script(trains("pass"))), "--resources", "cpus=2")

    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown name 'cpus'; write 'cpu'" in done.stderr


def test_a_name_that_cannot_be_an_id_is_told_with_the_id(cluster: Cluster) -> None:
    done = cluster.flowctl("run", str(cluster.script(trains("pass"))), "--name", "my run/1", check=True)

    assert "the run 'my run/1' is called my-run-1-" in done.stderr
