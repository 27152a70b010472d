"""`flowctl wait`: until a run has ended; the exit code says how."""

from __future__ import annotations

import time

import click

from flowctl.broker.reading import reading
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot, take_snapshot
from flowctl.broker.store import Broker, revive
from flowctl.broker.view import RunView, load_run
from flowctl.cli import target as targets
from flowctl.cli.outcome import exit_code, tell_infeasible
from flowctl.cli.server import opened
from flowctl.dsl.errors import UnreachableError
from flowctl.render.status_json import status_body
from flowctl.render.strict_json import dumps
from flowctl.render.summary import count_text, pending_lines
from flowctl.workers.runs.configs import ConfigReader

TIMED_OUT = 6
POLL_S = 0.5


@click.command("wait", short_help="Wait until a run has ended.")
@click.argument("run", required=False)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after so long (exit code 6).")
@click.option("--json", "as_json", is_flag=True, help="At the end, or at the timeout, the run as of 'status --json'.")
def command(run: str | None, timeout: float | None, as_json: bool) -> int:
    """Wait until a run has ended. Without RUN, the newest.

    Exit code: 0 all trials completed, 3 completed but some trials failed, 1 failed or cancelled, 6 the timeout passed.

    Example: flowctl wait digits --timeout 600 && flowctl best digits
    """
    with opened() as (broker, settings):
        with reading(broker):
            found = targets.find_run(broker.client, run)
        return wait_until_ended(broker, settings, found, timeout_s=timeout, as_json=as_json)


def wait_until_ended(
    broker: Broker,
    settings: Settings,
    found: RunView,
    *,
    timeout_s: float | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Waits, says how the run ended, and returns the exit code.

    What lacked where a trial was pending for too long goes to stderr. `as_json`: instead of a line the run as of
    `status --json`, also when the time is over.
    """
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    is_away = False
    while not found.ended:
        left_s = deadline - time.monotonic() if deadline is not None else POLL_S
        if left_s <= 0:
            snap = _snapshot(broker, found.run)
            why = f": {'; '.join(pending_lines(snap))}" if snap.reasons else ""
            click.echo(f"flowctl: {found.run} is still {found.state} after {timeout_s:g} s{why}", err=True)
            if as_json:
                _print(snap, settings)
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
    if as_json:
        _print(_snapshot(broker, found.run), settings)
    elif not quiet:
        click.echo(f"{found.run}  {found.state}  {count_text(found.counts())}")
    if found.counts()["failed"]:
        tell_infeasible(_snapshot(broker, found.run))
    return exit_code(found)


def _snapshot(broker: Broker, run: str) -> Snapshot:
    with reading(broker):
        snap = take_snapshot(broker.client, run)
    if snap is None:
        raise targets.UnknownTarget(f"the run '{run}' was removed while waiting for it")
    return snap


def _print(snap: Snapshot, settings: Settings) -> None:
    configs = ConfigReader(snap.run.location, snap.run.run, settings)
    click.echo(dumps("run", status_body(snap, configs.of_quietly)))


def _look(broker: Broker, run: str) -> RunView:
    with reading(broker):
        broker.tick()
        now = load_run(broker.client, run)
    if now is None:
        raise targets.UnknownTarget(f"the run '{run}' was removed while waiting for it")
    return now
