"""`flowctl set`: change a run, or one of its steps, while it runs."""

from __future__ import annotations

import click

from flowctl.broker.reading import reading
from flowctl.broker.view import RunView
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.cli.settable import SETTABLE, parse_values
from flowctl.dsl.errors import RefusedError
from flowctl.render.strict_json import dumps


@click.command("set", short_help="Change a run while it runs.")
@click.argument("target", metavar="RUN[/STEP]")
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE…")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Change a run while it runs; what runs already is not stopped.

    \b
    max_concurrent_trials=N  at most N at once, of the run or of one experiment; 0 or none: no limit
    priority=N               -1000 to 1000, higher goes first; that of a step is added to that of its run
    weight=X                 the run's share beside others of equal priority; only of a whole run

    Example: flowctl set digits max_concurrent_trials=4 priority=5
    """
    from flowctl.workers.runs.steer import change

    values = parse_values(assignments)
    with opened() as (broker, _), reading(broker):
        run, step = _find(broker.client, target)
        if step and "weight" in values:
            raise RefusedError(
                "a step has no weight: shares are between runs", place=target, cure=f"set it on {run.run}"
            )
        found = run.step(step)
        if found is not None and not found.is_experiment and "max_concurrent_trials" in values:
            raise RefusedError(
                "a stage is one unit", place=target, cure="set the limit on an experiment, or on the run"
            )
        change(broker, run.run, values, step=step)
    label = f"{run.run}/{step}" if step else run.run
    if as_json:
        click.echo(dumps("set", {"run": run.run, "step": step or None, "values": values}))
        return
    shown = ", ".join(f"{name} {SETTABLE[name].show(value)}" for name, value in values.items())
    click.echo(f"{label}: {shown}")


def _find(client: object, text: str) -> tuple[RunView, str]:
    found = targets.find_target(client, text)
    if found.step is None:
        return found.run, ""
    if found.index is not None and found.step.is_experiment:
        raise targets.UnknownTarget(f"'{text}' names a trial", cure=f"name the run or the step: {found.run.run}")
    return found.run, found.step.name
