"""Following a run until it ends: a live view on a terminal, one line per change in a pipe, JSON lines on request.

Only state is read, at most twice a second. A server that is away for a while is waited for, the embedded one is
started again if it died: an outage is no end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import click

from flowctl.broker.event_view import Event, last_event, read_events
from flowctl.broker.reading import reading
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot, take_snapshot
from flowctl.broker.store import Broker, revive
from flowctl.broker.view import UnitView, load_named
from flowctl.cli.target import UnknownTarget
from flowctl.dsl.errors import FlowctlError, UnreachableError
from flowctl.render.clock import clock
from flowctl.render.lines import event_body, event_line
from flowctl.render.status_json import best_bodies, run_body
from flowctl.render.strict_json import dumps
from flowctl.render.summary import ConfigOf, best_lines, contact_lines, header, notice_lines, reason_line

POLL_S = 0.5
SILENT = (
    "busy",
    "device",
    "gang",
    "pool",
    "limit",
    "reserved",
    "avoided",
    "placing",
    "delayed",
    "waits_for_steps",
    "run_cancelled",
    "starting",
)
"""Reasons that come and go by themselves; in a pipe they would be noise."""


Look: TypeAlias = Callable[[Snapshot], Snapshot]


class ReaderGone(FlowctlError):
    """What reads stdout has closed it, as `head` does; the code is that of a program that SIGPIPE ends."""

    exit_code = 141


def keep(snap: Snapshot) -> Snapshot:
    """Shows a look as it is."""
    return snap


def follow(
    broker: Broker,
    run: str,
    config_of: ConfigOf,
    *,
    settings: Settings,
    as_json: bool,
    after: str | None = None,
    each: Look = keep,
) -> Snapshot:
    """Shows a run until it has ended; returns the last look. `each` sees every look and may change it, or raise.

    `after` is the event to begin after (in a pipe), by default the newest.
    """
    if not as_json and is_terminal():
        return _follow_live(broker, run, config_of, each, settings)
    try:
        return _Lines(broker, run, config_of, settings=settings, as_json=as_json, each=each).follow(after)
    except BrokenPipeError:
        silence()
        cure = f"look on: flowctl watch {run}; end it: flowctl cancel {run}"
        raise ReaderGone("nobody reads on (broken pipe); the run goes on", place=run, cure=cure) from None


def silence() -> None:
    """Let what is still printed to a pipe that nobody reads go nowhere; the interpreter flushes it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def is_terminal() -> bool:
    """Whether stdout can redraw."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _follow_live(broker: Broker, run: str, config_of: ConfigOf, each: Look, settings: Settings) -> Snapshot:
    from rich.console import Console

    from flowctl.render.live import LiveView

    snap = _look(broker, run)
    with LiveView(Console(), config_of) as view:
        while True:
            snap = each(snap)
            view.show(snap)
            if snap.run.ended:
                return snap
            time.sleep(POLL_S)
            try:
                snap = _look(broker, run)
            except UnreachableError as error:
                view.show(snap, note=_away_line(revive(settings) or error))


class _Lines:
    """One line per change. Events carry the changes; looks add what no event says: reasons and lost contact."""

    def __init__(
        self,
        broker: Broker,
        run: str,
        config_of: ConfigOf,
        *,
        settings: Settings,
        as_json: bool,
        each: Look,
    ) -> None:
        self._broker = broker
        self._run = run
        self._config_of = config_of
        self._settings = settings
        self._as_json = as_json
        self._each = each
        self._told: set[str] = set()
        self._noticed: set[str] = set()
        """Notices are told once, whichever trial they name."""
        self._is_away = False

    def follow(self, after: str | None) -> Snapshot:
        if after is None:
            with reading(self._broker):
                after = last_event(self._broker.client, self._run)
        snap = _look(self._broker, self._run)
        if not self._as_json and not snap.run.ended:
            _out(header(snap))
        while True:
            snap = self._each(snap)
            self._tell_reasons(snap)
            try:
                after = self._tell_events(snap, after, block_ms=None if snap.run.ended else int(POLL_S * 1000))
                if snap.run.ended:
                    break
                snap = _look(self._broker, self._run)
                self._is_away = False
            except UnreachableError as error:
                self._tell_away(revive(self._settings) or error)
                time.sleep(POLL_S)
        self._tell_end(snap)
        return snap

    def _tell_events(self, snap: Snapshot, after: str, *, block_ms: int | None) -> str:
        """Print the events after `after`; returns the last one's id. With `block_ms`, wait at most so long for one."""
        while True:
            with reading(self._broker):
                events = read_events(self._broker.client, self._run, after, block_ms=block_ms)
                units = self._units(events)
            for event in events:
                self._tell_event(snap, event, units)
            if not events or block_ms is not None:
                return events[-1].id if events else after
            after = events[-1].id

    def _units(self, events: list[Event]) -> dict[tuple[str, int], UnitView]:
        names = [
            (self._run, event.step, event.index)
            for event in events
            if event.step is not None and event.index is not None and event.to in ("completed", "failed")
        ]
        return {(unit.step, unit.index): unit for unit in load_named(self._broker.client, list(dict.fromkeys(names)))}

    def _tell_event(self, snap: Snapshot, event: Event, units: dict[tuple[str, int], UnitView]) -> None:
        unit = units.get((event.step or "", event.index if event.index is not None else -1))
        names = {worker.boot: worker.worker for worker in snap.workers}
        worker = (
            event.fields.get("worker") or names.get(event.fields.get("boot", "")) or (unit.worker if unit else None)
        )
        if self._as_json:
            _out(dumps("event", event_body(event, snap.run, unit=unit, worker=worker), indent=None))
            return
        line = event_line(event, snap.run, unit=unit, worker=worker)
        if line:
            _out(line)

    def _tell_reasons(self, snap: Snapshot) -> None:
        several = len(snap.run.steps) > 1
        told = [r for r in snap.reasons if r.is_impossible or r.kind not in SILENT]
        lines = [(f"{r.step}: {r.gist}", reason_line(r, several=several)) for r in told]
        lines += [(line, line) for line in contact_lines(snap)]
        noticed = {f"notice: {step}": line for step, line in notice_lines(snap).items()}
        lines += list(noticed.items())
        self._noticed |= noticed.keys()
        for key, line in lines:
            if key not in self._told:
                if self._as_json:
                    _out(dumps("notice", {"run": self._run, "at_ms": snap.at_ms, "text": line}, indent=None))
                else:
                    _out(f"{clock(snap.at_ms)}  {line}")
        self._told = {key for key, _ in lines} | self._noticed

    def _tell_away(self, error: FlowctlError) -> None:
        if not self._is_away:
            click.echo(f"flowctl: {_away_line(error)}", err=True)
        self._is_away = True

    def _tell_end(self, snap: Snapshot) -> None:
        if self._as_json:
            body = {**run_body(snap.run, at_ms=snap.at_ms), "best": best_bodies(snap, self._config_of)}
            _out(dumps("ended", body, indent=None))
            return
        _out(header(snap))
        for line in best_lines(snap, self._config_of):
            _out(line)


def _away_line(error: FlowctlError) -> str:
    return f"no contact with the server ({error.what}); trying again"


def _look(broker: Broker, run: str) -> Snapshot:
    with reading(broker):
        broker.tick()
        snap = take_snapshot(broker.client, run, gone_ms=broker.calls.times.boot_gone_ms)
    if snap is None:
        raise UnknownTarget(f"there is no run '{run}' any more")
    return snap


def _out(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
