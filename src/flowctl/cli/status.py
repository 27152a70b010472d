"""`flowctl status`: a run, or one trial with all its attempts."""

from __future__ import annotations

import sys

import click

from flowctl.broker.host_view import load_bundles
from flowctl.broker.reading import reading
from flowctl.broker.reasons import unit_reason, with_lacks
from flowctl.broker.snapshot import take_snapshot
from flowctl.broker.store import Broker
from flowctl.broker.view import load_attempts, load_units, now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.cli import target as targets
from flowctl.cli.resources import show_resources
from flowctl.cli.server import opened
from flowctl.render.status_json import status_body, trial_body
from flowctl.render.status_text import run_text, trial_text
from flowctl.render.strict_json import dumps
from flowctl.workers.runs.configs import ConfigReader
from flowctl.workers.trial_process import find_process


@click.command("status", short_help="Show a run, or one trial with all its attempts.")
@click.argument("target", required=False)
@click.option("--resources", "only_resources", is_flag=True, help="The tokens instead, as of 'flowctl resources'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str | None, only_resources: bool, as_json: bool) -> int:
    """Show a run: steps, counts, best, what runs, what waits and why, what failed. Or one trial with every attempt.

    TARGET is RUN, RUN/7 or RUN/step/7; without RUN, the newest.

    Example: flowctl status digits/7
    """
    if only_resources and target is not None:
        raise click.UsageError("--resources shows the tokens of all runs; leave out TARGET")
    with opened() as (broker, settings):
        if only_resources:
            return show_resources(broker, as_json=as_json)
        with reading(broker):
            found = targets.find_target(broker.client, target)
        configs = ConfigReader(found.run.location, found.run.run, settings)
        if found.step is not None and found.index is not None:
            click.echo(_trial(broker, found, configs, as_json))
            return 0
        with reading(broker):
            snap = take_snapshot(broker.client, found.run.run, gone_ms=broker.calls.times.boot_gone_ms)
    if snap is None:
        raise targets.UnknownTarget(f"there is no run '{found.run.run}' any more")
    if as_json:
        click.echo(dumps("run", status_body(snap, configs.of_quietly)))
    else:
        click.echo(run_text(snap, configs.of_quietly, configs.output))
    if configs.problem:
        print(f"flowctl: configurations cannot be read: {configs.problem}", file=sys.stderr)
    return 0


def _trial(broker: Broker, found: targets.Target, configs: ConfigReader, as_json: bool) -> str:
    assert found.step is not None and found.index is not None
    with reading(broker):
        at_ms = now_ms(broker.client)
        unit = load_units(broker.client, found.step, [found.index])[0]
        attempts = load_attempts(broker.client, unit)
        workers = load_workers(broker.client)
        unit = with_lacks(broker.client, found.run, [unit], workers, at_ms=at_ms)[0]
        bundles = load_bundles(broker.client, unit.unit) if unit.is_active else []
        reason = None
        if unit.state == "pending":
            gone_ms = broker.calls.times.boot_gone_ms
            reason = unit_reason(broker.client, found.run, found.step, unit, workers, at_ms=at_ms, gone_ms=gone_ms)
    config = configs.of_quietly(found.step.name, found.index)
    output = configs.output(found.step.name) if not found.step.is_experiment and unit.state == "completed" else None
    if isinstance(output, dict) and "$manifest" in output:
        output = "a checkpoint"
    began = configs.began(found.step.name, found.index) if attempts else {}
    process = find_process(unit, workers) if unit.state == "running" else None
    if as_json:
        return dumps("trial", trial_body(found.run, unit, attempts, config, reason, output, began, process, bundles))
    return trial_text(
        found.run,
        unit,
        attempts,
        config,
        at_ms=at_ms,
        reason=reason,
        output=output,
        began=began,
        bundles=bundles,
        process=str(process) if process is not None else None,
    )
