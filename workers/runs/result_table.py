"""Results as a flat table: fixed columns, then every configuration key and every metric that any trial has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from flowctl.workers.runs.results import AUTOMATIC, Results, TrialResult

FIXED = ("trial", "step", "index", "status", "attempts", "worker", "started", "duration_s", "error")


def columns_and_rows(results: Results) -> tuple[list[str], list[dict[str, Any]]]:
    """One row per trial; nested keys become `config.a.b` and `metrics.a.b`; a value that a trial lacks is None."""
    rows = [
        {
            **_fixed(trial),
            **flat(trial.config, "config"),
            **flat(trial.metrics, "metrics"),
        }
        for trial in results
    ]
    return _columns(rows, FIXED), rows


def report_columns_and_rows(results: Results) -> tuple[list[str], list[dict[str, Any]]]:
    """One row per report: trial, the automatic keys, then every metric that any report has."""
    rows = [
        {
            "trial": trial.label,
            **{key: row.get(key) for key in AUTOMATIC},
            **flat({key: value for key, value in row.items() if key not in AUTOMATIC}, "metrics"),
        }
        for trial in results
        for row in trial.rows()
    ]
    return _columns(rows, ("trial", *AUTOMATIC)), rows


def flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Nested dictionaries as one level, keys joined by dots."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}.{key}"
        if isinstance(value, Mapping) and value:
            out.update(flat(value, name))
        else:
            out[name] = value
    return out


def _fixed(trial: TrialResult) -> dict[str, Any]:
    return {
        "trial": trial.label,
        "step": trial.step,
        "index": trial.index,
        "status": trial.status,
        "attempts": trial.attempts,
        "worker": trial.worker,
        "started": _iso(trial.started_ms),
        "duration_s": trial.duration_s,
        "error": trial.error,
    }


def _columns(rows: Iterable[Mapping[str, Any]], fixed: tuple[str, ...]) -> list[str]:
    found = {name for row in rows for name in row if name not in fixed}
    return [*fixed, *sorted(found)]


def _iso(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    text = datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
