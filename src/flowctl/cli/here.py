"""Working a run off on this machine and showing it: what `flowctl run` does after submitting."""

from __future__ import annotations

import click

from flowctl.broker.reading import reading
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.store import Broker
from flowctl.cli.follow import follow, is_terminal
from flowctl.cli.outcome import exit_code
from flowctl.local_run import LocalRun
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
    try:
        with reading(broker):
            location = _location(broker, run)
        configs = ConfigReader(location, run, settings)
        return follow(broker, run, configs.of_quietly, settings=settings, as_json=as_json, after=after, each=local.look)
    except KeyboardInterrupt:
        if local.own:
            click.echo("\nstopping the worker, its trials keep their checkpoints; Ctrl-C again kills", err=True)
        return None


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
    silent = [unit for unit in snap.failed if unit.cause is not None and unit.cause.type == "MissingMetric"]
    if silent:
        step = snap.run.step(silent[0].step)
        metric = step.metric if step is not None else None
        lines.append(f"no {metric} was reported: call report({{'{metric}': …}}) in the trial; flowctl status {run}")
    if is_terminal():
        lines.insert(0, "")
    return lines
