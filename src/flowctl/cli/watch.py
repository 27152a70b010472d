"""`flowctl watch`: follow a run until it ends."""

from __future__ import annotations

import click

from flowctl.broker.reading import reading
from flowctl.cli import target as targets
from flowctl.cli.follow import follow
from flowctl.cli.outcome import exit_code, tell_infeasible
from flowctl.cli.server import opened
from flowctl.workers.runs.configs import ConfigReader


@click.command("watch", short_help="Follow a run until it ends.")
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout, one per change.")
def command(run: str | None, as_json: bool) -> int:
    """Follow a run until it ends: a live view on a terminal, one line per change in a pipe. Without RUN, the newest.

    Ctrl-C detaches; the run goes on. Exit code: as of 'flowctl wait'.

    Example: flowctl watch digits
    """
    with opened() as (broker, settings):
        with reading(broker):
            found = targets.find_run(broker.client, run)
        configs = ConfigReader(found.location, found.run, settings)
        ended = follow(broker, found.run, configs.of_quietly, settings=settings, as_json=as_json)
    tell_infeasible(ended)
    return exit_code(ended.run)
