"""`flowctl resources`: every token, and who holds it."""

from __future__ import annotations

import click

from flowctl.broker.audit import audit
from flowctl.broker.cluster_view import load_cluster
from flowctl.broker.reading import reading
from flowctl.broker.store import Broker
from flowctl.broker.token_view import lease_ages
from flowctl.broker.unit_names import UnitNames
from flowctl.cli.server import opened
from flowctl.render.resources_json import resources_body
from flowctl.render.resources_text import resources_text
from flowctl.render.strict_json import dumps

BROKEN = 5


@click.command("resources", short_help="Show every token and who holds it.")
@click.option("--check", is_flag=True, help="Recompute all sums from what is booked; exit code 5 if one is wrong.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(check: bool, as_json: bool) -> int:
    """Show every token of workers, devices and pools: how many there are, what is free, who holds them and since when.

    The age of a lease says when its trial was last heard of. An orphan is an attempt whose end is not confirmed: its
    tokens are given to nobody until then.

    Example: flowctl resources --check
    """
    with opened() as (broker, _):
        return show_resources(broker, as_json=as_json, check=check)


def show_resources(broker: Broker, *, as_json: bool, check: bool = False) -> int:
    """Prints them; the exit code is 5 if a check was asked for and found something."""
    with reading(broker):
        cluster = load_cluster(broker.client)
        ages = lease_ages(broker.client, cluster, lease_ms=broker.calls.times.lease_ms)
        names = UnitNames(broker.client)
        found = audit(broker.client) if check else None
        if as_json:
            click.echo(dumps("resources", resources_body(cluster, ages, names.label, found)))
        else:
            click.echo(resources_text(cluster, ages, names.label))
    for line in found or ():
        click.echo(f"flowctl: {line}", err=True)
    if check and not found and not as_json:
        click.echo("\nall sums are right")
    return BROKEN if found else 0
