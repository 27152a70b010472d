"""Placement groups of every strategy on several machines: code on each bundle proves worker, process and devices.

Rows 62, 63 and 71. A "machine" is what FLOWCTL_MACHINE says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cluster import Cluster
from intervals import intervals, most_at_once
from script import script

PROOF = """
def where():
    me = get_context()
    return {"worker": me.worker, "pid": os.getpid(), "parent": os.getppid(), "devices": list(me.devices),
            "seen": os.environ["CUDA_VISIBLE_DEVICES"], "resources": dict(me.resources)}

@experiment(resources=placement_group(BUNDLES, strategy=STRATEGY))
def train(config):
    mark("proof")
    bundles = get_context().bundles
    hosts = [bundle.start(where) for bundle in bundles[1:]]
    report({"found": [where(), *(host.result(timeout_s=60) for host in hosts)]})
"""


def gang(bundles: Sequence[dict[str, float]], strategy: str) -> str:
    return script(PROOF.replace("BUNDLES", repr(bundles)).replace("STRATEGY", repr(strategy)))


def machine(cluster: Cluster, name: str, resources: str, on: str | None = None) -> None:
    cluster.worker(resources=resources, name=name, env={"FLOWCTL_MACHINE": on or f"machine-{name}"})


def proofs(cluster: Cluster, run: str, bundles: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """What each bundle found, after a check that each had a process of its own, below a guardian of its worker, with
    exactly the devices and tokens that were asked for.
    """
    cluster.wait(run)
    found: list[dict[str, Any]] = cluster.results(run)[0]["metrics"]["found"]
    assert len({each["pid"] for each in found}) == len(bundles)
    guardians = {worker.name: worker.guardians() for worker in cluster.workers}
    taken = []
    for proof, bundle in zip(found, bundles, strict=True):
        assert proof["parent"] in guardians[proof["worker"]]
        assert proof["resources"] == bundle
        assert proof["seen"] == ",".join(proof["devices"]) and len(proof["devices"]) == bundle.get("gpu", 0)
        taken += [(proof["worker"], device) for device in proof["devices"]]
    assert len(set(taken)) == len(taken), "two bundles with one device"
    return found


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """Machines a (two workers, three cores and two devices in all), b and c (two cores and a device each)."""
    machine(cluster, "a1", "cpu=2,gpu=1", "machine-a")
    machine(cluster, "a2", "cpu=1,gpu=1", "machine-a")
    machine(cluster, "b", "cpu=2,gpu=1")
    machine(cluster, "c", "cpu=2,gpu=1")
    return cluster


def test_each_strategy_puts_bundles_on_the_machines_that_it_promises(three: Cluster) -> None:
    """Row 63. Machines count, not workers: a1 and a2 are one, and PACK and STRICT_PACK use both."""
    two: list[dict[str, float]] = [{"cpu": 1.0, "gpu": 1.0}] * 2
    three_of: list[dict[str, float]] = [{"cpu": 1.0}] * 3
    wanted: list[tuple[str, list[dict[str, float]], Callable[[set[str]], bool]]] = [
        ("PACK", two, lambda machines: machines == {"a"}),
        ("STRICT_PACK", two, lambda machines: machines == {"a"}),
        ("STRICT_PACK", three_of, lambda machines: machines == {"a"}),
        ("SPREAD", two, lambda machines: len(machines) == 2),
        ("SPREAD", three_of, lambda machines: machines == {"a", "b", "c"}),
        ("STRICT_SPREAD", three_of, lambda machines: machines == {"a", "b", "c"}),
        ("SPREAD", [{"cpu": 1.0}] * 5, lambda machines: machines == {"a", "b", "c"}),
    ]
    for strategy, bundles, holds in wanted:
        found = proofs(three, three.submit(gang(bundles, strategy)), bundles)
        machines = {proof["worker"][0] for proof in found}
        assert holds(machines), (strategy, bundles, found)


@pytest.mark.parametrize(
    ("strategy", "bundles", "words"),
    [
        ("STRICT_PACK", [{"cpu": 2.0}, {"cpu": 2.0}], "STRICT_PACK"),
        ("STRICT_SPREAD", [{"cpu": 1.0}] * 4, "STRICT_SPREAD"),
    ],
)
def test_a_strict_group_that_no_cluster_of_this_kind_holds_says_so_and_starts_when_it_can(
    three: Cluster, strategy: str, bundles: list[dict[str, float]], words: str
) -> None:
    """Row 63: refused visibly, at submit and in status; nothing of it is booked; another machine makes it run."""
    said = three.flowctl("submit", str(three.script(gang(bundles, strategy))), "--name", "strict", check=True)
    [reason] = three.status("strict")["pending"]
    booked = three.used()
    machine(three, "d", "cpu=4")
    proofs(three, "strict", bundles)

    assert (reason["kind"], reason["impossible"]) == ("gang", True) and words in reason["text"], reason
    assert reason["text"] in said.stdout + said.stderr
    assert booked == {}


def test_a_group_is_granted_whole_or_not_at_all(cluster: Cluster) -> None:
    """Row 62: driver and two bundles. While one does not fit, the others take nothing from those that do."""
    machine(cluster, "a", "cpu=2,gpu=1")
    machine(cluster, "b", "cpu=2,gpu=1")
    holder = cluster.submit(script("@experiment(resources={'gpu': 1})\ndef hold(config):\n    wait_for('let-go')"))
    cluster.until(lambda: cluster.state(holder, 0) == "running", what="the holder")
    before = cluster.used()
    bundles = [{"cpu": 1.0}, {"gpu": 1.0}, {"gpu": 1.0}]
    run = cluster.submit(gang(bundles, "PACK"))
    [reason] = cluster.status(run)["pending"]
    filler = cluster.submit(script("@experiment(resources={'cpu': 2, 'gpu': 1})\ndef fill(config): pass"))
    cluster.wait(filler)  # what the group waits for is there for others
    cluster.until(lambda: cluster.used() == before, what="the return of what the filler had")
    assert not cluster.lines("proof") and cluster.state(run, 0) == "pending"
    cluster.side.joinpath("let-go").touch()
    proofs(cluster, run, bundles)

    assert reason["kind"] == "gang" and not reason["impossible"]


DRIVER = """
def work(index):
    mark("inside", "start worker")
    wait_for("inside-go")
    mark("inside", "end")
    return index

@experiment(param_space={"i": grid(range(TRIALS))}, resources=placement_group([{"cpu": 1}, {"cpu": 1}, {"cpu": 1}]))
def train(config):
    mark("inside", "start driver")
    hosts = [bundle.start(work, bundle.index) for bundle in get_context().bundles[1:]]
    report({"sum": sum(host.result(timeout_s=60) for host in hosts)})
    mark("inside", "end")
"""


@pytest.mark.parametrize("trials", [2, pytest.param(12, marks=pytest.mark.acceptance)])
def test_trials_that_train_on_bundles_do_not_block_each_other(cluster: Cluster, trials: int) -> None:
    """Row 71: what is booked is driver and workers; room for one such trial: all complete, one after the other."""
    machine(cluster, "a", "cpu=2")
    machine(cluster, "b", "cpu=1")
    run = cluster.submit(script(DRIVER.replace("TRIALS", str(trials))))
    cluster.until(lambda: cluster.has_lines("inside", 3), what="driver and workers")
    totals = cluster.json("resources", "--check")["totals"]
    status = cluster.status(run)
    cluster.side.joinpath("inside-go").touch()
    cluster.wait(run)

    assert (totals["cpu"]["used"], totals["cpu"]["free"]) == (3, 0)
    assert status["counts"]["running"] == 1 and status["counts"]["pending"] == trials - 1
    found = intervals(cluster.lines("inside"))
    assert len(found) == 3 * trials and most_at_once(found) == 3
    drivers = [each for each in found if each.what == "driver"]
    assert most_at_once(drivers) == 1
    assert [trial["metrics"]["sum"] for trial in cluster.results(run)] == [3] * trials
