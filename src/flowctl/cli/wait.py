"""`flowctl wait`: until a run has ended; the exit code says how."""

from __future__ import annotations

import time

import click

from flowctl.broker.reading import reading
from flowctl.broker.store import Broker, revive
from flowctl.broker.view import RunView, load_run
from flowctl.cli import target as targets
from flowctl.cli.outcome import exit_code
from flowctl.cli.server import opened
from flowctl.dsl.errors import UnreachableError
from flowctl.render.summary import count_text

TIMED_OUT = 6
POLL_S = 0.5


@click.command("wait", short_help="Wait until a run has ended.")
@click.argument("run", required=False)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after so long (exit code 6).")
def command(run: str | None, timeout: float | None) -> int:
    """Wait until a run has ended. Without RUN, the newest.

    Exit code: 0 all trials completed, 3 completed but some trials failed, 1 failed or cancelled, 6 the timeout passed.

    Example: flowctl wait digits --timeout 600 && flowctl best digits
    """
    deadline = time.monotonic() + timeout if timeout is not None else None
    with opened() as (broker, settings):
        with reading(broker):
            found = targets.find_run(broker.client, run)
        is_away = False
        while not found.ended:
            left_s = deadline - time.monotonic() if deadline is not None else POLL_S
            if left_s <= 0:
                click.echo(f"flowctl: {found.run} is still {found.state} after {timeout:g} s", err=True)
                return TIMED_OUT
            time.sleep(min(POLL_S, left_s))
            try:
                found, is_away = _look(broker, found.run), False
            except UnreachableError as error:
                # Outages are no ends; the embedded server is started again if it died.
                problem = revive(settings) or error
                if not is_away:
                    click.echo(f"flowctl: no contact with the server ({problem.what}); trying again", err=True)
                is_away = True
    click.echo(f"{found.run}  {found.state}  {count_text(found.counts())}")
    return exit_code(found)


def _look(broker: Broker, run: str) -> RunView:
    with reading(broker):
        broker.tick()
        now = load_run(broker.client, run)
    if now is None:
        raise targets.UnknownTarget(f"the run '{run}' was removed while waiting for it")
    return now
