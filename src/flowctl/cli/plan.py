"""`flowctl plan`: what a script would run, without a server."""

from __future__ import annotations

import contextlib
import sys

import click

from flowctl.cli.script_options import assignments, plan_options


@click.command("plan", short_help="Show what a script would run, without a server.")
@click.argument("script")
@plan_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: the plan and what it amounts to.")
@click.option("--mermaid", is_flag=True, help="The graph as a mermaid flowchart.")
def command(script: str, sets: tuple[str, ...], parameters: tuple[str, ...], as_json: bool, mermaid: bool) -> None:
    """Show the steps of a script, their edges, the number of trials and of each resource shape. Needs no server.

    Resources that are a function of the configuration are computed for the first 1,000 trials of each step; where the
    function fails, a warning says for which trial.

    SCRIPT is path.py, or path.py:NAME where it holds several experiments or flows.

    Example: flowctl plan digits.py --set num_samples=3
    """
    from flowctl.dsl.sample import config_at
    from flowctl.render.plan_asks import LOOKED_AT, PlannedAsks
    from flowctl.render.plan_text import plan_json, plan_mermaid, plan_text
    from flowctl.render.strict_json import dumps
    from flowctl.script import compile_script, load_script
    from flowctl.workers.runs.requests import Asks

    if as_json and mermaid:
        raise click.UsageError("choose one of --json and --mermaid")
    loaded = load_script(script)
    overrides, given = assignments(sets, "--set"), assignments(parameters, "-p")
    compiled = compile_script(loaded, overrides=overrides, parameters=given)
    plan = compiled.plan
    if mermaid:
        click.echo(plan_mermaid(plan))
        return
    with contextlib.redirect_stdout(sys.stderr):  # what the script's functions print is no part of the plan
        asks = [Asks(plan.step(name), each, limit=LOOKED_AT) for name, each in compiled.asking.items()]
    asked = {each.step.name: PlannedAsks.of(each) for each in asks}
    if as_json:
        click.echo(dumps("plan", plan_json(plan, asked)))
    else:
        first = {step.name: config_at(step, 0) for step in plan.steps if step.space is not None}
        click.echo(plan_text(plan, first, asked))
