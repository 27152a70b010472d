"""What a run leaves to read: the best trial, the tables, the live view's words, the failures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

import pandas
import pytest
from cluster import Cluster
from script import trains

import flowctl

VALUES = [[0.5, 0.2, 0.3], [0.1, 0.4, 0.9], [0.9, 0.8, 0.7], [0.2, 0.2, 0.6], [5.0, -5.0, 5.0]]
"""The reports of each trial; the last trial fails after them."""

BODY = f"""
values = {VALUES!r}[config.i]
for step, value in enumerate(values, 1):
    row = {{"loss": value, "step": step}}
    if step == 3 and config.i == 2: row["late"] = {{"x": 7}}
    report(row, checkpoint=saved(loss=value) if step == 2 else None)
    if config.i == 3 and step == 2 and get_context().attempt == 1: os.kill(os.getpid(), 9)
    if config.i == 3 and get_context().attempt == 2 and step == 1: pass
if config.i == 4: raise RuntimeError("after all")
"""
RETRYING = BODY.replace("enumerate(values, 1)", "list(enumerate(values, 1))[2 if get_checkpoint() else 0:]")


@pytest.fixture(scope="module")
def run(shared: Cluster) -> Iterator[str]:
    """A finished run: four trials that completed, the fourth after it was killed, and one that failed."""
    keywords = {"metric": "'loss'", "mode": "'min'", "max_failures": 1}
    name = shared.submit(trains(RETRYING, param_space=f"{{'i': grid(range({len(VALUES)}))}}", **keywords))
    shared.wait(name)
    yield name


def best(shared: Cluster, run: str, *arguments: str) -> tuple[int, float]:
    found = shared.json("best", run, *arguments)["best"]
    return found["index"], found["best"]["value"]


def test_best_is_what_a_person_computes_by_hand(shared: Cluster, run: str) -> None:
    """Row 106: failed trials take part only when asked; max, min and scope; ties go to the lower number."""
    assert best(shared, run) == (1, 0.1)
    assert best(shared, run, "--mode", "max", "--metric", "loss") == (1, 0.9)
    assert best(shared, run, "--scope", "last") == (0, 0.3)
    assert best(shared, run, "--mode", "max", "--metric", "loss", "--scope", "last") == (1, 0.9)
    assert best(shared, run, "--include-failed") == (4, -5.0)
    assert best(shared, run, "--metric", "late/x", "--mode", "max") == (2, 7)
    found = shared.json("best", run)["best"]
    assert (found["iteration"], found["metrics"]["step"], found["checkpoint"]["of"]) == (1, 1, "latest")


def test_table_has_one_row_per_trial_with_status_attempts_and_error(
    shared: Cluster, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 107: as CSV and as a data frame, with equal columns."""
    monkeypatch.setenv("FLOWCTL_HOME", str(shared.home))
    frame = flowctl.attach(run).results().to_pandas()
    text = shared.flowctl("results", run, "--csv", check=True).stdout
    read = pandas.read_csv(io.StringIO(text))

    assert list(frame.columns) == list(read.columns)
    assert len(frame) == len(read) == 5
    assert list(frame["status"]) == ["completed"] * 4 + ["failed"]
    assert list(frame["attempts"]) == [1, 1, 1, 2, 2]
    assert frame["error"][4].startswith("RuntimeError: after all") and frame["error"][:4].isna().all()
    assert list(frame["config.i"]) == [0, 1, 2, 3, 4] and set(frame["worker"]) == {"w0"}
    assert list(read["metrics.loss"]) == [values[-1] for values in VALUES]


def test_reports_are_as_many_in_csv_json_and_count_also_after_a_retry(shared: Cluster, run: str) -> None:
    """Row 108."""
    rows = shared.results(run, "--rows")
    table = list(csv.DictReader(io.StringIO(shared.flowctl("results", run, "--rows", "--csv", check=True).stdout)))
    trials = shared.results(run)

    assert len(rows) == len(table) == 5 * 3
    for trial in trials:
        mine = [row for row in rows if row["index"] == trial["index"]]
        assert [row["training_iteration"] for row in mine] == [1, 2, 3]
        assert [row["metrics"]["loss"] for row in mine] == VALUES[trial["index"]]
    assert [row["attempt"] for row in rows if row["index"] == 3] == [1, 1, 2]
    assert [(row["trial"], row["training_iteration"], float(row["metrics.loss"])) for row in table] == [
        (row["trial"], str(row["training_iteration"]), row["metrics"]["loss"]) for row in rows
    ]


def test_metric_that_comes_late_has_a_column_all_the_same(shared: Cluster, run: str) -> None:
    """Row 109: in one row per trial, and in one row per report."""
    for arguments in ((), ("--rows",)):
        text = shared.flowctl("results", run, "--csv", *arguments, check=True).stdout
        table = list(csv.DictReader(io.StringIO(text)))
        assert [row["metrics.late.x"] for row in table if row["metrics.late.x"]] == ["7"]


def test_failures_are_told_with_trial_place_and_the_command_that_shows_the_trace(shared: Cluster, run: str) -> None:
    """Row 112: equal ones once, with their count."""
    text = shared.flowctl("status", run).stdout
    trace = shared.flowctl("logs", f"{run}/4").stdout
    trial = shared.trial(run, 4)

    assert re.search(rf"{run}/4: RuntimeError: after all  at .*script\d+\.py:\d+", text), text
    assert f"flowctl logs {run}/4" in text
    assert "Traceback" in trace and "RuntimeError: after all" in trace
    assert trial["attempts"] == 2 and all(past["cause"]["traceback"] for past in trial["history"])

    many = shared.submit(trains("raise ValueError('the same')", param_space="{'i': grid(range(4))}"))
    shared.wait(many, state="failed")
    assert f"4 × {many}/" in shared.flowctl("status", many).stdout


def test_status_shows_counts_what_runs_the_best_and_why_the_rest_waits(shared: Cluster) -> None:
    """Row 111."""
    body = "report({'acc': config.i / 10})\nif config.i: mark('table'); wait_for('table-go')"
    keywords: dict[str, Any] = {"metric": "'acc'", "mode": "'max'", "resources": "{'cpu': 2}"}
    run = shared.submit(trains(body, param_space="{'i': grid(range(5))}", **keywords))
    shared.until(lambda: len(shared.lines("table")) == 2 and shared.state(run, 0) == "completed", what="two trials")
    shared.until(lambda: shared.status(run)["counts"]["running"] == 2, what="two running")
    text, status = shared.flowctl("status", run).stdout, shared.status(run)
    shared.side.joinpath("table-go").touch()
    shared.wait(run)

    assert "1 completed, 2 running, 2 pending of 5" in text
    assert re.search(r"trial +state +iteration +last report +worker +time", text), text
    assert re.search(rf"{run}/1 +running +1 +acc=0.1 +w0 ", text), text
    assert "2 pending: waits for cpu: needs 2, w0 has 0 of 4 free" in text
    assert "best acc 0.2" in text
    assert status["pending"][0]["count"] == 2 and len(status["active"]) == 2


def test_run_whose_trials_never_report_ends_with_what_to_do(shared: Cluster) -> None:
    path = str(shared.script(trains("pass", metric="'loss'", mode="'min'")))

    done = shared.flowctl("run", path, "--name", "silent")

    assert done.returncode == 1
    assert "nothing was reported: call report({'loss': …}) in the trial" in done.stdout
    assert "has written nothing (failed); " in shared.flowctl("logs", "silent/0").stderr
