"""Starting a worker in this process: Celery's own worker on our application, so that both ways of starting one are
equal.
"""

import os
import sys
import warnings
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What `flowctl worker` was told. None: the default, or what the environment says."""

    resources: str | None = None
    labels: str | None = None
    slots: int | None = None
    name: str | None = None
    run: str | None = None
    events: bool = False
    loglevel: str = "INFO"


def main(options: Options) -> int:
    """Runs a worker until it is told to stop; returns its exit code."""
    for variable, value in (
        ("FLOWCTL_RESOURCES", options.resources),
        ("FLOWCTL_LABELS", options.labels),
        ("FLOWCTL_SLOTS", options.slots),
        ("FLOWCTL_WORKER_NAME", options.name),
        ("FLOWCTL_ONLY_RUN", options.run),
        ("FLOWCTL_EVENTS", "1" if options.events else None),
    ):
        if value is not None:
            os.environ[variable] = str(value)
    from celery.platforms import SecurityWarning

    from flowctl.workers.app import app, default_slots
    from flowctl.workers.terminal_worker import TerminalWorker

    # Celery warns root of pickled messages; ours are JSON, and containers run as root.
    warnings.simplefilter("ignore", SecurityWarning)

    worker = app.subclass_with_self(TerminalWorker)(
        concurrency=options.slots or default_slots(),
        pool="prefork",
        loglevel=options.loglevel,
        quiet=True,
        optimization="fair",
    )
    worker.start()
    print("stopped", file=sys.stderr)
    return int(worker.exitcode or 0)
