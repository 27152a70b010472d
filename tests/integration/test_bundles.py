"""Placement groups with real workers and real processes: code runs on each bundle and proves where."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from cluster import Cluster

GANG = """
import json, os, time
from flowctl import experiment, get_context, placement_group, report

def where(word):
    me = get_context()
    return {"word": word, "worker": me.worker, "pid": os.getpid(), "resources": dict(me.resources)}

@experiment(resources=placement_group([{"cpu": 1}, {"cpu": 2}, {"cpu": 2}], strategy="STRICT_SPREAD"))
def train(config):
    bundles = get_context().bundles
    hosts = [bundle.start(where, f"hello {bundle.index}") for bundle in bundles[1:]]
    found = [host.result(timeout_s=60) for host in hosts]
    report({"found": json.dumps(found), "pid": os.getpid(), "worker": get_context().worker,
            "said": json.dumps([[b.worker, dict(b.resources)] for b in bundles])})
"""


def test_code_runs_on_each_bundle_of_a_gang(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.worker(resources="cpu=2", name=name, env={"FLOWCTL_MACHINE": f"m-{name}"})

    run = cluster.submit(GANG)
    cluster.wait(run)

    (row,) = cluster.trial_rows(run, 0)
    found = json.loads(row["found"])
    assert [one["word"] for one in found] == ["hello 1", "hello 2"]
    workers = {row["worker"], *(one["worker"] for one in found)}
    assert workers == {"a", "b", "c"}
    assert len({row["pid"], *(one["pid"] for one in found)}) == 3
    assert [one["resources"] for one in found] == [{"cpu": 2.0}, {"cpu": 2.0}]
    assert json.loads(row["said"])[0][1] == {"cpu": 1.0}


LONG = """
import os, signal, subprocess, time
from flowctl import experiment, get_context, placement_group, report

def hold(name):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(os.path.join(os.environ["SIDE"], name), "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    time.sleep(1000)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def fail():
    raise KeyError("no such simulator")

@experiment(resources=placement_group([{"cpu": 1}, {"cpu": 1, "tok": 1}], strategy="PACK"), max_failures=1)
def train(config):
    bundle = get_context().bundles[1]
    outcomes = []
    for function in (fail, die):
        try:
            bundle.start(function).result(timeout_s=60)
        except RuntimeError as error:
            outcomes.append(f"{error.cause['kind']}: {error}")
    held = bundle.start(hold, f"held-{get_context().attempt}")
    try:
        bundle.start(fail)
    except RuntimeError as error:
        outcomes.append(str(error))
    report({"outcomes": " | ".join(outcomes), "worker": bundle.worker})
    held.result()
"""


def pids(cluster: Cluster, name: str) -> list[int]:
    """Those that a host wrote down: itself and its child in a session of its own."""
    cluster.until(lambda: cluster.has_lines(name, 1), what=f"the host {name}")
    return [int(pid) for pid in cluster.lines(name)[0].split()]


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_what_fails_on_a_bundle_is_told_and_nothing_of_it_outlives_the_run(cluster: Cluster) -> None:
    a = cluster.worker(resources="cpu=1", name="a")
    b = cluster.worker(resources="cpu=1,tok=1", name="b")
    run = cluster.submit(LONG)
    held = pids(cluster, "held-1")
    cluster.until(lambda: cluster.trial_rows(run, 0), what="the report")

    said = cluster.trial_rows(run, 0)[0]["outcomes"]

    assert "exception: on bundle 1 (b): KeyError: 'no such simulator'" in said
    assert "signal: on bundle 1 (b): killed by signal 9" in said
    assert "bundle 1 is busy" in said
    one = {"cpu": 10000, "slot": 10000}
    assert cluster.used() == {a.boot: one, b.boot: {**one, "tok": 10000}}
    cluster.flowctl("cancel", run, check=True)
    cluster.wait(run, state="cancelled")
    cluster.until(lambda: not any(map(is_alive, held)), what="the end of the host and its child")
    cluster.until(lambda: not any(map(bool, cluster.used().values())), what="the tokens")


@pytest.mark.parametrize("victim", ["the trial", "its guardian", "the guardian of the host", "the worker of the host"])
def test_a_gang_that_loses_a_part_starts_again_as_a_whole(cluster: Cluster, victim: str) -> None:
    cluster.worker(resources="cpu=1", name="a")
    first = cluster.worker(resources="cpu=1,tok=1", name="b")
    run = cluster.submit(LONG)
    held = pids(cluster, "held-1")
    cluster.until(lambda: cluster.trial_rows(run, 0), what="the report")
    (trial,) = (pid for pid in cluster.trial_pids(run, 0) if pid not in held)
    if victim == "the worker of the host":
        cluster.worker(resources="cpu=1,tok=1", name="c")

    if victim == "the trial":
        os.kill(trial, signal.SIGKILL)
    elif victim == "its guardian":
        os.kill(psutil.Process(trial).ppid(), signal.SIGKILL)
    elif victim == "the guardian of the host":
        os.kill(psutil.Process(held[0]).ppid(), signal.SIGKILL)
    else:
        first.kill()

    again = pids(cluster, "held-2")
    if victim != "the worker of the host":  # processes of a killed worker are swept by its next start
        assert not any(map(is_alive, held))
    assert all(map(is_alive, again))
    cluster.flowctl("cancel", run, check=True)
    cluster.wait(run, state="cancelled")
    cluster.until(lambda: not any(map(is_alive, again)), what="the end of the second host")
    if victim == "the worker of the host":
        cluster.worker(resources="cpu=1,tok=1", name="b")
        assert not any(map(is_alive, held))


REPAIRED = """
import os, time
from flowctl import experiment, get_context, placement_group, report

def hold():
    with open(os.path.join(os.environ["SIDE"], "held"), "a") as file:
        file.write(get_context().worker + "\\n")
    time.sleep(1000)

def where():
    return get_context().worker

@experiment(resources=placement_group([{"cpu": 1}, {"cpu": 1}], strategy="STRICT_SPREAD"), on_bundle_loss="repair")
def train(config):
    bundle = get_context().bundles[1]
    try:
        bundle.start(hold).result()
    except RuntimeError as error:
        report({"lost": error.cause["kind"], "first": bundle.worker})
    while (again := bundle.refresh()) is None:
        time.sleep(0.1)
    report({"second": again.worker, "found": again.start(where).result(timeout_s=60)})
"""


def test_a_lost_bundle_is_replaced_by_its_strategy_while_the_attempt_goes_on(cluster: Cluster) -> None:
    names = ("a", "b", "c")
    workers = {name: cluster.worker(resources="cpu=1", name=name, env={"FLOWCTL_MACHINE": name}) for name in names}
    run = cluster.submit(REPAIRED)
    cluster.until(lambda: cluster.has_lines("held", 1), what="the host")
    (host,) = cluster.lines("held")

    workers[host].kill()
    cluster.broker.calls.worker_leave(workers[host].boot, text="its machine is gone")

    cluster.wait(run)
    first, second = cluster.trial_rows(run, 0)
    assert (first["lost"], first["first"]) == ("lost", host)
    assert second["second"] == second["found"]
    assert second["found"] not in (host, cluster.trial(run, 0)["worker"])
    assert cluster.trial(run, 0)["attempts"] == 1


EXAMPLE = Path(__file__).parents[2] / "examples" / "gang.py"


def test_gang_example_runs_and_its_bundles_logs_are_found_afterwards(cluster: Cluster) -> None:
    done = cluster.flowctl("run", str(EXAMPLE), "--name", "gang", timeout_s=90)

    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = cluster.trial_rows("gang", 0)
    assert abs(row["pi"] - 3.1416) < 0.05 and len(row["workers"]) == 2
    own = cluster.flowctl("logs", "gang/0", check=True)
    assert own.stdout == "" and "bundles 1, 2 printed too: flowctl logs gang/0 --bundle 1" in own.stderr
    for bundle in (1, 2):
        text = cluster.flowctl("logs", "gang/0", "--bundle", str(bundle), check=True).stdout
        assert text == f"100000 points with seed {bundle} on {row['workers'][bundle - 1]}\n"
    assert cluster.json("logs", "gang/0")["bundles"] == [1, 2]
    assert cluster.json("logs", "gang/0", "--bundle", "2", "--attempt", "1")["host"] == 2
    nothing = cluster.flowctl("logs", "gang/0", "--bundle", "3", check=True)
    assert nothing.stdout == "" and "nothing was printed on bundle 3 of gang/0; on 1, 2 something was" in nothing.stderr


def test_status_of_a_trial_says_where_each_bundle_is(cluster: Cluster) -> None:
    cluster.worker(resources="cpu=1", name="a")
    cluster.worker(resources="cpu=1,tok=1", name="b")
    run = cluster.submit(LONG)
    pids(cluster, "held-1")
    cluster.until(lambda: cluster.trial_rows(run, 0), what="the report")

    text = cluster.flowctl("status", f"{run}/0", check=True).stdout
    bundles = cluster.json("status", f"{run}/0")["bundles"]

    assert "bundle 0: on a (the trial itself)" in text and "bundle 1: on b (its code: running)" in text
    assert bundles == [{"index": 0, "worker": "a", "code": None}, {"index": 1, "worker": "b", "code": "running"}]
    cluster.flowctl("cancel", run, check=True)
    cluster.wait(run, state="cancelled")


LOCKED = """
import beside
from flowctl import experiment, get_context, placement_group, report

def on_bundle(n):
    with beside.LOCK:
        return beside.twice(n)

@experiment(resources=placement_group([{"cpu": 1}, {"cpu": 1}]))
def train(config):
    report({"here": beside.twice(1), "there": get_context().bundles[1].start(on_bundle, 2).result(timeout_s=60)})
"""


def test_a_module_beside_the_script_that_holds_a_lock_is_imported_in_trial_and_bundle(cluster: Cluster) -> None:
    cluster.worker(resources="cpu=2", name="a")
    beside = cluster.root / "beside.py"
    beside.write_text("import threading\nLOCK = threading.Lock()\ndef twice(n):\n    return 2 * n\n")

    run = cluster.submit(LOCKED)
    beside.unlink()
    cluster.wait(run)

    (row,) = cluster.trial_rows(run, 0)
    assert (row["here"], row["there"]) == (2, 4)
