"""`flowctl run`: a script on this machine until it ends, with a live view."""

from __future__ import annotations

import signal

import click

from flowctl.cli.script_options import run_options
from flowctl.dsl.errors import RefusedError
from flowctl.dsl.names import run_id
from flowctl.dsl.resources import parse_offer


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
    priority: int | None,
    weight: float | None,
    pending_timeout: float | None,
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
    from flowctl.cli.launching import Submission, look, notes, prepare, require_linux, submit_prepared
    from flowctl.cli.server import opened
    from flowctl.cli.target import find_run

    require_linux("run")
    if resources is not None:
        parse_offer(resources)
    if (script is None) == (attach is None):
        raise click.UsageError("give a SCRIPT, or --attach RUN")
    new = (name, storage, priority, weight, pending_timeout, sets or None, parameters or None)
    if attach is not None and any(each is not None for each in new):
        options = "--name, --storage, --priority, --weight, --pending-timeout, --set and -p"
        what = f"--attach goes on with a run as it is; leave out {options}"
        raise click.UsageError(what)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    prepared = None
    if script is not None:
        prepared = prepare(script, sets=sets, parameters=parameters, pending_timeout=pending_timeout)
    with opened() as (broker, settings):
        after = None
        if prepared is not None:
            after = "0-0"
            if name is not None and run_id(name) != name:
                click.echo(f"the run {name!r} is called {run_id(name)} here and on storage", err=True)
            submission = Submission(name, storage, priority or 0, weight or 1.0)
            run = submit_prepared(prepared, submission, broker=broker, settings=settings)
            for line in notes(broker, look(broker, run)[0]):
                click.echo(line, err=True)
        else:
            with reading(broker):
                found = find_run(broker.client, attach)
            run = found.run
            if found.ended:
                cure = f"see it: flowctl status {run}; run the script again for a new run"
                raise RefusedError(f"the run has ended ({found.state}) and cannot go on", place=run, cure=cure)
        return run_here(run, broker=broker, settings=settings, resources=resources, as_json=as_json, after=after)
