"""No token lies idle while something could use it (B18, B32). How long it does is benchmarks/waste.py's question."""

from __future__ import annotations

import pytest
from cluster import WAIT_S, Cluster
from intervals import busy_s, intervals, most_at_once
from script import trains


@pytest.mark.parametrize(
    ("slots", "times"),
    [(3, [0.2] * 4 + ["long"] + [0.2] * 9), pytest.param(4, ([1] * 3 + [12]) * 4, marks=pytest.mark.acceptance)],
    ids=["short", "full"],
)
def test_no_slot_waits_for_the_slowest_of_a_batch(cluster: Cluster, slots: int, times: list[object]) -> None:
    """B32, with a plain sequence of configurations: while a long trial runs, the others go on until none is left."""
    cluster.worker(cpu=slots)
    body = f"""
    pause = {times!r}[config.i]
    mark("b32", f"start {{pause}}")
    wait_for("b32-go") if pause == "long" else time.sleep(pause)
    mark("b32", "end")
    """
    space = f"{{'i': grid(range({len(times)}))}}"
    text = trains(body, param_space=space, max_concurrent_trials=slots)
    run = cluster.submit(text)
    if "long" in times:
        cluster.until(lambda: cluster.status(run)["counts"]["completed"] == len(times) - 1, what="all but the long one")
        cluster.side.joinpath("b32-go").touch()
    cluster.wait(run, timeout_s=2 * WAIT_S)

    found = intervals(cluster.lines("b32"))
    assert len(found) == len(times) and most_at_once(found) == slots
    longest = max(found, key=lambda each: each.end - each.start)
    if "long" in times:  # everything after it began and ended beside it
        assert [each for each in found if each.start > longest.end] == []
        return
    last = max(each.start for each in found)
    rest = [each for each in found if each is not longest]
    until = min(longest.end, last)
    idle = (slots - 1) * (until - longest.start) - busy_s(rest, since=longest.start, until=until)
    assert idle <= 0.5 * len(rest)


def test_a_freed_cluster_wide_token_is_taken_at_once_by_whoever_waits(cluster: Cluster) -> None:
    """B18 with a pool: the next holder may be on a worker on which nothing changed."""
    for name in ("a", "b"):
        cluster.worker(cpu=1, name=name)
    cluster.flowctl("pool", "set", "seat=1", check=True)
    body = "mark('seat', f'start {get_context().worker}')\ntime.sleep(0.05)\nmark('seat', 'end')"
    text = trains(body, param_space="{'i': grid(range(16))}", resources="{'cpu': 1, 'seat': 1}")
    run = cluster.submit(text)
    cluster.wait(run)

    events = [each for each in cluster.events(run) if each["kind"] == "trial"]
    ends = {each["at"] for each in events if each["from"] == "running"}
    placed = [each["at"] for each in events if each["to"] == "placed"]
    assert most_at_once(intervals(cluster.lines("seat"))) == 1
    assert sum(at in ends for at in placed) >= 12, "placed by the very call that freed the token"
