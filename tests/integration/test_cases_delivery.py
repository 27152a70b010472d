"""Each attempt runs once, whoever believes that its message was lost; and dead workers' trials go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from cluster import Cluster
from foreign import VISIBILITY_S, foreign_consumer
from script import trains


class Stranger:
    """Lets a test wait until a visibility timeout has passed in the eyes of a foreign consumer, if there is one."""

    def __init__(self, cluster: Cluster, *, is_there: bool) -> None:
        self._cluster = cluster
        self._is_there = is_there

    def wait_out(self) -> None:
        """Until it has looked often enough, once per second, and has given its own message out again."""
        if self._is_there:
            looks, taken = self._seen()
            self._cluster.until(lambda: self._seen()[0] >= looks + VISIBILITY_S + 3, what="the foreign timer")
            assert self._seen()[1] > taken

    def _seen(self) -> tuple[int, int]:
        lines = self._cluster.lines("stranger")
        return lines.count("looked"), lines.count("taken")


@pytest.fixture(params=["as pinned", "foreign timer of 5 s"])
def stranger(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Stranger]:
    """The visibility timeout as we pin it, and with a kombu consumer of 5 s on the same database."""
    is_there = request.param != "as pinned"
    url = cluster.broker.url.kombu_url()
    with foreign_consumer(url, cluster.side / "stranger") if is_there else nullcontext():
        yield Stranger(cluster, is_there=is_there)
    cluster.client.delete("foreign", "unacked", "unacked_index", "unacked_mutex", "_kombu.binding.foreign")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("steps", "waiting"), [(20, 4), pytest.param(250, 12, marks=pytest.mark.acceptance)], ids=["short", "full"]
)
def test_what_outlives_a_visibility_timeout_runs_once(
    cluster: Cluster, stranger: Stranger, steps: int, waiting: int
) -> None:
    """B01 and B03: a trial longer than it, trials that wait behind another, and trials that wait for a worker."""
    long = trains(
        f"mark('long')\nfor s in range({steps}):\n    time.sleep(0.1)\n    report({{'s': s}})\nwait_for('long-go')"
    )
    short = trains("mark(f'short-{config.i}')\ntime.sleep(0.2)", param_space=f"{{'i': grid(range({waiting}))}}")
    first = cluster.submit(long)
    second = cluster.submit(short)
    stranger.wait_out()
    cluster.worker(cpu=1)
    cluster.until(lambda: cluster.lines("long"), what="the long trial")
    stranger.wait_out()
    assert cluster.status(second)["counts"]["pending"] == waiting
    cluster.side.joinpath("long-go").touch()
    cluster.wait(first, timeout_s=120)
    cluster.worker(cpu=1)
    cluster.wait(second)

    assert len(cluster.lines("long")) == 1
    assert [len(cluster.lines(f"short-{i}")) for i in range(waiting)] == [1] * waiting
    assert [trial["attempts"] for run in (first, second) for trial in cluster.results(run)] == [1] * (1 + waiting)
    assert [row["metrics"]["s"] for row in cluster.results(first, "--rows")] == list(range(steps))
    assert cluster.client.hlen("fc:unacked") == 0


def test_second_worker_stays_idle_while_one_trial_runs(cluster: Cluster, stranger: Stranger) -> None:
    """B01: nothing of a running trial is ever given to another worker."""
    workers = [cluster.worker(cpu=1) for _ in range(2)]
    run = cluster.submit(trains("mark('only', get_context().worker)\nreport({'s': 0})\nwait_for('only-go')"))
    cluster.until(lambda: cluster.lines("only"), what="the trial")
    stranger.wait_out()
    cluster.side.joinpath("only-go").touch()
    cluster.wait(run)

    [line] = cluster.lines("only")
    trial = cluster.trial(run, 0)
    assert [past["worker"] for past in trial["history"]] == [line.split()[2]]
    idle = next(worker for worker in workers if worker.name != line.split()[2])
    assert "running" not in idle.text() and trial["attempts"] == 1


@pytest.mark.parametrize(("pause_s", "kill_after"), [(0.1, 4), pytest.param(1, 4, marks=pytest.mark.acceptance)])
def test_trial_of_a_killed_worker_goes_on_elsewhere_from_its_checkpoint(
    cluster: Cluster, pause_s: float, kill_after: int
) -> None:
    """B04: the whole worker is killed; the second attempt starts from its last checkpoint, not from zero."""
    body = f"""
    start = 0
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder: start = int((Path(folder) / "step").read_text())
    mark("from", start)
    for s in range(start, 10):
        time.sleep({pause_s})
        if get_context().attempt == 1 and s == {kill_after + 1}: wait_for("never")
        report({{"s": s}}, checkpoint=saved(step=s + 1))
        mark("kept", s + 1)
    """
    killed = cluster.worker(cpu=1)
    run = cluster.submit(trains(body))
    cluster.until(lambda: len(cluster.lines("kept")) > kill_after, what=f"step {kill_after}")
    killed.kill()
    cluster.worker(cpu=1)
    cluster.wait(run)

    starts = [int(line.split()[2]) for line in cluster.lines("from")]
    trial = cluster.trial(run, 0)
    assert starts == [0, kill_after + 1]
    assert [row["metrics"]["s"] for row in cluster.results(run, "--rows")] == list(range(10))
    assert (trial["attempts"], trial["failures"], trial["losses"]) == (2, 0, 0)
    assert trial["history"][0]["outcome"] == "lost"
    assert "w0" in trial["history"][0]["cause"]["text"]
