"""`flowctl demand`: what is pending, by what it asks for."""

from __future__ import annotations

import click

from flowctl.broker.demand import load_demand
from flowctl.broker.reading import reading
from flowctl.cli.server import opened
from flowctl.render.resources_json import demand_body
from flowctl.render.resources_text import demand_text
from flowctl.render.strict_json import dumps


@click.command("demand", short_help="Show what is pending by what it asks for.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, for autoscalers.")
def command(as_json: bool) -> None:
    """Show what is pending by what it asks for: how many trials of which runs, since when, and whether it is possible.

    "now" has room and is being placed; "later" waits for something to end; "never" fits no live worker, even if idle.
    Trials of steps that may not run yet are not part of it.

    Example: flowctl demand --json
    """
    with opened() as (broker, _), reading(broker):
        view = load_demand(broker.client, gone_ms=broker.calls.times.boot_gone_ms)
    click.echo(dumps("demand", demand_body(view)) if as_json else demand_text(view))
