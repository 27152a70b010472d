"""Devices and their parts, of workers that declare them: what adds up, what is shared, and who sees which (cases)."""

from __future__ import annotations

from functools import partial

from cluster import Cluster
from intervals import clashes, intervals, most_at_once
from script import script, trains

HELD = """
mark(NAME, f"start {os.environ['CUDA_VISIBLE_DEVICES']}")
wait_for(NAME + "-go")
mark(NAME, "end")
"""


def test_parts_of_a_device_that_sum_to_one_all_fit(cluster: Cluster) -> None:
    """B26: all ten at once, on a worker with default options; afterwards exactly one device is free."""
    cluster.worker(resources="gpu=1")
    for name, share, trials in (("tenths", "0.1", 10), ("thirds", "1/3", 3), ("sevenths", "1/7", 7)):
        text = trains(
            HELD.replace("NAME", repr(name)),
            param_space=f"{{'i': grid(range({trials}))}}",
            resources=f"{{'gpu': {share}}}",
        )
        run = cluster.submit(text)
        cluster.until(partial(cluster.has_lines, name, trials), what=f"all {name} at once")
        running = cluster.client.scard(f"fc:active:{run}")
        cluster.side.joinpath(f"{name}-go").touch()
        cluster.wait(run)

        assert running == trials
        assert {each.what for each in intervals(cluster.lines(name))} == {"0"}
        cluster.until(lambda: not cluster.used(), what="the return of the device")
    assert cluster.json("resources", "--check")["totals"]["gpu"] == {"capacity": 1, "used": 0, "free": 1}


def test_a_gang_of_fractions_is_packed_so_that_no_device_is_over_one(cluster: Cluster) -> None:
    """B26: 0.1, 0.9 and 0.9 on two devices, at once; code on each bundle writes which it has."""
    cluster.worker(resources="cpu=1,gpu=2")
    text = script(
        """
        def where():
            return [os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], get_context().resources["gpu"]]

        @experiment(resources=placement_group([{"gpu": 0.1}, {"gpu": 0.9}, {"gpu": 0.9}]))
        def train(config):
            hosts = [bundle.start(where) for bundle in get_context().bundles[1:]]
            report({"found": [where(), *(host.result(timeout_s=60) for host in hosts)]})
        """
    )
    run = cluster.submit(text)
    cluster.wait(run)

    found = cluster.results(run)[0]["metrics"]["found"]
    assert len({pid for pid, _, _ in found}) == 3
    assert [share for _, _, share in found] == [0.1, 0.9, 0.9]
    sums = {device: sum(share for _, seen, share in found if seen == device) for _, device, _ in found}
    assert set(sums) == {"0", "1"} and sorted(round(each, 4) for each in sums.values()) == [0.9, 1.0]


def test_whole_devices_are_never_shared_and_all_are_used(cluster: Cluster) -> None:
    """B28: nine trials on three devices; one entry each, and intervals of one device never overlap."""
    cluster.worker(resources="cpu=1,gpu=3")
    body = """
    mark("b28", f"start {os.environ['CUDA_VISIBLE_DEVICES']}")
    if config.i < 3: wait_for("b28-go")
    time.sleep(0.1)
    mark("b28", "end")
    """
    run = cluster.submit(trains(body, param_space="{'i': grid(range(9))}", resources="{'gpu': 1}"))
    cluster.until(lambda: cluster.has_lines("b28", 3), what="three at once")
    cluster.side.joinpath("b28-go").touch()
    cluster.wait(run)

    found = intervals(cluster.lines("b28"))
    assert len(found) == 9 and {each.what for each in found} == {"0", "1", "2"}
    assert clashes(found) == [] and most_at_once(found) == 3


HARM = """
import os, threading
from pathlib import Path

LOCK = threading.Lock()
LOCK.acquire()
READY = threading.Event()

def hold():
    LOCK.release()
    READY.set()
    threading.Event().wait()

THREAD = threading.Thread(target=hold, daemon=True)
THREAD.start()
READY.wait()
with open(Path(os.environ["SIDE"]) / "imported", "a") as file:
    file.write(f"{os.getpid()}\\n")
"""


def test_a_trial_is_a_fresh_interpreter_whose_parent_never_saw_the_script(cluster: Cluster) -> None:
    """B36: a module of the script starts a thread and takes a lock as it is imported; the trials use both."""
    worker = cluster.worker(resources="gpu=2")
    (cluster.root / "harm.py").write_text(HARM)
    body = """
    import harm
    with harm.LOCK:
        report({"pid": os.getpid(), "parent": os.getppid(), "alive": harm.THREAD.is_alive(),
                "command": Path("/proc/self/cmdline").read_text()})
    """
    text = trains(body, param_space="{'i': grid(range(4))}", resources="{'gpu': 0.5}")
    run = cluster.submit(f"import harm\n{text}")
    cluster.wait(run)

    metrics = [trial["metrics"] for trial in cluster.results(run)]
    pids, parents = {each["pid"] for each in metrics}, {each["parent"] for each in metrics}
    imported = set(map(int, cluster.lines("imported")))
    assert len(pids) == 4 and all(each["alive"] and "trial_main" in each["command"] for each in metrics)
    assert parents <= set(worker.guardians())
    assert pids <= imported and not imported & {worker.pid, *worker.guardians()}
