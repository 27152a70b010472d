"""What a trial may count on: its budget of failures, its reports, its checkpoint, its stop condition, its folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster import Cluster
from script import script, trains


def by_index(cluster: Cluster, run: str, *arguments: str) -> dict[int, dict[str, Any]]:
    return {trial["index"]: trial for trial in cluster.results(run, *arguments)}


def rows(cluster: Cluster, run: str, index: int = 0) -> list[Mapping[str, Any]]:
    return [row for row in cluster.results(run, "--rows") if row["index"] == index]


def test_failing_trial_is_tried_as_often_as_its_budget_says_and_others_finish(shared: Cluster) -> None:
    """Rows 1, 2, 3 and 13: N+1 attempts, each with its own cause and log; 0 is one attempt; -1 has no limit."""
    body = """
    {MARK}
    if config.i == 1 and len(Path(os.environ["SIDE"], NAME).read_text().splitlines()) <= TIMES:
        print("before failing", get_context().attempt)
        raise ValueError(f"attempt {get_context().attempt} says no")
    report({"m": config.i})
    """
    runs = {}
    for limit, times in ((2, 99), (0, 99), (-1, 7)):
        name = f"budget{limit}"
        text = body.replace("{MARK}", f"if config.i == 1: mark('{name}')").replace("NAME", repr(name))
        space = "{'i': grid([0, 1, 2])}"
        text = trains(text.replace("TIMES", str(times)), param_space=space, max_failures=limit)
        runs[limit] = shared.submit(text)
    for run in runs.values():
        shared.wait(run)

    for limit, attempts in ((2, 3), (0, 1)):
        trial = shared.trial(runs[limit], 1)
        assert (trial["state"], trial["attempts"], trial["failures"]) == ("failed", attempts, attempts)
        assert len(shared.lines(f"budget{limit}")) == attempts
        assert [past["cause"]["text"] for past in trial["history"]] == [
            f"attempt {number} says no" for number in range(1, attempts + 1)
        ]
        assert [past["attempt"] for past in trial["history"]] == list(range(1, attempts + 1))
        assert shared.status(runs[limit])["counts"]["completed"] == 2
        assert shared.flowctl("wait", runs[limit]).returncode == 3
    for number in (1, 2, 3):
        text = shared.flowctl("logs", f"{runs[2]}/1", "--attempt", str(number)).stdout
        assert f"before failing {number}" in text and f"attempt {number} says no" in text
    endless = shared.trial(runs[-1], 1)
    assert (endless["state"], endless["attempts"], endless["failures"]) == ("completed", 8, 7)
    assert shared.flowctl("wait", runs[-1]).returncode == 0


def test_killed_trial_goes_on_from_its_checkpoint_and_no_iteration_counts_twice(shared: Cluster) -> None:
    """Row 8 (and 11): kill -9 is one failure; iterations after the checkpoint appear once, of the later attempt."""
    body = """
    first = 1
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            first = int((Path(folder) / "epoch").read_text()) + 1
    for epoch in range(first, 9):
        if get_context().attempt == 1 and epoch == 7:
            mark("kill-me")
            time.sleep(60)
        report({"epoch": epoch}, checkpoint=saved(epoch=epoch) if epoch % 2 else None)
    """
    run = shared.submit(trains(body, max_failures=1))
    shared.until(lambda: shared.lines("kill-me"), what="epoch 7")
    pid = int(shared.lines("kill-me")[0].split()[0])
    os.kill(pid, signal.SIGKILL)
    shared.wait(run)

    trial = shared.trial(run, 0)
    assert (trial["attempts"], trial["failures"]) == (2, 1)
    first, second = trial["history"]
    assert first["cause"]["signal"] == 9 and "signal 9" in first["cause"]["headline"]
    assert second["cause"] is None
    found = rows(shared, run)
    assert [row["training_iteration"] for row in found] == list(range(1, 9))
    assert [row["metrics"]["epoch"] for row in found] == list(range(1, 9))
    assert [row["attempt"] for row in found] == [1] * 5 + [2] * 3
    times = [row["time_total_s"] for row in found]
    assert times == sorted(times)


def test_every_report_is_a_row_and_its_checkpoint_is_safe_when_report_returns(shared: Cluster) -> None:
    """Rows 14, 15 and 18."""
    body = f"""
    run = Path({str(shared.storage)!r}) / get_context().run
    seen = []
    assert get_checkpoint() is None
    for step in range(5):
        report({{"step": step}}, checkpoint=saved(step=step) if step in (1, 3) else None)
        seen.append(len(list(run.glob("steps/*/*/*/manifest-*.json"))))
        if checkpoint := get_checkpoint():
            with checkpoint.as_directory() as folder:
                seen.append((Path(folder) / "step").read_text())
    report({{"seen": seen}})
    """
    run = shared.submit(trains(body))
    shared.wait(run)

    [trial] = shared.results(run, "--verify")
    found = rows(shared, run)
    assert [row["training_iteration"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert trial["reports"] == 6 and trial["verified"] is True
    assert trial["metrics"]["seen"] == [0, 1, "1", 1, "1", 2, "3", 2, "3"]
    assert (trial["checkpoint"]["iteration"], trial["checkpoint"]["of"]) == (4, "latest")


def test_report_of_what_cannot_be_a_row_is_that_trials_error_naming_the_key(shared: Cluster) -> None:
    """Rows 16 and B128, B111: a bad type is a clear error in the trial, before anything is recorded."""
    values = ["5", "None", "'text'", "[1]", "{0: 1.0}", "{'bad': object()}", "{'a': {'b': {1, 2}}}"]
    values += ["{'training_iteration': 3}", "{'time_total_s': 1.0}"]
    body = f"report([{', '.join(values)}][config.i])"
    run = shared.submit(trains(body, param_space=f"{{'i': grid(range({len(values)}))}}"))
    shared.wait(run, state="failed")

    words = [
        "int",
        "NoneType",
        "str",
        "list",
        "0 (int)",
        "metrics.bad",
        "metrics.a.b",
        "training_iteration",
        "time_total",
    ]
    trials = by_index(shared, run)
    for index, word in enumerate(words):
        cause = trials[index]["cause"]
        assert cause["type"] in ("TypeError", "ValueError", "ValueRefused"), cause
        assert word in cause["text"], cause
        assert "script" in cause["place"] and trials[index]["reports"] == 0


def test_trial_that_never_reports_its_metric_fails_alone_with_the_names_that_it_did(shared: Cluster) -> None:
    """Row 17 and B109: reports without the metric go on; a trial without any fails at its end; the others complete."""
    body = """
    for s in range(6):
        report({"train_loss": s} if (s % 2 or config.i == 3) else {"train_loss": s, "val_loss": s - config.i})
    """
    run = shared.submit(trains(body, param_space="{'i': grid(range(4))}", metric="'val_loss'", mode="'min'"))
    shared.wait(run)

    trials = by_index(shared, run)
    assert [trials[i]["status"] for i in range(4)] == ["completed"] * 3 + ["failed"]
    assert [trials[i]["reports"] for i in range(4)] == [6] * 4
    assert "val_loss" in trials[3]["error"] and "train_loss" in trials[3]["error"]
    best = shared.json("best", run)["best"]
    assert (best["index"], best["best"]["value"], best["best"]["iteration"]) == (2, -2, 1)


def test_stop_conditions_end_a_trial_at_the_first_report_where_one_holds(shared: Cluster) -> None:
    """Rows 24 and 25: a dictionary (nested names too), a function, a list: whichever first; the reason is kept."""
    text = """
    def flat(result): return result["training_iteration"] >= 3 and result["loss"] == 1
    def raising(result): raise KeyError("oops")

    def work(config):
        try:
            for epoch in range(1, 8):
                report({"epoch": epoch, "loss": 1, "eval": {"acc": epoch / 10}})
            mark("never-here")
        finally:
            mark("stop-finally")

    @experiment(stop={"epoch": 5})
    def by_limit(config): work(config)
    @experiment(stop={"eval": {"acc": 0.4}})
    def by_nested(config): work(config)
    @experiment(stop=flat)
    def by_function(config): work(config)
    @experiment(stop=[{"epoch": 6}, flat, {"training_iteration": 2}])
    def by_list(config): work(config)
    @experiment(stop=raising)
    def by_raising(config): work(config)
    @flow
    def stops(): by_limit(); by_nested(); by_function(); by_list(); by_raising()
    """
    run = shared.submit(script(text))
    shared.wait(run, state="failed")

    found = {}
    for step in ("by_limit", "by_nested", "by_function", "by_list", "by_raising"):
        [trial] = shared.results(f"{run}/{step}")
        found[step] = (trial["status"], trial["reports"], trial["reason"])
    assert found["by_limit"] == ("completed", 5, "stop condition: epoch")
    assert found["by_nested"] == ("completed", 4, "stop condition: eval/acc")
    assert found["by_function"] == ("completed", 3, "stop condition: flat")
    assert found["by_list"] == ("completed", 2, "stop condition: training_iteration")
    assert found["by_raising"][:2] == ("failed", 1)
    assert shared.lines("never-here") == [] and len(shared.lines("stop-finally")) == 5


def test_each_trial_works_in_a_folder_of_its_own_that_is_empty_at_first(shared: Cluster) -> None:
    """Row 31: a relative file lands in the trial's own folder."""
    body = """
    assert list(Path(".").iterdir()) == []
    with open("notes.txt", "a") as file: file.write(str(config.i))
    report({"text": Path("notes.txt").read_text(), "folder": os.getcwd()})
    """
    run = shared.submit(trains(body, param_space="{'i': grid(range(4))}"))
    shared.wait(run)

    metrics = [trial["metrics"] for trial in shared.results(run)]
    assert [each["text"] for each in metrics] == ["0", "1", "2", "3"]
    assert len({each["folder"] for each in metrics}) == 4
    assert not any(Path(each["folder"]).exists() for each in metrics)
