"""`flowctl list`: the runs, newest first."""

from __future__ import annotations

from typing import Any

import click

from flowctl.broker.best_view import best_so_far
from flowctl.broker.reading import reading
from flowctl.broker.view import RunView, count_runs, load_runs, now_ms
from flowctl.cli.server import opened
from flowctl.render.clock import span_ms
from flowctl.render.status_json import run_body
from flowctl.render.strict_json import dumps
from flowctl.render.summary import count_text
from flowctl.render.table import number, table


@click.command("list", short_help="List runs.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", default=20, show_default=True, help="So many runs; 0: all."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(limit: int, as_json: bool) -> None:
    """List runs, newest first: state, trials per status, the best value, age.

    Example: flowctl list --limit 5
    """
    with opened() as (broker, _), reading(broker):
        at_ms = now_ms(broker.client)
        runs = load_runs(broker.client, limit=limit or None)
        more = max(0, count_runs(broker.client) - len(runs)) if limit else 0
        best = {run.run: _best(broker.client, run) for run in runs}
    if as_json:
        bodies = [{**run_body(run, at_ms=at_ms), "best": best[run.run]} for run in runs]
        click.echo(dumps("runs", {"runs": bodies, "more": more}))
        return
    if not runs:
        click.echo("no runs yet; start one: flowctl run SCRIPT")
        return
    rows = []
    for run in runs:
        shown = best[run.run]
        text = f"{shown['metric']} {number(shown['value'])} ({shown['trial']})" if shown else ""
        rows.append([run.run, run.state, count_text(run.counts()), text, f"{span_ms(run.created_ms, at_ms)} ago"])
    click.echo(table(["run", "state", "trials", "best", "submitted"], rows))
    if more:
        click.echo(f"and {more} more; all: flowctl list --limit 0")


def _best(client: Any, run: RunView) -> dict[str, Any] | None:
    """The best value of the run's last experiment that has one."""
    for step in reversed(run.experiments):
        unit = best_so_far(client, step)
        if unit is not None and unit.best is not None:
            return {"trial": run.label(step.name, unit.index), "metric": step.metric, "value": unit.best}
    return None
