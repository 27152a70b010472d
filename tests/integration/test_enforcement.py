"""What `enforce=` holds a trial to: the memory of its whole tree, and its cores."""

from __future__ import annotations

import os

import pytest
from cluster import Cluster
from script import trains

EATS = """
import subprocess
eat = "import time; x = bytearray(MIB * 2**20); time.sleep(60)"
first = subprocess.Popen([sys.executable, "-c", eat.replace("MIB", "150")])
second = subprocess.Popen([sys.executable, "-c", eat.replace("MIB", "150")])
mark("eats")
report({"x": 1})
first.wait()
"""


def test_a_tree_over_its_memory_is_killed_and_says_so(cluster: Cluster) -> None:
    """No process of it alone is over the limit; together they are."""
    cluster.worker(resources="cpu=2,memory=1GiB")
    resources = "{'cpu': 1, 'memory': '256MiB'}"
    run = cluster.submit(trains(EATS, resources=resources, enforce="{'memory'}"))
    cluster.wait(run, state="failed")

    trial = cluster.trial(run, 0)
    cause = trial["history"][0]["cause"]
    assert cause["kind"] == "out_of_memory"
    assert cause["text"].startswith("asked 256 MiB, used ") and cause["text"].endswith(" MiB")
    assert cause["headline"] == f"out of memory: {cause['text']}"
    assert trial["reason"] == "out of memory"
    assert not cluster.trial_pids(run)


def test_without_enforcement_memory_is_bookkeeping(cluster: Cluster) -> None:
    cluster.worker(resources="cpu=2,memory=1GiB")
    body = "x = bytearray(100 * 2**20)\ntime.sleep(1.5)\nreport({'x': len(x)})"
    run = cluster.submit(trains(body, resources="{'cpu': 1, 'memory': '16MiB'}"))
    cluster.wait(run)

    assert cluster.results(run)[0]["status"] == "completed"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_cores_are_bound_and_not_shared_while_there_are_others(cluster: Cluster) -> None:
    cluster.worker(resources="cpu=2")
    body = """
        import threading
        seen = []
        thread = threading.Thread(target=lambda: seen.append(sorted(os.sched_getaffinity(0))))
        thread.start()
        thread.join()
        assert seen[0] == sorted(os.sched_getaffinity(0))
        mark("cores", seen[0][0] if len(seen[0]) == 1 else "many")
        wait_for("cores-go")
    """
    space = "{'i': grid([0, 1])}"
    run = cluster.submit(trains(body, param_space=space, resources="{'cpu': 1}", enforce="{'cpu'}"))
    cluster.until(lambda: cluster.has_lines("cores", 2), what="both trials")
    cluster.side.joinpath("cores-go").touch()
    cluster.wait(run)

    cores = {line.split()[2] for line in cluster.lines("cores")}
    assert len(cores) == 2 and "many" not in cores
