"""Working a run off on this machine and showing it: what `flowctl run` does after submitting."""

from __future__ import annotations

from dataclasses import replace

import click

from flowctl.broker.reading import reading
from flowctl.broker.reasons import Reason
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.store import Broker
from flowctl.cli.follow import follow, is_terminal
from flowctl.cli.outcome import exit_code
from flowctl.dsl.errors import RunFailed
from flowctl.local_run import LocalRun
from flowctl.render.summary import reason_line
from flowctl.render.table import cut, number, pairs
from flowctl.workers.runs.configs import ConfigReader

INTERRUPTED = 130


def run_here(
    run: str, *, broker: Broker, settings: Settings, resources: str | None, as_json: bool, after: str | None
) -> int:
    """Show the run until it ends, with a worker here; returns the exit code. `after`: as of `follow`."""
    local = LocalRun(run, broker=broker, settings=settings, resources=resources)
    try:
        with local:
            snap = _follow(run, local, broker=broker, settings=settings, as_json=as_json, after=after)
            if snap is not None:
                local.dismiss()
    except KeyboardInterrupt:
        local.kill()
        click.echo(f"killed; go on with: flowctl run --attach {run}", err=True)
        return INTERRUPTED
    if snap is None:
        click.echo(f"stopped; go on with: flowctl run --attach {run}", err=True)
        return INTERRUPTED
    if not as_json:
        for line in [*_outputs(snap, settings), *_next_commands(snap)]:
            click.echo(line)
    return exit_code(snap.run)


def _follow(
    run: str, local: LocalRun, *, broker: Broker, settings: Settings, as_json: bool, after: str | None
) -> Snapshot | None:
    """The last look at the run, or None after Ctrl-C (the worker is then stopped by leaving; a second one kills)."""
    watcher = _Watcher(run, local, broker)
    try:
        with reading(broker):
            location = _location(broker, run)
        configs = ConfigReader(location, run, settings)
        return follow(broker, run, configs.of_quietly, as_json=as_json, after=after, each=watcher.look)
    except KeyboardInterrupt:
        if local.own:
            click.echo("\nstopping the worker, its trials keep their checkpoints; Ctrl-C again kills", err=True)
        return None


class _Watcher:
    """On `run` a request that nothing here can meet fails at once: no other machine is expected."""

    def __init__(self, run: str, local: LocalRun, broker: Broker) -> None:
        self._run = run
        self._local = local
        self._broker = broker

    def look(self, snap: Snapshot) -> Snapshot:
        """The look to show; raises RunFailed if something that waits cannot run here, LocalWorkerDied."""
        self._local.check()
        if not self._is_worker_up(snap):
            return replace(snap, reasons=tuple(_starting(reason) for reason in snap.reasons))
        impossible = [reason for reason in snap.reasons if reason.is_impossible]
        if not impossible or snap.run.wanted == "cancel":
            return snap
        from flowctl.workers.runs.steer import cancel

        with reading(self._broker):
            cancel(self._broker, self._run)
        lines = [reason_line(reason, several=len(snap.run.steps) > 1) for reason in impossible]
        raise RunFailed("; ".join(lines), run=self._run, causes=lines, place=self._run, cure="the run was cancelled")

    def _is_worker_up(self, snap: Snapshot) -> bool:
        """Whether the worker that is meant to take the run has announced what it offers."""
        mine = (self._run,) if self._local.own else (None, self._run)
        return any(worker.only_run in mine and worker.is_live(snap.at_ms) for worker in snap.workers)


def _starting(reason: Reason) -> Reason:
    """What is true while the worker here starts: nobody has to do anything about it."""
    if reason.kind in ("waits_for_steps", "run_cancelled", "delayed"):
        return reason
    return replace(reason, kind="starting", text="the worker here starts", cure=None)


def _location(broker: Broker, run: str) -> str:
    from flowctl.cli.target import find_run

    return find_run(broker.client, run).location


def _outputs(snap: Snapshot, settings: Settings) -> list[str]:
    """What the last stages of a flow returned, one line each."""
    needed = {name for step in snap.run.steps for name in step.after}
    last = [each for each in snap.run.steps if each.name not in needed and not each.is_experiment]
    reader = ConfigReader(snap.run.location, snap.run.run, settings)
    lines = []
    for step in last:
        output = reader.output(step.name) if step.state == "completed" else None
        if isinstance(output, dict) and "$manifest" not in output:
            lines.append(f"{step.name}: {pairs(output)}")
        elif output is not None and not isinstance(output, dict):
            lines.append(f"{step.name}: {cut(number(output), 100)}")
    return lines


def _next_commands(snap: Snapshot) -> list[str]:
    run = snap.run.run
    best = next(iter(snap.best.values()), None)
    last = snap.run.steps[-1].name
    trial = snap.run.label(best.step, best.index) if best else snap.run.label(last, 0)
    lines = [f"results: flowctl results {run}", f"log: flowctl logs {trial}"]
    if is_terminal():
        lines.insert(0, "")
    return lines
