"""B13: a machine on which everything fails at once does not eat the sweep, and one that is alone is kept."""

from __future__ import annotations

import pytest
from cluster import Cluster
from script import trains

BREAKS = """
me = get_context()
mark("ran", me.worker)
if os.environ.get("BROKEN"): raise OSError("no device")
time.sleep(PAUSE)
report({"ok": 1})
"""


def breaks(pause_s: float) -> str:
    return BREAKS.replace("PAUSE", str(pause_s))


def by_worker(cluster: Cluster, name: str) -> int:
    return sum(line.split()[2] == name for line in cluster.lines("ran"))


@pytest.mark.parametrize(
    ("trials", "pause_s"), [(8, 0.1), pytest.param(40, 1, marks=pytest.mark.acceptance)], ids=["short", "full"]
)
def test_a_broken_machine_is_taken_out_of_service(cluster: Cluster, trials: int, pause_s: float) -> None:
    """Three quick failures of different trials; retries go elsewhere; all complete; it can be brought back."""
    cluster.worker(cpu=1, name="broken", env={"BROKEN": "1"})
    cluster.worker(cpu=1, name="sound")
    text = trains(breaks(pause_s), param_space=f"{{'i': grid(range({trials}))}}", max_failures=1)
    run = cluster.submit(text)
    found = cluster.wait(run, timeout_s=120)

    assert found["counts"]["completed"] == trials, found
    assert by_worker(cluster, "broken") == 3
    [broken] = [each for each in cluster.json("workers")["workers"] if each["worker"] == "broken"]
    assert broken["state"] == "quarantined" and not broken["accepting"]
    assert "3 trials in a row failed within 10 s" in broken["reason"]
    assert "flowctl workers --restore broken" in cluster.flowctl("workers").stdout
    again = trains("report({'worker': get_context().worker})", param_space="{'i': grid(range(2))}")
    cluster.flowctl("workers", "--restore", "broken", check=True)
    run = cluster.submit(again)
    cluster.wait(run)
    assert [trial["status"] for trial in cluster.results(run)] == ["completed"] * 2


def test_the_last_accepting_worker_is_never_taken_out(cluster: Cluster) -> None:
    """Alone, however often all fails there; and what fails on every worker is the script's doing, not theirs."""
    cluster.worker(cpu=1, name="one", env={"BROKEN": "1"})
    space = "{'i': grid(range(5))}"
    first = cluster.submit(trains(breaks(0), param_space=space, max_failures=1))
    cluster.wait(first, state="failed")
    states = [worker["state"] for worker in cluster.json("workers")["workers"]]
    cluster.worker(cpu=1, name="two", env={"BROKEN": "1"})
    second = cluster.submit(trains(breaks(0), param_space="{'i': grid(range(8))}", max_failures=1))
    cluster.wait(second, state="failed")

    assert states == ["up"] and by_worker(cluster, "one") >= 10
    assert sorted(each["state"] for each in cluster.json("workers")["workers"]) == ["up", "up"]
    assert all(trial["attempts"] == 2 for trial in cluster.results(second))
    assert cluster.flowctl("resources", "--check").returncode == 0


def test_a_worker_that_alone_could_take_them_is_kept(cluster: Cluster) -> None:
    """Another accepting worker that lacks what they ask for is no way out."""
    cluster.worker(resources="cpu=1,lic=1", name="only", env={"BROKEN": "1"})
    cluster.worker(cpu=1, name="other")
    text = trains(breaks(0), param_space="{'i': grid(range(5))}", resources="{'cpu': 1, 'lic': 1}")
    cluster.wait(cluster.submit(text), state="failed")

    assert {each["worker"]: each["state"] for each in cluster.json("workers")["workers"]} == {
        "only": "up",
        "other": "up",
    }
    assert by_worker(cluster, "only") == 5


def test_one_trial_that_fails_again_and_again_blames_no_machine(cluster: Cluster) -> None:
    """Three failures of one trial are its own; it tries every worker, and none is taken out."""
    for name in ("one", "two"):
        cluster.worker(cpu=1, name=name)
    body = "mark('ran', get_context().worker)\nraise ValueError('mine')"
    run = cluster.submit(trains(body, max_failures=5))
    cluster.wait(run, state="failed")

    assert [each["state"] for each in cluster.json("workers")["workers"]] == ["up", "up"]
    lines = [line.split()[2] for line in cluster.lines("ran")]
    assert len(lines) == 6 and set(lines) == {"one", "two"} and lines[0] != lines[1]
