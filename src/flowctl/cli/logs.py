"""`flowctl logs`: what a trial wrote to stdout and stderr, from storage, so from any machine."""

from __future__ import annotations

import sys
import time

import click

from flowctl.broker.cause import Cause
from flowctl.broker.reading import reading
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker, revive
from flowctl.broker.view import AttemptView, StepView, UnitView, load_attempts, load_units
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.dsl.errors import UnreachableError
from flowctl.render.strict_json import dumps
from flowctl.storage.host_log import bundles_with_log, read_host_log
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.folder import open_folder

POLL_S = 0.5


@click.command("logs", short_help="Print what a trial wrote.")
@click.argument("target", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until the trial has ended, also through later attempts.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="That attempt instead of the newest.")
@click.option("--bundle", type=click.IntRange(min=1), metavar="N", help="What its code on that bundle printed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str | None, follow: bool, attempt: int | None, bundle: int | None, as_json: bool) -> None:
    """Print what a trial wrote, as it wrote it. Read from storage, so it works from any machine that sees it.

    TARGET is RUN/7 or RUN/step/7; 7 is a trial of the newest run. With --bundle, what the newest code that the trial
    started on that bundle printed.

    Example: flowctl logs digits/7 --follow
    """
    if follow and bundle is not None:
        raise click.UsageError("--bundle shows a log as it stands; leave out --follow")
    if follow and as_json:
        raise click.UsageError("--json shows a log as it stands; leave out --follow")
    with opened() as (broker, settings):
        with reading(broker):
            run, step, index = targets.find_trial(broker.client, target)
            unit = load_units(broker.client, step, [index])[0]
        reader = TrialReader(open_folder(run.location, run.run, settings), step.name, index)
        label = run.label(step.name, index)
        if attempt is not None and attempt > unit.attempts:
            were = "was 1 attempt" if unit.attempts == 1 else f"were {unit.attempts} attempts"
            cure = f"see them: flowctl status {label}"
            raise targets.UnknownTarget(f"there is no attempt {attempt}: there {were}", place=label, cure=cure)
        if bundle is not None:
            _show_bundle(reader, unit, label, bundle, attempt, as_json=as_json)
            return
        if follow:
            _follow(broker, step, unit, reader, attempt, settings=settings)
            return
        with reading(broker):
            cause = _cause(load_attempts(broker.client, unit), unit, attempt)
        data = reader.log(attempt)
        bundles = bundles_with_log(reader, attempt)
        if as_json:
            text = data.decode(errors="replace")
            body = {"run": run.run, "trial": label, "attempt": attempt or unit.attempts, "attempts": unit.attempts}
            body["bundles"] = bundles
            cause_body = cause.to_json() if cause is not None else None
            click.echo(dumps("log", {**body, "state": unit.state, "text": text, "cause": cause_body}))
            return
        if attempt is None and unit.attempts > 1:
            shown = f"attempt {unit.attempts} of {unit.attempts}"
            click.echo(f"flowctl: {shown}; flowctl logs {label} --attempt 1 shows the first", err=True)
        _write(data)
        if bundles:
            which = f"bundle {bundles[0]}" if len(bundles) == 1 else f"bundles {', '.join(map(str, bundles))}"
            click.echo(f"flowctl: {which} printed too: flowctl logs {label} --bundle {bundles[0]}", err=True)
        if not data:
            which = f"attempt {attempt} of " if attempt else ""
            yet = "" if unit.ended else " yet"
            why = f"; {cause.headline()}{f' at {cause.place}' if cause.place else ''}" if cause is not None else ""
            click.echo(f"flowctl: {which}{label} has written nothing{yet} ({unit.state}){why}", err=True)


def _show_bundle(
    reader: TrialReader, unit: UnitView, label: str, bundle: int, attempt: int | None, *, as_json: bool
) -> None:
    """The log of the newest host on the bundle; says so where there were earlier ones."""
    found = read_host_log(reader, bundle, attempt)
    if as_json:
        body = {"run": unit.run, "trial": label, "attempt": found.attempt if found else attempt, "bundle": bundle}
        numbers = {"host": found.number if found else None, "hosts": found.of if found else 0}
        text = found.text.decode(errors="replace") if found else ""
        click.echo(dumps("log", {**body, **numbers, "attempts": unit.attempts, "state": unit.state, "text": text}))
        return
    if found is None:
        which = f"attempt {attempt} of " if attempt else ""
        others = [str(each) for each in bundles_with_log(reader, attempt)]
        told = f"; on {', '.join(others)} something was" if others else ""
        click.echo(f"flowctl: nothing was printed on bundle {bundle} of {which}{label}{told}", err=True)
        return
    if found.of > 1:
        told = f"{found.of} times code on bundle {bundle} of attempt {found.attempt} printed; this is the newest"
        click.echo(f"flowctl: {told}", err=True)
    _write(found.text)


def _cause(attempts: list[AttemptView], unit: UnitView, attempt: int | None) -> Cause | None:
    """Why the attempt, by default the newest, ended badly."""
    if attempt is None and unit.cause is not None:
        return unit.cause
    found = [each for each in attempts if attempt in (None, each.attempt)]
    return found[-1].cause if found else None


def _follow(
    broker: Broker, step: StepView, unit: UnitView, reader: TrialReader, attempt: int | None, *, settings: Settings
) -> None:
    """Print new pieces until the trial (or the attempt asked for) has ended and everything was printed."""
    shown, position = attempt or unit.attempts, 0
    while True:
        is_last = unit.ended or (attempt is not None and unit.attempts > attempt)
        piece = reader.log(shown or None, start=position)
        position += len(piece)
        _write(piece)
        if attempt is None and unit.attempts > shown:
            if shown:
                click.echo(f"flowctl: attempt {unit.attempts}", err=True)
            shown, position = unit.attempts, 0
            continue
        if is_last:
            return
        time.sleep(POLL_S)
        unit = _look(broker, step, unit, settings)


def _look(broker: Broker, step: StepView, before: UnitView, settings: Settings) -> UnitView:
    try:
        with reading(broker):
            broker.tick()
            return load_units(broker.client, step, [before.index])[0]
    except UnreachableError:
        revive(settings)
        return before


def _write(data: bytes) -> None:
    """Raw, so that odd bytes pass as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
