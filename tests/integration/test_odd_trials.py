"""Trials that do odd things harm only themselves, and so does garbage where Celery listens."""

from __future__ import annotations

from cluster import Cluster
from trial_scripts import body


def test_garbage_in_a_workers_queue_is_dropped(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=1)
    for garbage in ("no json", "[]", '{"body": 1}', "\x00\xff"):
        cluster.client.lpush(f"fcq.{worker.boot}", garbage)

    run = cluster.submit(body("note('ran', me.attempt)"))
    cluster.wait(run)

    assert cluster.lines("ran") == ["1"]
    assert not worker.is_over
    assert "dropped something that is no message" in worker.text()


def test_a_number_beyond_floats_never_wins_and_harms_nobody(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    options = 'metric="loss", mode="min"'
    run = cluster.submit(body("report({'loss': -(10**400) if me.trial == 0 else 2.0})", trials=2, options=options))
    cluster.wait(run)

    assert [cluster.trial(run, index)["attempts"] for index in (0, 1)] == [1, 1]
    assert cluster.flowctl("best", run).stdout.count(f"{run}/1") >= 1


def test_a_report_from_a_forked_child_is_refused_there(cluster: Cluster) -> None:
    cluster.worker(cpu=1)
    text = """
pid = os.fork()
if pid == 0:
    try:
        report({"loss": -5.0})
    except RuntimeError as error:
        note("child", error)
    os._exit(0)
os.waitpid(pid, 0)
report({"loss": 1.0})
"""
    run = cluster.submit(body(text, options='metric="loss", mode="min"'))
    cluster.wait(run)

    assert "the trial's own" in cluster.lines("child")[0]
    assert cluster.trial(run, 0)["best"]["value"] == 1.0
