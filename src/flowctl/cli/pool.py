"""`flowctl pool`: tokens of the whole cluster, such as licenses."""

from __future__ import annotations

import click

from flowctl.broker.cluster_view import ClusterView, load_cluster
from flowctl.broker.reading import reading
from flowctl.broker.shape_view import show_tokens
from flowctl.broker.store import Broker
from flowctl.broker.token_view import lease_ages
from flowctl.broker.unit_names import UnitNames
from flowctl.cli.server import opened
from flowctl.render.resources_json import pool_bodies
from flowctl.render.resources_text import pools_text
from flowctl.render.strict_json import dumps
from flowctl.workers.runs.pools import check_pool_name, parse_pool, remove_pool, set_pool, shadowed_by


@click.group("pool", short_help="Set, list or remove cluster-wide tokens.")
def command() -> None:
    """Tokens of the whole cluster, such as licenses. A trial asks for them like for any other: {"license": 1}.

    Example: flowctl pool set license=3
    """


@command.command("set", short_help="Make pools, or resize them.")
@click.argument("pools", nargs=-1, required=True, metavar="NAME=AMOUNT…")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def set_command(pools: tuple[str, ...], as_json: bool) -> None:
    """Make pools, or resize them. What is in use above the new size drains: nothing is taken from a running trial.

    Example: flowctl pool set license=3
    """
    sizes = [parse_pool(text) for text in pools]
    with opened() as (broker, _), reading(broker):
        used = {name: set_pool(broker, name, units) for name, units in sizes}
        if as_json:
            _print_json(broker, load_cluster(broker.client))
            return
    for name, units in sizes:
        text = f"{name}: {show_tokens(name, units)}"
        if used[name] > units:
            over = show_tokens(name, used[name] - units)
            text += f"; {show_tokens(name, used[name])} are in use, {over} of them drain: nobody gets one before"
        click.echo(text)


@command.command("list", short_help="List the pools and who holds their tokens.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def list_command(as_json: bool) -> None:
    """List the pools: how many tokens there are, how many are free, and who holds them.

    Example: flowctl pool list
    """
    with opened() as (broker, _), reading(broker):
        cluster = load_cluster(broker.client)
        if as_json:
            _print_json(broker, cluster)
        elif not cluster.pools:
            click.echo("there is no pool; make one: flowctl pool set license=3")
        else:
            click.echo(pools_text(cluster, _ages(broker, cluster), UnitNames(broker.client).label))
            for worker in cluster.workers:
                for line in shadowed_by(cluster.set_pools, worker.worker, worker.offer):
                    click.echo(f"warning: {line}")


@command.command("remove", short_help="Give a pool up.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def remove_command(name: str, as_json: bool) -> None:
    """Give a pool up. Trials that hold its tokens go on; those that wait for one wait for a worker that offers it.

    Example: flowctl pool remove license
    """
    check_pool_name(name, place="pool remove")
    with opened() as (broker, _), reading(broker):
        used = remove_pool(broker, name)
        if as_json:
            _print_json(broker, load_cluster(broker.client))
            return
    still = f"; {show_tokens(name, used)} of it in use until their trials end" if used else ""
    click.echo(f"{name}: removed{still}")


def _print_json(broker: Broker, cluster: ClusterView) -> None:
    bodies = pool_bodies(cluster, _ages(broker, cluster), UnitNames(broker.client).label)
    click.echo(dumps("pools", {"pools": bodies}))


def _ages(broker: Broker, cluster: ClusterView) -> dict[str, int]:
    return lease_ages(broker.client, cluster, lease_ms=broker.calls.times.lease_ms)
