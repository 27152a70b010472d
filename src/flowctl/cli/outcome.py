"""What the end of a run means for the command line: its exit code."""

from __future__ import annotations

from flowctl.broker.view import RunView

GOOD = 0
RUN_FAILED = 1
SOME_FAILED = 3


def exit_code(run: RunView) -> int:
    """0 all good, 3 completed although some trials failed, 1 failed or cancelled. For a run that has ended."""
    if run.state != "completed":
        return RUN_FAILED
    return SOME_FAILED if run.counts()["failed"] else GOOD
