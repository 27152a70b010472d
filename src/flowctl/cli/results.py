"""`flowctl results`: one row per trial, or one per report."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from flowctl.broker.reading import reading
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.render.clock import span
from flowctl.render.results_json import output_body, report_bodies, results_body
from flowctl.render.strict_json import dumps, plain
from flowctl.render.table import cut, number, pairs, table
from flowctl.workers.runs.folder import open_folder
from flowctl.workers.runs.load_results import load_results, verified_checkpoints
from flowctl.workers.runs.result_table import columns_and_rows, report_columns_and_rows
from flowctl.workers.runs.results import Results


@click.command("results", short_help="Print one row per trial.")
@click.argument("run", required=False)
@click.option("--csv", "as_csv", is_flag=True, help="CSV on stdout, with every configuration key and metric.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--rows", is_flag=True, help="One row per report instead of one per trial.")
@click.option("--verify", is_flag=True, help="Check each trial's newest checkpoint: signature, and all files in full.")
def command(run: str | None, as_csv: bool, as_json: bool, rows: bool, verify: bool) -> None:
    """Print one row per trial: status, attempts, worker, times, error, configuration, last metrics.

    RUN is a run, or RUN/step where it has several experiments; without it, the newest run. With --rows, one row per
    report, also of attempts that were killed.

    Example: flowctl results digits --csv > digits.csv
    """
    if as_csv and as_json:
        raise click.UsageError("choose one of --csv and --json")
    if verify and (rows or as_csv):
        raise click.UsageError("--verify goes with the table and with --json")
    with opened() as (broker, settings):
        with reading(broker):
            found = targets.find_target(broker.client, run)
        step = found.step.name if found.step is not None else None
        folder = open_folder(found.run.location, found.run.run, settings)
        with reading(broker):
            results = load_results(broker.client, found.run, folder, step=step)
            checked = verified_checkpoints(folder, list(results)) if verify else None
            if rows:
                _print_rows(results, as_csv, as_json)
                return
    if as_json:
        click.echo(dumps("results", results_body(results, found.run, checked)))
    elif as_csv:
        click.echo(_csv(*columns_and_rows(results)), nl=False)
    else:
        click.echo(_table(results, checked))


def _print_rows(results: Results, as_csv: bool, as_json: bool) -> None:
    if as_json:
        click.echo(dumps("reports", {"run": results.run, "rows": report_bodies(results)}))
        return
    columns, rows = report_columns_and_rows(results)
    if as_csv:
        click.echo(_csv(columns, rows), nl=False)
        return
    names = [name.removeprefix("metrics.") for name in columns]
    click.echo(table(names, [[_cell(row.get(column)) for column in columns] for row in rows]))


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """RFC 4180 with a line feed; lists and dictionaries as JSON, special floats as NaN, Infinity, -Infinity."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    clean = plain(value)
    if isinstance(clean, dict | list):
        return json.dumps(clean, ensure_ascii=False)
    if isinstance(clean, bool):
        return "true" if clean else "false"
    return clean


def _table(results: Results, checked: Mapping[int, bool] | None) -> str:
    head = ["trial", "status", "attempts", "worker", "time", "iteration", "config", "last metrics", "error"]
    rows = [
        [
            trial.label,
            trial.status,
            str(trial.attempts or ""),
            trial.worker or "",
            span(trial.duration_s) if trial.duration_s is not None else "",
            str(trial.iteration or ""),
            cut(pairs(trial.config, limit=4, width=20), 48),
            cut(pairs(trial.metrics, limit=4, width=16), 48),
            cut(trial.error or "", 60),
        ]
        for trial in results
    ]
    if any(trial.is_stage for trial in results):
        head.insert(-1, "output")
        for row, trial in zip(rows, results, strict=True):
            row.insert(-1, cut(_cell(output_body(trial.output)), 60))
    if checked is not None:
        head.insert(-1, "checkpoint")
        words = {True: "verified", False: "DAMAGED", None: ""}
        for row, trial in zip(rows, results, strict=True):
            row.insert(-1, words[checked.get(trial.index)])
    return table(head, rows)


def _cell(value: Any) -> str:
    return "" if value is None else cut(number(value), 40)
