"""Flows end to end: the graph, what travels along its edges, and what a failure stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster
from script import script

pytestmark = pytest.mark.xdist_group("flows")

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"

OUTPUTS = """
@stage
def prepare(size, factor=1):
    return {"items": list(range(size)), "factor": factor, "odd": float("nan")}

@stage
def keep(data):
    return saved(total=sum(data["items"]))

@experiment(param_space={"k": grid([3, 1, 2])}, metric="score", mode="max")
def sweep(config, data, *, bonus):
    for step in (1, 2):
        report({"score": config.k * step + bonus["items"][0], "step": step}, checkpoint=saved(k=config.k, step=step))
    report({"score": -1.0, "step": 3})

@stage
def collect(config, metrics, checkpoint, results, best, kept):
    with checkpoint.as_directory() as folder, kept.as_directory() as other:
        files = {name: (Path(folder) / name).read_text() for name in ("k", "step")}
        total = (Path(other) / "total").read_text()
    mark("collect", repr({"config": dict(config), "metrics": dict(metrics), "files": files, "total": total,
        "results": [dict(each) for each in results], "best": (best.index, best.config.k, best.metrics.score)}))
    return None

@flow
def outputs(size=4):
    data = prepare(size, factor=2)
    kept = keep(data)
    trials = sweep(data, bonus=data)
    collect(trials.best.config, trials.best.metrics, trials.best.checkpoint, trials.results, trials.best, kept)
"""

FAILING = """
@stage
def good(): mark("good"); return 1

@stage
def broken(x): mark("broken"); raise ValueError("no luck")

@stage
def after_broken(x): mark("after_broken")

@experiment(param_space={"i": grid([1, 2])}, metric="m", mode="max")
def far_behind(config, x): mark("far_behind")

@experiment(param_space={"i": grid([1, 2, 3])}, metric="m", mode="max")
def sweep(config, x):
    mark("sweep")
    if config.i == 2: raise RuntimeError("one of three")
    report({"m": config.i})

@stage
def beside(best): mark("beside", best.i)

@flow
def failing():
    one = good()
    bad = broken(one)
    far_behind(after_broken(bad))
    beside(sweep(one).best.config)
"""

HOPELESS = """
@experiment(param_space={"i": grid([1, 2])}, metric="m", mode="max")
def sweep(config): raise RuntimeError("all of them")

@experiment(param_space={"i": grid([1, 2])}, metric="m", mode="max")
def silent(config): report({"m": float("nan")})

@stage
def after_sweep(best): mark("after_sweep")

@stage
def after_silent(best): mark("after_silent")

@flow
def hopeless():
    after_sweep(sweep().best.config)
    after_silent(silent().best.config)
"""


def states(cluster: Cluster, run: str) -> dict[str, str]:
    return {step["name"]: step["state"] for step in cluster.status(run)["steps"]}


def test_outputs_travel_along_the_edges_as_what_they_are(cluster: Cluster) -> None:
    """Acceptance 2: a stage's value, a stage's checkpoint, and an experiment's best config, metrics, checkpoint and
    results.
    """
    cluster.worker(cpu=2)

    run = cluster.submit(script(OUTPUTS), "-p", "size=5")
    cluster.wait(run)

    [line] = cluster.lines("collect")
    seen = eval(line.split(" ", 2)[2])
    assert seen["config"] == {"k": 3}
    assert seen["metrics"] == {"score": 6, "step": 2}
    assert seen["files"] == {"k": "3", "step": "2"}
    assert seen["total"] == str(sum(range(5)))
    assert seen["best"] == (0, 3, 6)
    assert [(each["index"], each["status"], each["config"]["k"]) for each in seen["results"]] == [
        (0, "completed", 3),
        (1, "completed", 1),
        (2, "completed", 2),
    ]
    assert set(states(cluster, run).values()) == {"completed"}


def test_failing_stage_stops_what_depends_on_it_and_only_that(cluster: Cluster) -> None:
    """Acceptance 2."""
    cluster.worker(cpu=2)

    run = cluster.submit(script(FAILING))
    cluster.wait(run, state="failed")

    steps = {step["name"]: step for step in cluster.status(run)["steps"]}
    assert {name: step["state"] for name, step in steps.items()} == {
        "good": "completed",
        "broken": "failed",
        "after_broken": "skipped",
        "far_behind": "skipped",
        "sweep": "completed",
        "beside": "completed",
    }
    assert steps["after_broken"]["reason"] == "broken failed"
    assert cluster.lines("after_broken") == cluster.lines("far_behind") == []
    assert len(cluster.lines("sweep")) == 3
    assert cluster.lines("beside")[0].endswith(" 3")
    assert steps["far_behind"]["counts"]["pending"] == 0
    waited = cluster.flowctl("wait", run)
    assert waited.returncode == 1
    assert "ValueError: no luck" in cluster.flowctl("status", run).stdout


def test_sweep_without_a_best_stops_what_needs_its_best(cluster: Cluster) -> None:
    """Acceptance 2, its kind: no trial completed, or none has a finite value; nothing waits for ever."""
    cluster.worker(cpu=2)

    run = cluster.submit(script(HOPELESS))
    cluster.wait(run, state="failed")

    found = states(cluster, run)
    assert (found["sweep"], found["after_sweep"]) == ("failed", "skipped")
    assert (found["silent"], found["after_silent"]) == ("completed", "failed")
    assert cluster.lines("after_sweep") == cluster.lines("after_silent") == []
    assert "no trial" in cluster.flowctl("status", run).stdout


@pytest.mark.timeout(300)
def test_pipeline_example_runs_from_raw_data_to_the_held_out_part(cluster: Cluster) -> None:
    """Acceptance 2."""
    planned = cluster.flowctl("plan", str(EXAMPLE), check=True).stdout
    body = cluster.json("plan", str(EXAMPLE))
    graph = cluster.flowctl("plan", str(EXAMPLE), "--mermaid", check=True).stdout

    done = cluster.flowctl("run", str(EXAMPLE), "--name", "pipe", timeout_s=240)

    assert done.returncode == 0, done.stdout + done.stderr
    names = ["prepare", "sweep", "retrain", "evaluate"]
    assert [step["name"] for step in body["plan"]["steps"]] == names
    after = {step["name"]: step["after"] for step in body["plan"]["steps"]}
    assert after == {
        "prepare": [],
        "sweep": ["prepare"],
        "retrain": ["prepare", "sweep"],
        "evaluate": ["prepare", "retrain"],
    }
    assert body["trials"] == {"prepare": 1, "sweep": 6, "retrain": 1, "evaluate": 1}
    assert body["shapes"] == [{"needs": "cpu 1", "count": 9}]
    assert all(name in planned for name in names) and "6 trials and 3 stages" in planned and "9 × cpu 1" in planned
    assert graph.startswith("flowchart TD")
    assert "s_sweep -->|best.config| s_retrain" in graph and "s_retrain -->|output| s_evaluate" in graph
    status = cluster.status("pipe")
    assert [step["name"] for step in status["steps"]] == names
    begun = {step["name"]: (step["started_ms"], step["ended_ms"]) for step in status["steps"]}
    assert begun["prepare"][1] <= begun["sweep"][0] and begun["sweep"][1] <= begun["retrain"][0]
    assert begun["retrain"][1] <= begun["evaluate"][0]


def test_plan_needs_no_server_and_no_state_folder(cluster: Cluster, tmp_path: Path) -> None:
    """Acceptance 2, its kind: a plan is pure."""
    nowhere = {"FLOWCTL_HOME": str(tmp_path / "home"), "FLOWCTL_BROKER_URL": "redis://127.0.0.1:1"}
    cluster.env.update(nowhere)
    path = str(cluster.script(script(FAILING)))

    first, second = (cluster.json("plan", path) for _ in range(2))

    assert first == second
    assert first["trials"]["far_behind"] == 2
    assert json.dumps(first["plan"]).count('"$output"') == 5
    assert list(tmp_path.iterdir()) == []
    cluster.env.pop("FLOWCTL_BROKER_URL")
    cluster.env["FLOWCTL_HOME"] = str(cluster.home)
