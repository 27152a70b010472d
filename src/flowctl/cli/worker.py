"""`flowctl worker`: a worker on this machine, in this terminal."""

from __future__ import annotations

import os
import sys

import click

from flowctl.cli.launching import require_linux
from flowctl.dsl.resources import parse_offer


@click.command("worker", short_help="Start a worker on this machine.")
@click.option(
    "--resources",
    metavar="NAME=AMOUNT,…",
    help="What it offers, such as cpu=2,gpu=1,memory=16GiB,license=1; cpu, gpu and memory that are not named, or "
    "'auto', are what is here.",
)
@click.option("--labels", metavar="LABEL,…", help="What it says of itself, such as spot,zone=a.")
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="Trials at once, whatever they ask for: each takes one slot beside what it asks for.",
)
@click.option("--name", metavar="NAME", help="Its name; default: made from the host's.")
@click.option("--run", "only_run", metavar="RUN", help="Take that run only.")
@click.option("--print-resources", "is_print", is_flag=True, help="Show what it would offer, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --print-resources: one JSON object on stdout.")
@click.option("--events", is_flag=True, help="Send Celery's events, which Flower shows; off by default.")
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
def command(
    resources: str | None,
    labels: str | None,
    slots: int | None,
    name: str | None,
    only_run: str | None,
    is_print: bool,
    as_json: bool,
    events: bool,
    verbose: bool,
) -> int:
    """Start a worker here. It offers this machine's cores, memory and GPUs, or what --resources says, and runs trials
    until Ctrl-C.

    Ctrl-C drains: trials are asked to stop and go back to pending with their checkpoints. On another machine, paste
    the line that 'flowctl up --listen' prints.

    Example: flowctl worker --resources cpu=2,license=1 --labels spot
    """
    require_linux("worker")
    if as_json and not is_print:
        raise click.UsageError("--json goes with --print-resources")
    if is_print:
        return _print(resources, labels=labels, slots=slots, as_json=as_json)
    if resources is not None:
        parse_offer(resources, place="--resources")
    if labels is not None:
        from flowctl.workers.offers import parse_worker_labels

        parse_worker_labels(labels, place="--labels")
    from flowctl.workers.launch import Options, main

    level = "DEBUG" if verbose or os.environ.get("FLOWCTL_DEBUG") == "1" else "INFO"
    options = Options(
        resources=resources, labels=labels, slots=slots, name=name, run=only_run, events=events, loglevel=level
    )
    return main(options)


def _print(resources: str | None, *, labels: str | None, slots: int | None, as_json: bool) -> int:
    """What a worker with these options and this environment would offer, alone on this machine."""
    from flowctl.broker.settings import Settings
    from flowctl.render.offer_text import offer_body, offer_lines, offer_table
    from flowctl.render.strict_json import dumps
    from flowctl.workers.offers import offers, slots_of

    settings = Settings.from_env(make_home=False)
    found = offers(
        resources or settings.resources,
        slots=slots or slots_of(os.environ),
        labels=settings.labels if labels is None else labels,
    )
    if as_json:
        click.echo(dumps("offer", offer_body(found)))
        return 0
    for note in found.notes:
        click.echo(f"flowctl: note: {note}", err=True)
    click.echo(offer_table(found) if sys.stdout.isatty() else offer_lines(found))
    return 0
