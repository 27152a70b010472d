"""What the end of a run means for the command line: its exit code."""

from __future__ import annotations

import click

from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import RunView
from flowctl.render.failures import group_failures

GOOD = 0
RUN_FAILED = 1
SOME_FAILED = 3


def exit_code(run: RunView) -> int:
    """0 all good, 3 completed although some trials failed, 1 failed or cancelled. For a run that has ended."""
    if run.state != "completed":
        return RUN_FAILED
    return SOME_FAILED if run.counts()["failed"] else GOOD


def tell_infeasible(snap: Snapshot) -> None:
    """Says on stderr what those trials lack that failed because they were pending for too long."""
    units = [unit for unit in snap.failed if unit.cause is not None and unit.cause.kind == "infeasible"]
    for group in group_failures(snap.run, units):
        more = f" and {group.count - 1} more" if group.count > 1 else ""
        click.echo(f"flowctl: {group.label}{more}: {group.headline}", err=True)
