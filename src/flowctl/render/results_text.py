"""Results as a table for people: what is equal in all trials said once, and no wider than the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowctl.render.clock import span
from flowctl.render.results_json import output_body
from flowctl.render.table import cut, flatten, number, pairs, table
from flowctl.workers.runs.results import Results, TrialResult

FLEXIBLE = ("config", "last metrics", "error", "output")
"""Columns that are cut where the terminal is too narrow, down to LEAST; then those of EXPENDABLE are left out."""

EXPENDABLE = ("worker", "attempts", "iteration", "time", "last metrics")
LEAST = 12


def results_text(results: Results, checked: Mapping[int, bool] | None, *, width: int | None) -> str:
    """One row per trial in the order of their numbers; columns that would be empty are left out.

    `width`: at most so many columns wide; None for no bound (a pipe). `checked` says which newest checkpoints are
    intact.
    """
    trials = sorted(results, key=lambda each: (each.step, each.index))
    same = _constants(trials)
    columns = {name: cells for name, cells in _columns(results, trials, same, checked).items() if any(cells)}
    left_out = _fit(columns, width) if width is not None else []
    lines = [table(list(columns), list(zip(*columns.values(), strict=True)))]
    if same:
        lines.append(f"the same in all trials: {pairs(same, limit=12)}")
    if left_out:
        lines.append(f"too narrow for: {', '.join(left_out)}; everything: flowctl results {results.run} --csv")
    return "\n".join(lines)


def _constants(trials: list[TrialResult]) -> dict[str, Any]:
    """The configuration keys that have one value in all trials, if there are several trials and something else."""
    configs = [flatten(trial.config) for trial in trials]
    if len(configs) < 2:
        return {}
    same = {
        key: value
        for key, value in configs[0].items()
        if all(key in each and number(each[key]) == number(value) for each in configs)
    }
    return same if any(set(each) - set(same) for each in configs) else {}


def _columns(
    results: Results, trials: list[TrialResult], same: Mapping[str, Any], checked: Mapping[int, bool] | None
) -> dict[str, list[str]]:
    words = {True: "verified", False: "DAMAGED", None: ""}
    columns = {
        "trial": [trial.label for trial in trials],
        "status": [trial.status for trial in trials],
        "attempts": [str(trial.attempts or "") for trial in trials],
        "worker": [trial.worker or "" for trial in trials],
        "time": [span(trial.duration_s) if trial.duration_s is not None else "" for trial in trials],
        "iteration": [str(trial.iteration or "") for trial in trials],
        "config": [_config(trial, same) for trial in trials],
        f"best {results.metric}": [number(each.value) if (each := trial.best_report) else "" for trial in trials],
        "last metrics": [cut(pairs(trial.metrics, limit=4, width=16), 48) for trial in trials],
        "output": [cut(_output(trial), 60) for trial in trials],
        "checkpoint": [words[checked.get(trial.index)] if checked is not None else "" for trial in trials],
        "error": [cut(trial.error or "", 60) for trial in trials],
    }
    return {name: cells for name, cells in columns.items() if trials}


def _config(trial: TrialResult, same: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in flatten(trial.config).items() if key not in same}
    return cut(pairs(shown, limit=4, width=20), 48)


def _output(trial: TrialResult) -> str:
    value = output_body(trial.output) if trial.is_stage else None
    return "" if value is None else cut(number(value), 40)


def _fit(columns: dict[str, list[str]], width: int) -> list[str]:
    """Cut and leave out columns in place until the table fits; which were left out."""
    left_out = []
    expendable = [name for name in EXPENDABLE if name in columns]
    while (over := _total(columns) - width) > 0:
        flexible = [name for name in FLEXIBLE if name in columns and _width(columns, name) > LEAST]
        if flexible:
            name = max(flexible, key=lambda each: _width(columns, each))
            room = max(LEAST, len(name), _width(columns, name) - over)
            if room < _width(columns, name):
                columns[name] = [cut(cell, room) for cell in columns[name]]
                continue
        if not expendable:
            break
        left_out.append(expendable.pop(0))
        del columns[left_out[-1]]
    return left_out


def _width(columns: Mapping[str, list[str]], name: str) -> int:
    return max(len(name), *(len(cell) for cell in columns[name]))


def _total(columns: Mapping[str, list[str]]) -> int:
    return sum(_width(columns, name) for name in columns) + 2 * (len(columns) - 1)
