"""`flowctl best`: the best trial, its configuration, and the checkpoint that goes with it."""

from __future__ import annotations

import click

from flowctl.broker.reading import reading
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.render.results_json import trial_result_body
from flowctl.render.strict_json import dumps
from flowctl.render.table import flatten, number
from flowctl.workers.runs.folder import open_folder
from flowctl.workers.runs.load_results import load_results
from flowctl.workers.runs.results import SCOPES, TrialResult


@click.command("best", short_help="Print the best trial.")
@click.argument("run", required=False)
@click.option("--metric", metavar="NAME", help="Instead of the experiment's own; a/b is b inside a.")
@click.option("--mode", type=click.Choice(["max", "min"]), help="Needed with a metric that is not the experiment's.")
@click.option(
    "--scope", type=click.Choice(SCOPES), default="best", show_default=True, help="Every report, or the last."
)
@click.option("--include-failed", is_flag=True, help="Trials that failed or were cancelled take part too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: str | None, metric: str | None, mode: str | None, scope: str, include_failed: bool, as_json: bool
) -> None:
    """Print the trial with the best value, its configuration and its checkpoint. NaN and infinities never win.

    RUN is a run, or RUN/step where it has several experiments; without it, the newest run. Equal values go to the
    lowest trial number. Exit code 1 if no trial has a finite value.

    Example: flowctl best digits --metric loss --mode min
    """
    with opened() as (broker, settings):
        with reading(broker):
            found = targets.find_target(broker.client, run)
        step = found.step.name if found.step is not None else None
        folder = open_folder(found.run.location, found.run.run, settings)
        with reading(broker):
            results = load_results(broker.client, found.run, folder, step=step)
            best = results.get_best(metric, mode, scope, include_failed)
    named = metric or results.metric or ""
    if as_json:
        body = {"metric": named, "mode": mode or results.mode, "scope": scope, "run": found.run.run}
        click.echo(dumps("best", {**body, "best": trial_result_body(best)}))
        return
    click.echo(_text(best, named))


def _text(best: TrialResult, metric: str) -> str:
    report = best.best_report
    lines = [
        f"{best.label}  {metric} {number(report.value) if report else ''}  (iteration {best.iteration}, {best.status})"
    ]
    for title, values in (("config", best.config), ("metrics", best.metrics)):
        flat = flatten(values)
        lines += [f"{title}:", *(f"  {key} = {number(value)}" for key, value in flat.items())] if flat else []
    info = best.checkpoint_info
    if info is None:
        lines.append("checkpoint: none")
    else:
        which = "of this report" if best.checkpoint_of == "best" else "the latest, this report had none"
        lines.append(f"checkpoint: iteration {info.iteration} ({which})")
    return "\n".join(lines)
