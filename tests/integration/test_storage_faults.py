"""What lasts reaches the storage; and a storage that a worker cannot use is told as the reason of what waits."""

from __future__ import annotations

from typing import Any

from cluster import Cluster
from trial_scripts import body, epochs


def test_the_journal_reaches_the_storage_and_the_stream_is_cut(cluster: Cluster) -> None:
    worker = cluster.worker(cpu=2)
    run = cluster.submit(epochs(trials=3, epochs=2, epoch_s=0.01))
    cluster.wait(run)
    cluster.until(lambda: not cluster.client.sismember("fc:journals", run), what="the end of the journal")

    told = dict(cluster.client.xrange(f"fc:events:{run}"))
    kept = {str(event["id"]): event for event in cluster.folder(run).journal_read()}
    assert set(told) <= set(kept)
    for name, fields in told.items():
        assert {key: kept[name][key] for key in fields} == fields
    trials = [event for event in kept.values() if event["kind"] == "trial"]
    for index in range(3):
        moves = [event["to"] for event in trials if event["unit"] == cluster.unit(run, index)]
        assert moves[-3:] == ["placed", "running", "completed"]
    runs = [event["to"] for event in kept.values() if event["kind"] == "run"]
    assert runs == ["submitted", "running", "completed"]

    worker.stop()
    calls, owner = cluster.broker.calls, "test"
    cluster.client.sadd("fc:journals", run)
    cluster.until(lambda: calls.journal_take(owner=owner).word == "OK", what="the journal's lease")
    calls.journal_done(run, owner=owner, number=0, last_id="", keep_ms=0)
    assert cluster.client.xlen(f"fc:events:{run}") <= 1
    assert [event["id"] for event in cluster.folder(run).journal_read()] == list(kept)
    assert cluster.flowctl("status", run).returncode == 0


def test_a_storage_that_a_worker_cannot_write_to(cluster: Cluster) -> None:
    """The trial is handed back uncounted, again and again, and says why; mended, it runs as its first attempt."""
    run = cluster.submit(body("note('ran', me.attempt)"))
    blocked = cluster.storage / run / "steps" / "train" / "0000"
    blocked.write_text("a file where the trials' folders must be")
    cluster.worker(cpu=1, name="blind")

    seen: list[dict[str, Any]] = []

    def says_why() -> bool:
        seen.append(cluster.trial(run, 0))
        return "a file stands" in (seen[-1]["pending"] or {}).get("text", "")

    cluster.until(says_why, what="the reason")
    assert (seen[-1]["attempts"], seen[-1]["failures"], seen[-1]["losses"]) == (0, 0, 0)
    assert seen[-1]["history"] == []
    assert not cluster.lines("ran")

    blocked.unlink()
    cluster.wait(run)
    assert cluster.lines("ran") == ["1"]
    assert cluster.trial(run, 0)["attempts"] == 1


def test_a_storage_that_a_worker_cannot_see(cluster: Cluster) -> None:
    """The trial goes back with the worker's name and the storage's."""
    run = cluster.submit(body("note('ran', me.attempt)"))
    away = cluster.root / "away"
    cluster.storage.rename(away)
    cluster.worker(cpu=1, name="blind")

    key = f"fc:unit:{cluster.unit(run, 0)}"
    cluster.until(lambda: "cannot see" in (cluster.client.hget(key, "reason") or ""), what="the reason")
    assert "worker blind cannot see" in cluster.flowctl("status", f"{run}/0").stdout

    away.rename(cluster.storage)
    cluster.wait(run)
    assert cluster.lines("ran") == ["1"]
