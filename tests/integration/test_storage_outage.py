"""Storage that is away while trials run: they wait, say so, can be cancelled, and lose nothing."""

from __future__ import annotations

from cluster import Cluster
from trial_scripts import body, epochs


def reason(cluster: Cluster, run: str) -> str:
    return cluster.client.hget(f"fc:unit:{cluster.unit(run, 0)}", "reason") or ""


def test_a_checkpoint_waits_for_a_storage_that_is_away_for_a_while(cluster: Cluster) -> None:
    """The report returns when the storage is back, nothing has failed, and meanwhile the trial says why it waits."""
    cluster.worker(cpu=1)
    run = cluster.submit(epochs(trials=1, epochs=20, epoch_s=0.2))
    cluster.until(lambda: any("kept 2" in line for line in cluster.lines("0")), what="the second checkpoint")
    away = cluster.root / "away"
    cluster.storage.rename(away)

    cluster.until(lambda: "waits for its storage" in reason(cluster, run), what="the reason")
    away.rename(cluster.storage)
    cluster.wait(run)

    trial = cluster.trial(run, 0)
    assert (trial["state"], trial["attempts"], trial["failures"]) == ("completed", 1, 0)
    assert [line for line in cluster.lines("0") if line.startswith("kept")] == [f"kept {n}" for n in range(1, 21)]


def test_a_trial_that_cannot_write_its_end_says_so_and_can_be_cancelled(cluster: Cluster) -> None:
    """Its tokens are not held in silence: the reason is shown, and a cancel ends it although nothing can be written."""
    cluster.worker(cpu=1)
    run = cluster.submit(body("note('ran', me.attempt)\ntime.sleep(2)"))
    cluster.until(lambda: bool(cluster.lines("ran")), what="the trial's start")
    away = cluster.root / "away"
    cluster.storage.rename(away)

    cluster.until(lambda: "waits to write its outcome" in reason(cluster, run), what="the reason")
    assert cluster.flowctl("cancel", run).returncode == 0
    cluster.until(lambda: cluster.client.hget(f"fc:run:{run}", "state") == "cancelled", what="the end of the run")

    away.rename(cluster.storage)
