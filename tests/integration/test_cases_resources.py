"""What trials ask for, as a person meets it: refusals, limits, reasons, fractions, devices (rows 59-61, 66, 68)."""

from __future__ import annotations

import pytest
from cluster import Cluster
from intervals import intervals, most_at_once
from script import script, trains

HELD = """
mark(NAME, f"start {os.environ['CUDA_VISIBLE_DEVICES']}")
wait_for(NAME + "-go")
mark(NAME, "end")
"""


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"gpu": 1.5}, "above 1 a trial gets whole devices"),
        ({"cpu": 1e-5}, "the smallest amount is 0.0001"),
        ({"gpu": -1}, "gpu"),
        ({"cpu": float("nan")}, "cpu"),
        ({"memory": "16 apples"}, "memory"),
        ({"CPU": 1}, "cpu"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_is_refused_and_nothing_is_submitted(
    shared: Cluster, resources: dict[str, object], said: str
) -> None:
    """Row 59 and its kin: file, line and key in one line; not one trial of it exists."""
    path = shared.script(trains("pass", resources=repr(resources).replace("nan", "float('nan')")))
    before = shared.client.zcard("fc:runs")
    done = shared.flowctl("submit", str(path))

    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and f"{path.name}:" in done.stderr
    assert said in done.stderr, done.stderr
    assert shared.client.zcard("fc:runs") == before


def test_memory_is_shared_out_and_what_nobody_has_is_named_within_seconds(cluster: Cluster) -> None:
    """Rows 61 and 68: two units, one each: two at once. More than any worker has: how much, and who is nearest."""
    cluster.worker(resources="cpu=8,memory=2GiB", name="small")
    space = "{'i': grid(range(3))}"
    run = cluster.submit(trains(HELD.replace("NAME", "'mem'"), param_space=space, resources="{'memory': '1GiB'}"))
    cluster.until(lambda: cluster.has_lines("mem", 2), what="two trials")

    text = trains("pass", resources="{'memory': '3GiB'}")
    submitted = cluster.flowctl("submit", str(cluster.script(text)), "--name", "big", check=True)
    busy, never = cluster.status(run)["pending"], cluster.status("big")["pending"]
    cluster.side.joinpath("mem-go").touch()
    cluster.wait(run)
    cluster.flowctl("cancel", "big", check=True)

    assert most_at_once(intervals(cluster.lines("mem"))) == 2
    [reason] = busy
    assert (reason["kind"], reason["impossible"], reason["nearest"]) == ("busy", False, "small")
    assert reason["lacking"]["memory"] == {"asked": 1024, "offered": 2048, "free": 0}
    assert [holder["trial"] for holder in reason["holders"]] == [f"{run}/0", f"{run}/1"]
    [reason] = never
    assert (reason["kind"], reason["impossible"], reason["nearest"]) == ("impossible", True, "small")
    assert reason["text"] == "needs memory 3 GiB; the nearest worker, small, offers 2 GiB"
    assert reason["text"] in submitted.stdout + submitted.stderr


def test_the_policy_for_what_cannot_be_is_to_wait_or_to_fail(cluster: Cluster) -> None:
    """Row 68: one step waits and runs when a worker comes that can; the other fails alone, naming what lacked."""
    cluster.worker(resources="cpu=1,lic=1")
    text = script(
        """
        @experiment(resources={"cpu": 1, "lic": 2}, pending_timeout_s=1)
        def hasty(config): pass

        @experiment(resources={"cpu": 1, "lic": 2})
        def patient(config): pass

        @flow
        def both(): hasty(), patient()
        """
    )
    run = cluster.submit(text)
    cluster.until(
        lambda: cluster.client.hget(f"fc:unit:{run}:hasty:0", "state") == "failed", what="the hasty step's end"
    )
    waits = cluster.status(f"{run}/patient/0")
    told = cluster.flowctl("status", run).stdout
    cluster.worker(resources="cpu=1,lic=2")
    cluster.wait(run, state="failed")

    [hasty] = cluster.results(f"{run}/hasty")
    lacks = "needs lic 2; the nearest worker, w0, offers 1"
    assert waits["state"] == "pending" and lacks in waits["pending"]["text"]
    [patient] = cluster.results(f"{run}/patient")
    assert patient["status"] == "completed"
    assert hasty["status"] == "failed" and hasty["attempts"] == 0
    assert hasty["cause"]["text"].startswith("was pending for 1 s") and f"was pending for 1 s: {lacks}" in told


@pytest.mark.parametrize("limit", [None, 0])
def test_no_limit_is_no_limit(shared: Cluster, limit: int | None) -> None:
    """Row 66: None and 0 let as many run as fit."""
    name = f"unlimited-{limit}"
    space, half = "{'i': grid(range(6))}", "{'cpu': 0.5}"
    text = trains(HELD.replace("NAME", repr(name)), param_space=space, resources=half, max_concurrent_trials=limit)
    run = shared.submit(text)
    shared.until(lambda: shared.has_lines(name, 6), what="all six at once")
    shared.side.joinpath(f"{name}-go").touch()
    shared.wait(run)


def test_a_negative_limit_is_refused(shared: Cluster) -> None:
    """Row 66."""
    path = shared.script(trains("pass", max_concurrent_trials=-1))
    done = shared.flowctl("submit", str(path))

    assert done.returncode == 2 and "max_concurrent_trials" in done.stderr and f"{path.name}:" in done.stderr


def test_a_limit_holds_through_retries_and_changes_while_it_runs(shared: Cluster) -> None:
    """Row 66: trials that fail and come again are no way around it; `flowctl set` raises it at once."""
    body = """
    mark("retried", "start")
    if get_context().attempt == 1: mark("retried", "end"); raise ValueError("again")
    wait_for("retried-go")
    mark("retried", "end")
    """
    text = trains(body, param_space="{'i': grid(range(6))}", max_concurrent_trials=2, max_failures=1)
    run = shared.submit(text)
    shared.until(lambda: shared.status(run)["counts"]["running"] == 2 and shared.has_lines("retried", 6), what="two")
    held = shared.status(run)
    shared.flowctl("set", f"{run}/train", "max_concurrent_trials=4", check=True)
    shared.until(lambda: shared.status(run)["counts"]["running"] == 4, what="four")
    before = most_at_once(intervals(shared.lines("retried")))
    shared.side.joinpath("retried-go").touch()
    shared.wait(run)

    assert [reason["kind"] for reason in held["pending"]] == ["limit"]
    found = intervals(shared.lines("retried"))
    assert len(found) == 12 and before <= 4 and most_at_once(found) <= 4


def test_a_request_follows_the_sampled_value_of_its_trial(cluster: Cluster) -> None:
    """B29: every trial gets what its own sample asks for, and the sum that runs stays within the cluster."""
    cluster.worker(cpu=6)
    body = """
    got = get_context().resources["cpu"]
    mark("sampled", f"start {got}")
    time.sleep(0.1)
    mark("sampled", "end")
    report({"n": config["n"], "got": got, "threads": int(os.environ["OMP_NUM_THREADS"])})
    """
    keywords = {"param_space": "{'n': choice([1, 2, 3, 4])}", "num_samples": 20, "seed": 7}
    run = cluster.submit(trains(body, **keywords, resources="lambda c: {'cpu': c['n']}"))
    cluster.wait(run)

    trials = cluster.results(run)
    assert len(trials) == 20 and len({trial["config"]["n"] for trial in trials}) >= 3
    for trial in trials:
        n = trial["config"]["n"]
        assert trial["metrics"] == {"n": n, "got": float(n), "threads": n}
    found = intervals(cluster.lines("sampled"))
    for at in (each.start for each in found):
        assert sum(float(each.what) for each in found if each.start <= at < each.end) <= 6


def test_what_no_worker_is_or_holds_is_named_whatever_its_kind(shared: Cluster) -> None:
    """B23, others of its kind: a label, a pool that is too small, one bundle of several."""
    asks = {
        "label": "@experiment(labels=['zone=q'])",
        "bundle": "@experiment(resources=placement_group([{'cpu': 1}, {'npu': 1}]))",
        "sum": "@experiment(resources=placement_group([{'cpu': 3}, {'cpu': 3}]))",
    }
    found = {}
    for name, decorator in asks.items():
        run = shared.submit(script(f"{decorator}\ndef train(config): pass"))
        [found[name]] = shared.status(run)["pending"]
        shared.broker.calls.run_cancel(run)
        shared.wait(run, state="cancelled")

    assert all(reason["impossible"] and reason["cure"] for reason in found.values()), found
    assert found["label"]["kind"] == "labels" and "zone=q" in found["label"]["text"]
    assert "npu" in found["bundle"]["text"]
    assert found["sum"]["kind"] == "gang"


def test_a_gang_waits_for_a_machine_that_is_gone_for_a_while(cluster: Cluster) -> None:
    """B25, another of its kind: one of the two machines stops in the middle and comes back; no trial is an error."""
    far = {"FLOWCTL_MACHINE": "machine-b"}
    cluster.worker(cpu=1, name="a")
    gone = cluster.worker(cpu=1, name="b", env=far)
    group = "placement_group([{'cpu': 1}, {'cpu': 1}], strategy='STRICT_SPREAD')"
    body = "mark('spread')\nif config.i == 1: wait_for('spread-go')"
    run = cluster.submit(trains(body, param_space="{'i': grid(range(3))}", resources=group))
    cluster.until(lambda: cluster.has_lines("spread", 2), what="the second trial")
    gone.stop()
    cluster.until(lambda: cluster.state(run, 1) == "pending", what="its return to the queue")
    pending = cluster.status(run)["pending"]
    cluster.side.joinpath("spread-go").touch()
    cluster.worker(cpu=1, name="b", env=far)
    cluster.wait(run)

    assert {reason["kind"] for reason in pending} == {"gang"}
    trials = cluster.results(run)
    assert [trial["status"] for trial in trials] == ["completed"] * 3
