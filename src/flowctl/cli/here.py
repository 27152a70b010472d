"""Working a run off on this machine and showing it: what `flowctl run` does after submitting."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import click

from flowctl.broker.reading import reading
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.store import Broker
from flowctl.cli.follow import ReaderGone, follow, is_terminal, silence
from flowctl.cli.outcome import exit_code, tell_infeasible
from flowctl.dsl.errors import FlowctlError
from flowctl.local_run import LocalRun
from flowctl.render.failures import group_failures
from flowctl.render.outputs import output_lines
from flowctl.render.summary import unreported_line
from flowctl.workers.runs.configs import ConfigReader

INTERRUPTED = 130


def run_here(
    run: str, *, broker: Broker, settings: Settings, resources: str | None, as_json: bool, after: str | None
) -> int:
    """Show the run until it ends, with a worker here; returns the exit code. `after`: as of `follow`."""
    local = LocalRun(run, broker=broker, settings=settings, resources=resources)
    parting = ""
    try:
        with local:
            seen = _follow(run, local, broker=broker, settings=settings, as_json=as_json, after=after)
            if isinstance(seen, Snapshot):
                local.dismiss()
            else:
                parting = _parting(local)
    except KeyboardInterrupt:
        local.kill()
        click.echo(f"killed; go on with: flowctl run --attach {run}", err=True)
        return INTERRUPTED
    if not isinstance(seen, Snapshot):
        click.echo(parting, err=True)
        return seen
    if not as_json:
        try:
            configs = ConfigReader(seen.run.location, seen.run.run, settings)
            for line in [*output_lines(seen.run, configs.output, only_last=True), *closing_lines(seen)]:
                click.echo(line)
        except BrokenPipeError:  # the run has ended all the same, and its code says how
            silence()
    tell_infeasible(seen)
    return exit_code(seen.run)


def parting_line(run: str, *, own: bool, others: Sequence[str]) -> str:
    """What becomes of a run whose `flowctl run` leaves it; `others` are the workers that can take it from then on."""
    if not others:
        head = "stopped" if own else "detached; no worker is up that could take it"
        return f"{head}; go on with: flowctl run --attach {run}"
    named = f"worker{'' if len(others) == 1 else 's'} {', '.join(others[:3])}{', …' if len(others) > 3 else ''}"
    head = "stopped here" if own else "detached"
    return f"{head}; the run goes on on {named}; end it: flowctl cancel {run}"


def _parting(local: LocalRun) -> str:
    with contextlib.suppress(FlowctlError):
        return parting_line(local.run, own=local.own, others=local.others())
    return f"{'stopped' if local.own else 'detached'}; no contact with the server; look on: flowctl watch {local.run}"


def _follow(
    run: str, local: LocalRun, *, broker: Broker, settings: Settings, as_json: bool, after: str | None
) -> Snapshot | int:
    """The last look at the run, or an exit code after Ctrl-C and when nobody reads on.

    The worker is then stopped by leaving; a (second) Ctrl-C kills it.
    """
    try:
        with reading(broker):
            location = _location(broker, run)
        configs = ConfigReader(location, run, settings)
        return follow(broker, run, configs.of_quietly, settings=settings, as_json=as_json, after=after, each=local.look)
    except (KeyboardInterrupt, ReaderGone) as left:
        is_pipe = isinstance(left, ReaderGone)
        if is_pipe:
            click.echo("flowctl: nobody reads on (broken pipe)", err=True)
        if local.own:
            begin = "" if is_pipe else "\n"
            again = "Ctrl-C kills" if is_pipe else "Ctrl-C again kills"
            click.echo(f"{begin}stopping the worker, its trials keep their checkpoints; {again}", err=True)
        return ReaderGone.exit_code if is_pipe else INTERRUPTED


def _location(broker: Broker, run: str) -> str:
    from flowctl.cli.target import find_run

    return find_run(broker.client, run).location


def closing_lines(snap: Snapshot) -> list[str]:
    """The commands that go on from here: results, and the log of what failed the run, else of the best trial."""
    run = snap.run
    lines = [f"results: flowctl results {run.run}"]
    if run.state == "failed":
        broken = {step.name for step in run.steps if step.state == "failed"}
        failed = [unit for unit in snap.failed if unit.step in broken] or list(snap.failed)
        for group in group_failures(run, failed)[:1]:
            lines = [f"failed: {group.lines()[0]}", *lines, f"log: flowctl logs {group.label}"]
    if len(lines) == 1:
        best = next(iter(snap.best.values()), None)
        last = run.steps[-1].name
        lines.append(f"log: flowctl logs {run.label(best.step, best.index) if best else run.label(last, 0)}")
    lines += [line for step in run.experiments if (line := unreported_line(snap, step)) is not None]
    if is_terminal():
        lines.insert(0, "")
    return lines
