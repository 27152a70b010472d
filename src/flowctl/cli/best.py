"""`flowctl best`: the best trial, its configuration, and the checkpoint that goes with it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from flowctl.broker.reading import reading
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.dsl.errors import RefusedError
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
@click.option("--save", "folder", metavar="DIR", help="Copy its checkpoint into DIR, which must be absent or empty.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: str | None,
    metric: str | None,
    mode: str | None,
    scope: str,
    include_failed: bool,
    folder: str | None,
    as_json: bool,
) -> None:
    """Print the trial with the best value, its configuration and its checkpoint. NaN and infinities never win.

    RUN is a run, or RUN/step where it has several experiments; without it, the newest run. Equal values go to the
    lowest trial number. Exit code 1 if no trial has a finite value.

    Example: flowctl best digits --metric loss --mode min --save best-model
    """
    target = _empty(folder) if folder is not None else None
    with opened() as (broker, settings):
        with reading(broker):
            found = targets.find_target(broker.client, run)
        step = found.step.name if found.step is not None else None
        stored = open_folder(found.run.location, found.run.run, settings)
        with reading(broker):
            results = load_results(broker.client, found.run, stored, step=step)
            best = results.get_best(metric, mode, scope, include_failed)
    if target is not None and not best.save_checkpoint(target):
        raise RefusedError(f"{best.label} has no checkpoint", cure="report one: report(metrics, checkpoint=…)")
    named = metric or results.metric or ""
    name = f"{best.run}/{best.step}" if step is not None else best.run
    options = {"--metric": metric, "--mode": mode, "--scope": scope if scope != "best" else None}
    command = " ".join(
        ["flowctl best", quote(name), *(f"{key} {quote(value)}" for key, value in options.items() if value)]
        + (["--include-failed"] if include_failed else [])
    )
    if as_json:
        body = {"metric": named, "mode": mode or results.mode, "scope": scope, "run": found.run.run}
        shown = trial_result_body(best)
        if shown["checkpoint"] is not None:
            shown["checkpoint"] |= {"save": f"{command} --save DIR", "saved": str(target) if target else None}
        click.echo(dumps("best", {**body, "best": shown}))
        return
    click.echo(_text(best, named, several=any(trial.iteration > 1 for trial in results)))
    if target is not None:
        click.echo(f"saved in {target}")
    elif best.checkpoint_info is not None:
        click.echo(f"save it: {command} --save DIR")


def _empty(folder: str) -> Path:
    """The folder, absolute; refused if anything is in it, or it is none."""
    path = Path(folder).expanduser().absolute()
    try:
        is_free = not any(path.iterdir())
    except FileNotFoundError:
        is_free = True
    except OSError as error:
        raise RefusedError(f"cannot save there ({error.strerror})", place=folder, cure="name another folder") from error
    if not is_free:
        raise RefusedError("the folder is not empty", place=folder, cure="name one that is empty or not there yet")
    return path


def _text(best: TrialResult, metric: str, *, several: bool) -> str:
    """`several`: the trials of the run report more than once, so that the iteration says something."""
    report = best.best_report
    when = f"iteration {best.iteration}, " if several else ""
    lines = [f"{best.label}  {metric} {number(report.value) if report else ''}  ({when}{best.status})"]
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
