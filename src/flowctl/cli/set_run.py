"""`flowctl set`: change a run, or one of its steps, while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from flowctl.broker.reading import reading
from flowctl.broker.view import RunView
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.cli.settable import SETTABLE, parse_values
from flowctl.dsl.errors import RefusedError
from flowctl.dsl.states import STEP_ENDED
from flowctl.render.strict_json import dumps

LIMIT = "max_concurrent_trials"


@click.command("set", short_help="Change a run while it runs.")
@click.argument("target", metavar="RUN[/STEP]")
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE…")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Change a run while it runs; what runs already is not stopped.

    \b
    max_concurrent_trials=N  at most N at once, of the run or of one experiment; 0 or none: no limit. Of a run with
                             one experiment, that of the experiment
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
        limited = step or _only_experiment(run, values)
        limits = {name: value for name, value in values.items() if name == LIMIT}
        if limits:
            change(broker, run.run, limits, step=limited)
        change(broker, run.run, {name: value for name, value in values.items() if name != LIMIT}, step=step)
        smaller = {} if limited or not limits else _smaller(broker.client, run, limits[LIMIT])
    label = f"{run.run}/{step}" if step else run.run
    if as_json:
        body = {"run": run.run, "step": step or None, "values": values, "smaller": smaller}
        click.echo(dumps("set", {**body, "limited": limited if limits and limited else None}))
        return
    of = f" of its only experiment, {run.run}/{limited}" if limits and limited != step else ""
    told = [f"{name} {SETTABLE[name].show(value)}{of if name == LIMIT else ''}" for name, value in values.items()]
    click.echo(f"{label}: {', '.join(told)}")
    for name, limit in smaller.items():
        change_it = f"flowctl set {run.run}/{name} {LIMIT}=N"
        click.echo(f"{run.run}/{name} keeps its own limit of {limit}; change it: {change_it}")


def _only_experiment(run: RunView, values: Mapping[str, float | None]) -> str:
    """The step that a limit on the whole run is meant for, where there is no choice: its declared limit is its own."""
    return run.experiments[0].name if LIMIT in values and len(run.experiments) == 1 else ""


def _smaller(client: Any, run: RunView, limit: float | None) -> dict[str, int]:
    """The experiments that have not ended and have a limit of their own below the run's."""
    steps = [step.name for step in run.experiments if step.state not in STEP_ENDED]
    found = client.hmget("fc:limits", [f"{run.run}:{name}" for name in steps]) if steps else []
    own = {name: int(text) for name, text in zip(steps, found, strict=True) if text}
    return {name: n for name, n in own.items() if limit is None or n < limit}


def _find(client: object, text: str) -> tuple[RunView, str]:
    found = targets.find_target(client, text)
    if found.step is None:
        return found.run, ""
    if found.index is not None and found.step.is_experiment:
        raise targets.UnknownTarget(f"'{text}' names a trial", cure=f"name the run or the step: {found.run.run}")
    return found.run, found.step.name
