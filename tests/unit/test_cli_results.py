"""The best trial, tables and strict JSON, on trials made by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flowctl.broker.cause import Cause
from flowctl.dsl.config import Config
from flowctl.dsl.errors import DeclarationError
from flowctl.render.results_text import results_text
from flowctl.render.strict_json import dumps
from flowctl.storage.checkpoint import Checkpoint
from flowctl.workers.runs.result_table import columns_and_rows, report_columns_and_rows
from flowctl.workers.runs.results import (
    BestReport,
    CheckpointInfo,
    NoBest,
    Results,
    ResultSource,
    TrialResult,
    best_row,
    finite,
    lookup,
)

NAN, INF = math.nan, math.inf


class Rows(ResultSource):
    """Rows given by number of the trial, and nothing else: what is not asked for here does not exist."""

    def __init__(self, rows: dict[int, list[dict[str, Any]]]) -> None:
        self._rows = rows

    def rows(self, trial: TrialResult) -> list[dict[str, Any]]:
        return self._rows.get(trial.index, [])

    def checkpoint_at(self, trial: TrialResult, iteration: int) -> CheckpointInfo | None:
        return None

    def output(self, trial: TrialResult) -> Any:
        return None

    def checkpoint(self, trial: TrialResult, info: CheckpointInfo) -> Checkpoint:
        raise LookupError(info)

    def save(self, trial: TrialResult, info: CheckpointInfo, folder: Path) -> Path:
        raise LookupError(info)


def row(iteration: int, **metrics: Any) -> dict[str, Any]:
    return {**metrics, "training_iteration": iteration, "attempt": 1, "time_total_s": 1.0, "timestamp": 2.0}


def trial(index: int, values: list[float], *, mode: str = "min", status: str = "completed", **more: Any) -> TrialResult:
    """A trial that reported these losses, as the server would summarise it."""
    rows = [row(i + 1, loss=value) for i, value in enumerate(values)]
    fields: dict[str, Any] = {
        "run": "r",
        "step": "train",
        "index": index,
        "label": f"r/{index}",
        "status": status,
        "reason": None,
        "cause": None,
        "attempts": 1,
        "worker": "w",
        "started_ms": 1_000,
        "ended_ms": 3_500,
        "iteration": len(rows),
        "reports": len(rows),
        "config": Config({"i": index}),
        "metrics": {"loss": values[-1]} if values else {},
        "best_report": best_row(rows, "loss", mode),
        "source": Rows({index: rows}),
    }
    return TrialResult(**{**fields, **more})


def results(*trials: TrialResult, mode: str = "min") -> Results:
    return Results(trials, run="r", metric="loss", mode=mode)


VALUES = [NAN, 0.5, INF, 0.3, 0.3, -INF]


@pytest.mark.parametrize(("mode", "winner"), [("min", 3), ("max", 1)])
def test_nan_and_infinities_never_win_and_ties_go_to_the_lowest_number(mode: str, winner: int) -> None:
    """B107."""
    found = results(*(trial(i, [value], mode=mode) for i, value in enumerate(VALUES)), mode=mode)

    assert {found.best.index for _ in range(20)} == {winner}
    assert found.get_best(scope="last").index == winner
    assert found.get_best("loss", mode).index == winner


def test_no_finite_value_is_an_error_of_its_own() -> None:
    """B107."""
    with pytest.raises(NoBest, match="no trial has a finite loss") as caught:
        _ = results(trial(0, [NAN]), trial(1, [])).best

    assert caught.value.exit_code == 1


def test_unknown_metric_lists_what_was_reported() -> None:
    with pytest.raises(NoBest, match="no trial has a finite losss; they reported loss; did you mean 'loss'"):
        results(trial(0, [1.0])).get_best("losss", "min")


def test_failed_and_cancelled_trials_take_part_only_when_asked() -> None:
    """Feature 106."""
    found = results(trial(0, [0.1], status="failed"), trial(1, [0.2], status="cancelled"), trial(2, [0.3]))

    assert found.best.index == 2
    assert found.get_best(include_failed=True).index == 0
    assert [each.index for each in found.failed] == [0]


def test_scope_compares_every_report_or_the_last() -> None:
    """Feature 106."""
    found = results(trial(0, [0.1, 0.9]), trial(1, [0.5, 0.4]))

    assert (found.best.index, found.best.metrics, found.best.iteration) == (0, {"loss": 0.1}, 1)
    assert (found.get_best(scope="last").index, found.get_best(scope="last").iteration) == (1, 2)
    assert found.get_best("loss", "max").best_report == BestReport(0.9, 2, {"loss": 0.9})
    with pytest.raises(DeclarationError, match="unknown scope 'avg'"):
        found.get_best(scope="avg")


def test_mode_is_needed_with_another_metric() -> None:
    with pytest.raises(DeclarationError, match="mode of 'other' is missing"):
        results(trial(0, [1.0])).get_best("other")


def test_best_checkpoint_is_that_reports_else_the_latest_and_says_which() -> None:
    first, last = CheckpointInfo(1, "a", 1, 1), CheckpointInfo(1, "a", 2, 2)
    own = trial(0, [0.1, 0.9], best_checkpoint=first, latest_checkpoint=last, checkpoint_of="latest")
    other = trial(0, [0.1, 0.9], latest_checkpoint=last, checkpoint_of="latest")
    same = trial(0, [0.9, 0.1], latest_checkpoint=last, checkpoint_of="latest")

    assert (results(own).best.checkpoint_of, results(own).best.checkpoint_info) == ("best", first)
    assert (results(other).best.checkpoint_of, results(other).best.checkpoint_info) == ("latest", last)
    assert (results(same).best.checkpoint_of, results(same).best.checkpoint_info) == ("best", last)
    assert own.checkpoint_info == last


def test_table_has_one_row_per_trial_and_every_column() -> None:
    """Features 107 and 109: status, attempts and error are there, and a metric that came late too."""
    cause = Cause(kind="exception", type="ValueError", text="bad", place="x.py:3")
    late = trial(1, [2.0], metrics={"loss": 2.0, "late": 1, "nest": {"a": 5}})
    columns, rows = columns_and_rows(results(trial(0, [1.0], status="failed", cause=cause), late))

    assert columns[:9] == ["trial", "step", "index", "status", "attempts", "worker", "started", "duration_s", "error"]
    assert columns[9:] == ["config.i", "metrics.late", "metrics.loss", "metrics.nest.a"]
    assert [each["error"] for each in rows] == ["ValueError: bad at x.py:3", None]
    assert rows[0]["duration_s"] == 2.5
    assert rows[0]["started"] == "1970-01-01T00:00:01.000Z"


def test_reports_table_has_one_row_per_report() -> None:
    """Feature 108."""
    columns, rows = report_columns_and_rows(results(trial(0, [3.0, 2.0]), trial(1, [1.0])))

    assert columns == ["trial", "training_iteration", "attempt", "time_total_s", "timestamp", "metrics.loss"]
    assert [(each["trial"], each["training_iteration"]) for each in rows] == [("r/0", 1), ("r/0", 2), ("r/1", 1)]


def test_results_are_a_sequence_and_a_frame() -> None:
    found = results(trial(0, [1.0]), trial(1, [2.0]))

    assert len(found) == 2
    assert found[1].index == 1
    assert isinstance(found[:1], Results)
    assert found.rows(1) == found.rows(found[1]) == [row(1, loss=2.0)]
    frame = found.to_pandas()
    assert list(frame["metrics.loss"]) == [1.0, 2.0]
    assert repr(found) == "<Results of r: 2 completed>"


def test_json_for_tools_names_special_floats() -> None:
    text = dumps("x", {"a": [NAN, INF, -INF, 1.5], "b": {"c": (1, None)}, "big": 2**80})

    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    assert document == {
        "format": 1,
        "kind": "x",
        "a": ["NaN", "Infinity", "-Infinity", 1.5],
        "b": {"c": [1, None]},
        "big": 2**80,
    }
    assert "\n" not in dumps("x", {"a": 1}, indent=None)


def test_values_that_can_win() -> None:
    assert [finite(value) for value in (1, 1.5, 2**2000, NAN, INF, True, "1", None)] == [1, 1.5, 2**2000, *[None] * 5]
    assert lookup({"a": {"b": 2}, "c/d": 3}, "a/b") == 2
    assert lookup({"a": {"b": 2}, "c/d": 3}, "c/d") == 3
    assert lookup({"a": 1}, "a/b") is None


CAUSE = Cause(kind="exception", type="ValueError", text="a long text that says what was wrong in many words")


def of(index: int, values: list[float], **more: Any) -> Any:
    config = Config({"lr": 0.1 * (index + 1), "optimizer": {"name": "sgd"}, "batch_size": 128})
    return trial(index, values, config=config, **more)


FOUND = results(of(1, [0.5, 0.7]), of(0, [0.9]), of(2, [], status="failed", cause=CAUSE))


def test_equal_values_are_said_once_and_trials_are_in_order() -> None:
    head, *rows, same = results_text(FOUND, None, width=None).splitlines()

    assert head.split("  ") and "best loss" in head
    assert [row.split()[0] for row in rows] == ["r/0", "r/1", "r/2"]
    assert "lr=0.2" in rows[1] and "batch_size" not in rows[1]
    assert rows[1].split("lr=0.2")[1].split() == ["0.5", "loss=0.7"]
    assert same == "the same in all trials: optimizer/name=sgd batch_size=128"


def test_a_single_trial_and_equal_configurations_keep_their_values() -> None:
    assert "batch_size=128" in results_text(results(of(0, [1.0])), None, width=None).splitlines()[1]
    twins = results(trial(0, [1.0], config=Config({"x": 1})), trial(1, [1.0], config=Config({"x": 1})))
    assert results_text(twins, None, width=None).count("x=1") == 2


def test_no_line_of_the_table_is_wider_than_the_terminal() -> None:
    for width in (200, 100, 80, 60):
        text = results_text(FOUND, None, width=width)
        table = [line for line in text.splitlines() if line.startswith(("trial", "r/"))]
        assert len(table) == 4 and max(map(len, table)) <= width, text

    assert "everything: flowctl results r --csv" in results_text(FOUND, None, width=60)
    assert "too narrow" not in results_text(FOUND, None, width=None)


def test_columns_without_anything_are_left_out() -> None:
    head = results_text(results(of(0, [1.0])), None, width=None).splitlines()[0]
    assert "error" not in head and "checkpoint" not in head

    checked = results_text(results(of(0, [1.0])), {0: True}, width=None)
    assert "verified" in checked
