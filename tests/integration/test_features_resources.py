"""Tokens and search spaces as a person sees them: how many run at once, and which configurations there are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from cluster import Cluster
from script import trains

BARRIER = """
mark(NAME, "start")
wait_for(NAME + "-go")
mark(NAME, "end")
"""


def most_at_once(lines: list[str]) -> int:
    """From lines `pid time start` and `pid time end`."""
    events = sorted((float(line.split()[1]), -1 if line.split()[2] == "end" else 1) for line in lines)
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


@pytest.mark.parametrize(
    ("name", "resources", "total", "at_once"),
    [
        ("one-core", None, 6, 4),
        ("two-cores", "{'cpu': 2}", 5, 2),
        ("half-core", "{'cpu': 0.5}", 9, 8),
        ("tokens", "{'tri': 1}", 9, 3),
    ],
)
def test_as_many_trials_run_at_once_as_fit_and_never_more(
    shared: Cluster, name: str, resources: str | None, total: int, at_once: int
) -> None:
    """Rows 54 and 55: by default one core each; B28 as a custom token: never more than 3 at once, and all 9 run."""
    keywords = {} if resources is None else {"resources": resources}
    text = trains(BARRIER.replace("NAME", repr(name)), param_space=f"{{'i': grid(range({total}))}}", **keywords)
    run = shared.submit(text)

    shared.until(lambda: len(shared.lines(name)) >= at_once, what=f"{at_once} trials at once")
    status = shared.status(run)
    shared.side.joinpath(f"{name}-go").touch()
    shared.wait(run)

    assert status["counts"]["running"] == at_once and status["counts"]["pending"] == total - at_once
    assert [reason["kind"] for reason in status["pending"]] == ["busy"]
    assert most_at_once(shared.lines(name)) == at_once
    assert len(shared.lines(name)) == 2 * total
    assert all(trial["attempts"] == 1 for trial in shared.results(run))


@pytest.mark.parametrize("trials", [12, pytest.param(40, marks=pytest.mark.acceptance)])
def test_freed_token_is_taken_at_once(shared: Cluster, trials: int) -> None:
    """B18: with one of two tokens held, short trials follow each other on the other without idle time."""
    name = f"freed{trials}"
    holder = shared.submit(trains(f"mark('{name}-held')\nwait_for('{name}-over')", resources="{'tok': 1}"))
    shared.until(lambda: shared.lines(f"{name}-held"), what="the holder")
    body = f"mark('{name}', 'start')\ntime.sleep(0.1)\nmark('{name}', 'end')"
    run = shared.submit(trains(body, param_space=f"{{'i': grid(range({trials}))}}", resources="{'tok': 1}"))
    shared.wait(run)
    shared.side.joinpath(f"{name}-over").touch()
    shared.wait(holder)

    lines = [line.split() for line in shared.lines(name)]
    assert most_at_once(shared.lines(name)) == 1
    gaps = sorted(float(b[1]) - float(a[1]) for a, b in pairwise(lines) if (a[2], b[2]) == ("end", "start"))
    assert len(gaps) == trials - 1
    assert gaps[int(len(gaps) * 0.95) - 1] < 3.0


def test_grid_times_samples_gives_every_combination_as_often_as_asked(shared: Cluster) -> None:
    """Row 73: 2 × 3 grid × 2 is 12 trials, 6 combinations each twice; random values are drawn anew."""
    space = "{'a': grid([1, 2]), 'net': {'b': grid(['x', 'y', 'z'])}, 'r': uniform(0, 1)}"
    run = shared.submit(trains("report({'m': config.a, 'b': config.net.b})", param_space=space, num_samples=2))
    shared.wait(run)

    trials = shared.results(run)
    counts = Counter((trial["config"]["a"], trial["config"]["net"]["b"]) for trial in trials)
    assert len(trials) == 12 and len(counts) == 6 and set(counts.values()) == {2}
    assert len({trial["config"]["r"] for trial in trials}) == 12
    assert all(trial["metrics"] == {"m": trial["config"]["a"], "b": trial["config"]["net"]["b"]} for trial in trials)


def test_same_seed_gives_the_same_configurations_in_every_process(shared: Cluster) -> None:
    """Row 76: also under another hash seed; another seed and "random" give others."""
    space = "{'r': uniform(0, 1), 'n': randint(0, 10**9), 'c': choice(list('abcdef')), 'g': grid([1, 2])}"
    runs = {}
    for name, seed, hash_seed in (("a", "7", "1"), ("b", "7", "2"), ("c", "8", "1"), ("d", "'random'", "1")):
        shared.env["PYTHONHASHSEED"] = hash_seed
        runs[name] = shared.submit(trains("pass", param_space=space, num_samples=3, seed=seed))
    shared.env.pop("PYTHONHASHSEED")
    configs = {name: [trial["config"] for trial in shared.results(run)] for name, run in runs.items()}
    for run in runs.values():
        shared.wait(run)

    assert configs["a"] == configs["b"]
    assert configs["a"] != configs["c"] and configs["a"] != configs["d"] and configs["c"] != configs["d"]


def test_worker_that_declares_a_pools_token_says_that_the_pool_is_meant(cluster: Cluster) -> None:
    cluster.flowctl("pool", "set", "license=1", check=True)

    worker = cluster.worker(resources="cpu=1,license=1", name="w")

    said = "worker w offers license, which is a pool of the whole cluster: the pool is meant"
    cluster.until(lambda: said in worker.text(), what="the warning")
