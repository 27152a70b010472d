"""Cases of waiting, leaking and drifting: what a person is told while nothing happens, and that no token gets lost."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from cluster import FLOWCTL, WAIT_S, Cluster, strict_json
from script import trains

NPU = trains("report({'m': 1})", param_space="{'x': grid([1, 2])}", resources="{'cpu': 1, 'npu': 1}")
TOLD = "no live worker offers npu (asked 1)"


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """A command that is looked at while it runs."""
    return subprocess.Popen(
        [FLOWCTL, *arguments],
        env=cluster.env,
        cwd=cluster.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_unknown_resource_is_told_and_fails_after_the_pending_timeout(cluster: Cluster) -> None:
    """B23: the same words at submit, in status, per trial, and on stderr at the end."""
    cluster.worker(cpu=1)
    script = str(cluster.script(NPU))

    waiting = start(cluster, "submit", script, "--name", "npu", "--wait", "--pending-timeout", "10")
    cluster.until(lambda: cluster.state("npu", 1) == "pending", what="the run")
    pending, trial = cluster.status("npu")["pending"], cluster.trial("npu", 1)["pending"]
    out, err = waiting.communicate(timeout=WAIT_S)

    assert waiting.returncode == 1
    assert f"2 trials of train cannot run: {TOLD}" in out
    assert [(each["kind"], each["text"], each["impossible"]) for each in (*pending, trial)] == [
        ("impossible", TOLD, True)
    ] * 2
    assert err == f"flowctl: npu/0 and 1 more: was pending for 10 s: {TOLD}\n"
    assert [each["status"] for each in cluster.results("npu")] == ["failed", "failed"]


def test_worker_that_comes_before_the_pending_timeout_takes_it(cluster: Cluster) -> None:
    """B23, its other end."""
    cluster.worker(cpu=1)
    waiting = start(
        cluster, "submit", str(cluster.script(NPU)), "--name", "npu", "--wait", "--pending-timeout", str(WAIT_S)
    )
    cluster.until(lambda: cluster.state("npu", 1) == "pending", what="the run")

    cluster.worker(resources="cpu=1,npu=1", name="late")

    out, err = waiting.communicate(timeout=WAIT_S)
    assert (waiting.returncode, err) == (0, "")
    assert out.splitlines()[-1].startswith("npu  completed  2 completed of 2")


def test_capacity_that_is_zero_for_a_while_is_waited_for(cluster: Cluster) -> None:
    """B25: the only worker is stopped in the middle, another comes later."""
    first = cluster.worker(cpu=2)
    body = "mark('runs')\nif config.x == 3: wait_for('go')\nreport({'m': config.x})"
    text = trains(body, param_space="{'x': grid(range(8))}")
    waiting = start(cluster, "submit", str(cluster.script(text)), "--name", "gap", "--wait")
    cluster.until(lambda: cluster.has_lines("runs", 5), what="some trials")

    first.stop()
    cluster.until(lambda: cluster.status("gap")["counts"]["running"] == 0, what="nothing that runs")
    [reason] = cluster.status("gap")["pending"]
    (cluster.side / "go").touch()
    cluster.worker(cpu=2)

    waiting.communicate(timeout=WAIT_S)
    assert waiting.returncode == 0
    assert (reason["kind"], reason["impossible"]) == ("no_worker", False)
    assert [each["status"] for each in cluster.results("gap")] == ["completed"] * 8


@pytest.mark.parametrize("pairs", [6, pytest.param(30, marks=pytest.mark.acceptance)])
def test_submits_that_are_cancelled_at_once_leak_no_token(cluster: Cluster, pairs: int) -> None:
    """B19."""
    cluster.worker(cpu=2)
    script = str(cluster.script(trains("wait_for('never')", resources="{'cpu': 2}")))
    for number in range(pairs):
        cluster.flowctl("submit", script, "--name", f"r{number}", check=True)
        if number % 3 == 2:
            cluster.until(lambda: cluster.trial_pids(f"r{number}"), what="its process")  # noqa: B023
        cluster.flowctl("cancel", f"r{number}", check=True)

    cluster.until(lambda: used(cluster.json("status", "--resources")) == 0, what="the return of all tokens")
    cluster.wait(cluster.submit(trains("pass", resources="{'cpu': 2}")))


@pytest.mark.parametrize("trials", [20, pytest.param(300, marks=pytest.mark.acceptance)])
def test_what_is_used_is_what_is_held_in_every_look(cluster: Cluster, trials: int) -> None:
    """B21: under the load of two runs, one of which is cancelled in the middle."""
    cluster.worker(resources="cpu=50", slots=8)
    text = trains("time.sleep(0.3)\nif config.x == 0: wait_for('go')", param_space=f"{{'x': grid(range({trials}))}}")
    a, b = cluster.submit(text, "--name", "a"), cluster.submit(text.replace("'go'", "'never'"), "--name", "b")

    looks = 0
    while cluster.state(a) != "completed":
        document = strict_json(cluster.flowctl("status", "--resources", "--json", check=True).stdout)
        for token in (each for worker in document["workers"] for each in worker["tokens"]):
            assert sum(each["amount"] for each in token["holders"]) == token["used"] <= token["capacity"], token
        looks += 1
        if looks == 5:
            cluster.flowctl("cancel", b, check=True, timeout_s=15)
            (cluster.side / "go").touch()

    assert looks >= 5
    assert [each["status"] for each in cluster.results(a)] == ["completed"] * trials
    cluster.wait(b, state="cancelled")


def used(document: Mapping[str, Any]) -> float:
    return float(document["totals"]["cpu"]["used"])
