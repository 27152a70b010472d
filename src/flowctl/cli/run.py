"""`flowctl run`: a script on this machine until it ends, with a live view."""

from __future__ import annotations

import signal

import click

from flowctl.cli.script_options import run_options


@click.command("run", short_help="Run a script here until it ends, with a live view.")
@click.argument("script", required=False)
@run_options
@click.option("--attach", metavar="RUN", help="Go on with a run that was submitted before, instead of a script.")
@click.option("--resources", metavar="NAME=AMOUNT,…", help="What the worker here offers, such as cpu=2,license=1.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout instead of a live view.")
def command(
    script: str | None,
    name: str | None,
    storage: str | None,
    sets: tuple[str, ...],
    parameters: tuple[str, ...],
    attach: str | None,
    resources: str | None,
    as_json: bool,
) -> int:
    """Run a script on this machine until it ends. A worker that is up here is used; else one is started for this run.

    SCRIPT is path.py, or path.py:NAME where it holds several experiments or flows. Ctrl-C stops the worker that was
    started here: its trials go back to pending with their checkpoints, and --attach goes on. A second Ctrl-C kills.

    Example: flowctl run digits.py
    """
    from flowctl.broker.reading import reading
    from flowctl.cli.here import run_here
    from flowctl.cli.launching import prepare, require_linux, submit_prepared
    from flowctl.cli.server import opened
    from flowctl.cli.target import find_run

    require_linux("run")
    if (script is None) == (attach is None):
        raise click.UsageError("give a SCRIPT, or --attach RUN")
    if attach is not None and (name or storage or sets or parameters):
        raise click.UsageError("--attach goes on with a run as it is; leave out --name, --storage, --set and -p")
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    prepared = prepare(script, sets=sets, parameters=parameters) if script is not None else None
    with opened() as (broker, settings):
        after = None
        if prepared is not None:
            after = "0-0"
            run = submit_prepared(prepared, broker=broker, name=name, storage=storage, settings=settings)
        else:
            with reading(broker):
                run = find_run(broker.client, attach).run
        return run_here(run, broker=broker, settings=settings, resources=resources, as_json=as_json, after=after)
