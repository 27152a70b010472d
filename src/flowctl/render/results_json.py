"""Results as the bodies of JSON documents; shapes are pinned by render/schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowctl.broker.view import RunView
from flowctl.workers.runs.results import AUTOMATIC, Results, TrialResult


def results_body(results: Results, run: RunView, checked: Mapping[int, bool] | None = None) -> dict[str, Any]:
    """One entry per trial; `verified` says of each newest checkpoint whether it is intact, where that was checked."""
    trials = [trial_result_body(trial) for trial in results]
    if checked is not None:
        for body in trials:
            body["verified"] = checked.get(body["index"])
    return {
        "run": run.run,
        "state": run.state,
        "metric": results.metric,
        "mode": results.mode,
        "location": run.location,
        "trials": trials,
    }


def trial_result_body(trial: TrialResult) -> dict[str, Any]:
    best = trial.best_report
    info = trial.checkpoint_info
    return {
        "trial": trial.label,
        "step": trial.step,
        "index": trial.index,
        "status": trial.status,
        "reason": trial.reason,
        "error": trial.error,
        "cause": trial.cause.to_json() if trial.cause else None,
        "attempts": trial.attempts,
        "worker": trial.worker,
        "started_ms": trial.started_ms,
        "ended_ms": trial.ended_ms,
        "duration_s": trial.duration_s,
        "iteration": trial.iteration,
        "reports": trial.reports,
        "config": dict(trial.config),
        "metrics": dict(trial.metrics),
        "best": {"value": best.value, "iteration": best.iteration, "metrics": dict(best.metrics)} if best else None,
        "output": output_body(trial.output),
        "checkpoint": {**info.to_json(), "of": trial.checkpoint_of} if info else None,
    }


def output_body(output: Any) -> Any:
    """What a stage returned; a checkpoint is named, not shown."""
    return output if output is None or isinstance(output, str | int | float | dict | list) else "a checkpoint"


def report_bodies(results: Results) -> list[dict[str, Any]]:
    """One entry per report."""
    return [
        {
            "trial": trial.label,
            "index": trial.index,
            **{key: row.get(key) for key in AUTOMATIC},
            "metrics": {key: value for key, value in row.items() if key not in AUTOMATIC},
        }
        for trial in results
        for row in trial.rows()
    ]
