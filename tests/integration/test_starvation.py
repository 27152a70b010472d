"""Nobody waits for ever: what is large gets its turn beside a stream of what is small, and runs share.

How long something waited is read from the server's times. Bounds of that kind are wide where the machine is shared:
what matters there is that the wait ends while the stream goes on.
"""

from __future__ import annotations

import json

import pytest
from cluster import WAIT_S, Cluster
from intervals import busy_s, intervals
from script import script, trains

RESERVE_S = 2
FULL = [pytest.mark.acceptance, pytest.mark.timeout(600)]
STREAM = "mark('stream', 'start')\ntime.sleep(PAUSE)\nmark('stream', 'end')"
GANG = """
@experiment(resources=placement_group(BUNDLES, strategy="STRICT_SPREAD"))
def train(config):
    mark(NAME, "start")
    time.sleep(0.1)
    mark(NAME, "end")
"""


def two_machines(cluster: Cluster, cores: int = 2) -> None:
    cluster.env["FLOWCTL_RESERVE_AFTER_S"] = str(RESERVE_S)
    for name in ("a", "b"):
        cluster.worker(cpu=cores, name=name, env={"FLOWCTL_MACHINE": f"machine-{name}"})


def stream(cluster: Cluster, trials: int, pause_s: float) -> str:
    """A run of many short trials, of which the first run by now."""
    text = trains(STREAM.replace("PAUSE", str(pause_s)), param_space=f"{{'i': grid(range({trials}))}}")
    run = cluster.submit(text)
    cluster.until(lambda: cluster.has_lines("stream", 4), what="the stream")
    return run


def gang(name: str, bundles: object) -> str:
    return script(GANG.replace("NAME", repr(name)).replace("BUNDLES", repr(bundles)))


def waited_s(cluster: Cluster, run: str) -> float:
    """From submission to the claim of the only trial, by the server's clock."""
    started, created = (
        cluster.client.hget(f"fc:unit:{cluster.unit(run, 0)}", "started_ms"),
        cluster.client.hget(f"fc:run:{run}", "created_ms"),
    )
    return (int(started) - int(created)) / 1000


@pytest.mark.parametrize(
    ("trials", "pause_s", "margin_s"),
    [(60, 0.5, 20.0), pytest.param(200, 1.0, 3.0, marks=FULL)],
    ids=["short", "full"],
)
def test_a_gang_of_the_whole_cluster_starts_beside_a_stream_of_small_trials(
    cluster: Cluster, trials: int, pause_s: float, margin_s: float
) -> None:
    """It waits for reserve_after_s, then for what runs, and no longer; the stream goes on afterwards."""
    two_machines(cluster)
    small = stream(cluster, trials, pause_s)
    large = cluster.submit(gang("large", [{"cpu": 2}, {"cpu": 2}]))
    cluster.wait(large, timeout_s=2 * WAIT_S)
    [turn] = intervals(cluster.lines("large"))
    goes_on = "the stream's going on"
    cluster.until(lambda: intervals(cluster.lines("stream"))[-1].start > turn.end, what=goes_on)
    if pause_s < 1:
        cluster.flowctl("cancel", small, check=True)
    cluster.wait(small, state=None, timeout_s=5 * WAIT_S)

    found = intervals(cluster.lines("stream"))
    longest = max(each.end - each.start for each in found)
    waited = waited_s(cluster, large)
    assert busy_s(found, since=turn.start, until=turn.end) == 0, "it had the whole cluster"
    assert waited <= RESERVE_S + longest + margin_s
    print(f"waited {waited:.2f} s; longest trial {longest:.2f} s")


def test_a_gang_that_can_never_start_holds_up_nobody(cluster: Cluster) -> None:
    """Impossible, and first in order: nothing is ever kept for it."""
    two_machines(cluster)
    never = cluster.submit(gang("never", [{"cpu": 1}] * 3), "--priority", "5")
    [reason] = cluster.status(never)["pending"]
    small = stream(cluster, 40, 0.3)
    kept = set()
    while cluster.state(small) != "completed":
        kept.add(json.loads(cluster.client.get("fc:reserve") or "{}").get("run"))
    cluster.wait(small)
    waits = cluster.state(never, 0)
    cluster.flowctl("cancel", never, check=True)

    assert reason["impossible"] and waits == "pending"
    assert never not in kept
    assert cluster.lines("never") == []


def test_gangs_that_want_the_same_machines_take_turns(cluster: Cluster) -> None:
    """Overlapping gangs of two runs, and one of the whole cluster: none holds a part while it waits for another's."""
    cluster.env["FLOWCTL_RESERVE_AFTER_S"] = "1"
    for name in ("a", "b", "c"):
        cluster.worker(cpu=1, name=name, env={"FLOWCTL_MACHINE": f"machine-{name}"})
    runs = []
    for name, bundles in (("two", 2), ("pair", 2), ("all", 3)):
        text = gang(name, [{"cpu": 1}] * bundles).replace("@experiment(", "@experiment(num_samples=4, ")
        runs.append(cluster.submit(text))
    for run in runs:
        cluster.wait(run, timeout_s=2 * WAIT_S)

    found = [each for name in ("two", "pair", "all") for each in intervals(cluster.lines(name))]
    assert len(found) == 12
    for one in found:  # any two of them want a machine in common
        assert not any(one.overlaps(other) for other in found if other is not one)


@pytest.mark.parametrize(
    ("slots", "trials", "pause_s", "most_s"),
    [(4, 30, 0.5, 60.0), pytest.param(8, 200, 1.0, 10.0, marks=FULL)],
    ids=["short", "full"],
)
def test_a_run_that_comes_later_gets_its_half(
    cluster: Cluster, slots: int, trials: int, pause_s: float, most_s: float
) -> None:
    """By slots held at the same time soon after it came, and by what both did while both had work."""
    cluster.worker(cpu=slots)
    body = "mark(NAME, 'start')\ntime.sleep(PAUSE)\nmark(NAME, 'end')".replace("PAUSE", str(pause_s))
    space = f"{{'i': grid(range({trials}))}}"
    first = cluster.submit(trains(body.replace("NAME", "'first'"), param_space=space))
    cluster.until(lambda: cluster.has_lines("first", 2 * slots), what="the first run's trials")
    second = cluster.submit(trains(body.replace("NAME", "'second'"), param_space=space))
    half = slots // 2
    cluster.until(lambda: cluster.client.scard(f"fc:active:{second}") >= half, what="its half", deadline_s=most_s)
    created = int(cluster.client.hget(f"fc:run:{second}", "created_ms")) / 1000
    until_s = 5 * WAIT_S
    cluster.wait(first, timeout_s=until_s)
    cluster.wait(second, timeout_s=until_s)

    placed = [int(each["at"]) / 1000 for each in cluster.events(second) if each.get("to") == "placed"]
    old, new = intervals(cluster.lines("first")), intervals(cluster.lines("second"))
    assert len(old) == len(new) == trials
    since, until = new[half].start, min(old[-1].start, new[-1].start)
    share = busy_s(new, since=since, until=until) / (busy_s(old + new, since=since, until=until) or 1)
    assert 0.4 <= share <= 0.6, share
    assert sorted(placed)[half - 1] - created <= most_s
    print(f"half after {sorted(placed)[half - 1] - created:.2f} s; share {share:.3f}")


def test_a_weight_of_two_gets_twice_as_much(cluster: Cluster) -> None:
    cluster.worker(cpu=3)
    body, space = "mark(NAME, 'start')\ntime.sleep(0.4)\nmark(NAME, 'end')", "{'i': grid(range(18))}"
    holder = cluster.submit(trains("wait_for('go')", resources="{'cpu': 3}"))
    cluster.until(lambda: cluster.state(holder, 0) == "running", what="the holder")
    light = cluster.submit(trains(body.replace("NAME", "'light'"), param_space=space))
    heavy = cluster.submit(trains(body.replace("NAME", "'heavy'"), param_space=space), "--weight", "2")
    cluster.side.joinpath("go").touch()
    for run in (holder, light, heavy):
        cluster.wait(run)

    one, two = intervals(cluster.lines("light")), intervals(cluster.lines("heavy"))
    began_before_the_end = [each for each in one if each.start < two[-1].start]
    assert 7 <= len(began_before_the_end) <= 11, len(began_before_the_end)
