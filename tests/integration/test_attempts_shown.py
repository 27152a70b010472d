"""What a person sees of a trial that runs again: its process, why the last attempt ended, and where it goes on."""

from __future__ import annotations

import os
import signal
import socket

from cluster import Cluster
from script import trains

TRIAL = trains(
    """\
first = 1
if get_checkpoint():
    first = 3
for step in range(first, first + 2):
    report({"m": step}, checkpoint=saved(step=step))
mark("up")
wait_for("go")
""",
    max_failures=1,
    metric="'m'",
    mode="'max'",
)


def test_a_second_attempt_shows_the_cause_and_the_iteration_it_went_on_from(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    cluster.submit(TRIAL, "--name", "r")
    cluster.until(lambda: cluster.has_lines("up", 1), what="the first attempt")

    process = cluster.trial("r", 0)["process"]
    assert process == {"host": socket.gethostname(), "pid": cluster.trial_pids("r", 0)[0]}
    assert f"process: pid {process['pid']} on {process['host']}" in cluster.flowctl("status", "r/0").stdout
    os.kill(process["pid"], signal.SIGKILL)
    cluster.until(lambda: cluster.has_lines("up", 2), what="the second attempt")

    trial = cluster.trial("r", 0)
    assert [attempt["from_iteration"] for attempt in trial["history"]] == [None, 2]
    rows = [line.split("  ") for line in cluster.flowctl("status", "r/0").stdout.splitlines()]
    first, second = (" ".join(row) for row in rows if row[0] in ("1", "2"))
    assert "the start" in first and "failed: killed by signal 9 (SIGKILL); often the kernel's out-of-memory" in first
    assert "iteration 2" in second and second.endswith("running")
    assert "tried again: r/0, after killed by signal 9" in cluster.flowctl("status", "r").stdout
    assert "attempt 2 of 2; flowctl logs r/0 --attempt 1 shows the first" in cluster.flowctl("logs", "r/0").stderr

    (cluster.side / "go").touch()
    cluster.wait("r")
