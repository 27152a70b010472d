"""What a person is told when nothing is there to run what they submit."""

from __future__ import annotations

import subprocess
import time

from cluster import FLOWCTL, WAIT_S, Cluster
from script import trains

TRIAL = trains("report({'m': config.x})", param_space="{'x': grid([1, 2, 3])}")


def test_submit_without_a_worker_says_so_at_once_with_the_command_to_start_one(cluster: Cluster) -> None:
    """Acceptance 8: within 2 s (three times that on a machine that is busy with other tests)."""
    assert cluster.client.ping()
    path = str(cluster.script(TRIAL))

    begun = time.monotonic()
    said = cluster.flowctl("submit", path, "--name", "alone", check=True)
    took_s = time.monotonic() - begun

    assert "no worker is up; start one: flowctl worker" in said.stdout
    assert took_s < 6
    [reason] = cluster.status("alone")["pending"]
    assert (reason["kind"], reason["count"], reason["cure"]) == ("no_worker", 3, "start one: flowctl worker")
    assert "3 pending: no worker is up" in cluster.flowctl("status", "alone").stdout

    cluster.worker(cpu=2)
    cluster.wait("alone")


def test_worker_that_is_meant_for_another_run_does_not_count(cluster: Cluster) -> None:
    """Acceptance 8, its kind: a worker that will never take the run is no worker."""
    cluster.worker(cpu=1, only="other")

    said = cluster.json("submit", str(cluster.script(TRIAL)), "--name", "alone")

    assert any("flowctl worker" in line for line in said["problems"]), said
    cluster.flowctl("cancel", "alone", check=True)
    cluster.wait("alone", state="cancelled")


def test_request_that_no_worker_can_meet_names_the_resource_and_the_nearest_worker(cluster: Cluster) -> None:
    """Acceptance 8, its kind; design D14."""
    cluster.worker(resources="cpu=2,license=1")

    said = cluster.json("submit", str(cluster.script(TRIAL)), "--name", "big", "--set", "resources.cpu=3")
    text = trains("pass", resources={"token": 1})
    also = cluster.json("submit", str(cluster.script(text)), "--name", "strange")

    assert any("needs cpu 3" in line and "w0, offers 2" in line and "cpu=3" in line for line in said["problems"]), said
    assert any("no live worker offers token (asked 1)" in line for line in also["problems"]), also
    for run in ("big", "strange"):
        cluster.flowctl("cancel", run, check=True)
        cluster.wait(run, state="cancelled")


def test_a_second_run_waits_for_the_cores_that_the_first_ones_worker_offers_and_goes_on(cluster: Cluster) -> None:
    holds = trains("mark('up')\nwait_for('go')", param_space="{'x': grid([1])}")
    commands = {
        name: [FLOWCTL, "run", str(cluster.script(text)), "--name", name]
        for name, text in (("first", holds), ("second", TRIAL))
    }
    runs = [start(cluster, commands["first"])]
    cluster.until(lambda: cluster.has_lines("up", 1), what="the first run's trial")
    runs.append(start(cluster, commands["second"]))

    def kinds() -> list[str]:
        known = cluster.client.exists("fc:run:second")
        return [each["kind"] for each in cluster.status("second")["pending"]] if known else []

    cluster.until(lambda: kinds() == ["shared"], what="the reason of the second run")
    assert "(run first); waits for them" in cluster.flowctl("status", "second").stdout
    (cluster.side / "go").touch()
    said = [run.communicate(timeout=WAIT_S)[0] for run in runs]

    assert [run.returncode for run in runs] == [0, 0], said
    assert "the cores of this machine are offered by worker" in said[1]
    assert "--resources" not in said[1]


def start(cluster: Cluster, command: list[str]) -> subprocess.Popen[str]:
    """Starts a command that goes on while the test looks."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=cluster.env, cwd=cluster.root, stdout=pipe, stderr=pipe, text=True)


def test_a_run_that_nothing_here_can_ever_meet_is_cancelled_and_keeps_the_reason(cluster: Cluster) -> None:
    path = str(cluster.script(TRIAL))

    done = cluster.flowctl("run", path, "--name", "big", "--set", "resources.cpu=4000")

    assert done.returncode == 1
    assert "3 trials of train cannot run here: needs cpu 4000" in done.stderr
    shown = cluster.flowctl("status", "big").stdout
    assert "big  cancelled" in shown and "reason: 3 trials of train cannot run here: needs cpu 4000" in shown
