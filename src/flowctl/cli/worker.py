"""`flowctl worker`: a worker on this machine, in this terminal."""

from __future__ import annotations

import os

import click

from flowctl.cli.launching import require_linux
from flowctl.dsl.resources import parse_offer


@click.command("worker", short_help="Start a worker on this machine.")
@click.option(
    "--resources", metavar="NAME=AMOUNT,…", help="What it offers, such as cpu=2,license=1; default: what is here."
)
@click.option("--slots", type=click.IntRange(min=1), help="Trials at once, whatever they ask for.")
@click.option("--name", metavar="NAME", help="Its name; default: made from the host's.")
@click.option("--run", "only_run", metavar="RUN", help="Take that run only.")
@click.option("--events", is_flag=True, help="Send Celery's events, which Flower shows; off by default.")
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
def command(
    resources: str | None, slots: int | None, name: str | None, only_run: str | None, events: bool, verbose: bool
) -> int:
    """Start a worker here. It offers this machine's cores, or what --resources says, and runs trials until Ctrl-C.

    Ctrl-C drains: trials are asked to stop and go back to pending with their checkpoints. On another machine, paste
    the line that 'flowctl up --listen' prints.

    Example: flowctl worker --resources cpu=2,license=1
    """
    require_linux("worker")
    if resources is not None:
        parse_offer(resources, place="--resources")
    from flowctl.workers.launch import Options, main

    level = "DEBUG" if verbose or os.environ.get("FLOWCTL_DEBUG") == "1" else "INFO"
    options = Options(resources=resources, slots=slots, name=name, run=only_run, events=events, loglevel=level)
    return main(options)
