"""`flowctl results`: one row per trial, or one per report."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from flowctl.broker.reading import reading
from flowctl.broker.view import RunView, failed_units
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.render.results_json import report_bodies, results_body
from flowctl.render.results_text import results_text
from flowctl.render.strict_json import dumps, plain
from flowctl.render.table import cut, number, table
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
            _tell_failed_stages(broker.client, found.run, results)
            if rows:
                _print_rows(results, as_csv, as_json)
                return
    if as_json:
        click.echo(dumps("results", results_body(results, found.run, checked)))
    elif as_csv:
        click.echo(_csv(*columns_and_rows(results)), nl=False)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(results_text(results, checked, width=width))


def _tell_failed_stages(client: Any, run: RunView, results: Results) -> None:
    """Says on stderr which other steps of the run failed: their units have no row here."""
    shown = {(trial.step, trial.index) for trial in results}
    stages = {step.name for step in run.steps if step.state == "failed" and not step.is_experiment}
    failed = [unit for unit in failed_units(client, run.run) if unit.step in stages] if stages else []
    for unit in failed:
        if (unit.step, unit.index) not in shown:
            label = run.label(unit.step, unit.index)
            why = unit.cause.told() if unit.cause is not None else unit.reason or "no cause recorded"
            click.echo(f"flowctl: {label} failed: {why}; flowctl logs {label}", err=True)


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


def _cell(value: Any) -> str:
    return "" if value is None else cut(number(value), 40)
