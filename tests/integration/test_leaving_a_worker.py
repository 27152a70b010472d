"""What `flowctl worker` says when it is stopped at a terminal, and how it names what it ran."""

from __future__ import annotations

import signal

from cluster import WAIT_S, Cluster
from trial_scripts import body


def test_ctrl_c_is_answered_by_one_notice_and_a_last_word(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=1)
    run = cluster.submit(body("note('up', me.attempt)\ntime.sleep(600 if me.attempt == 1 else 0)"), "--name", "r")
    cluster.until(lambda: cluster.lines("up"))

    worker.process.send_signal(signal.SIGINT)
    worker.process.wait(WAIT_S)

    text = worker.text()
    assert text.count("Ctrl-C again kills") == 1
    assert "Hitting Ctrl+C" not in text and "shutdown (MainProcess)" not in text
    assert text.splitlines()[-1] == "stopped"
    assert "r/train/0 begins, attempt 1" in text and "r:train:0" not in text
    assert cluster.state(run, 0) == "pending"
    cluster.worker(cpu=1)
    cluster.wait(run)
    shown = cluster.flowctl("status", "r/0", check=True).stdout
    assert "preempted: its worker stopped" in shown and "preempted: preempted" not in shown
