"""flowctl from Python: what `submit`, `run` and `attach` do, and the handle of a run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flowctl.broker.reading import reading
from flowctl.broker.reasons import with_lacks
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot, take_snapshot
from flowctl.broker.store import Broker, revive
from flowctl.broker.view import RunView, failed_units, load_run, now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.compile import compile_target
from flowctl.dsl.declaration import MAX_PRIORITY
from flowctl.dsl.errors import DeclarationError, NotYetError, RefusedError, RunFailed, UnreachableError
from flowctl.dsl.names import run_id
from flowctl.dsl.policy import integer, number
from flowctl.workers.runs.folder import open_folder
from flowctl.workers.runs.load_results import load_results
from flowctl.workers.runs.results import Results

MAX_WEIGHT = 1000.0
POLL_S = 0.5


class WaitTimeout(RefusedError):
    """The run had not ended when the time given to `wait` was over; it goes on."""

    exit_code = 6


class RunHandle:
    """A submitted run. It holds no connection that must be closed, and losing it changes nothing."""

    def __init__(self, run: str, *, broker: Broker, settings: Settings) -> None:
        self.run = run
        self._broker = broker
        self._settings = settings

    def __repr__(self) -> str:
        return f"<run {self.run}>"

    def status(self) -> RunView:
        """The run as it stands: `state`, `counts()`, `steps`. Raises RefusedError if it was removed."""
        with reading(self._broker):
            self._broker.tick()
            found = load_run(self._broker.client, self.run)
        if found is None:
            raise RefusedError(f"there is no run '{self.run}'", cure="'flowctl list' shows the runs")
        return found

    def results(self, step: str | None = None) -> Results:
        """The trials of the run's experiment as they stand; with several experiments, of the one named."""
        run = self.status()
        folder = open_folder(run.location, run.run, self._settings)
        with reading(self._broker):
            return load_results(self._broker.client, run, folder, step=step)

    def cancel(self) -> None:
        """Cancel the run; what runs is stopped and keeps its checkpoints. Changes nothing once it has ended."""
        from flowctl.workers.runs.steer import cancel

        with reading(self._broker):
            cancel(self._broker, self.run)

    def wait(self, timeout_s: float | None = None, raise_on_failure: bool = True) -> RunView:
        """Wait until the run has ended and return it; a server that is down for a while is waited for, and the
        embedded one started again if it died.

        Raises RunFailed with the causes if it failed or was cancelled, unless told not to; WaitTimeout (the run goes
        on) when `timeout_s` is over.
        """
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        while True:
            found = self._look()
            if found is not None and found.ended:
                break
            left_s = deadline - time.monotonic() if deadline is not None else POLL_S
            if left_s <= 0:
                raise WaitTimeout(f"the run '{self.run}' has not ended after {timeout_s:g} s", cure="it goes on")
            time.sleep(min(POLL_S, left_s))
        if raise_on_failure and found.state != "completed":
            raise self._failure(found)
        return found

    def wait_looking(self, look: Callable[[Snapshot], Snapshot]) -> None:
        """Wait until the run has ended; `look` sees every snapshot and may raise."""
        while True:
            snap = None
            try:
                with reading(self._broker):
                    self._broker.tick()
                    snap = take_snapshot(self._broker.client, self.run)
            except UnreachableError:
                revive(self._settings)
            if snap is not None and look(snap).run.ended:
                return
            time.sleep(POLL_S)

    def _look(self) -> RunView | None:
        try:
            return self.status()
        except UnreachableError:
            revive(self._settings)
            return None

    def _failure(self, run: RunView) -> RunFailed:
        client = self._broker.client
        with reading(self._broker):
            failed = failed_units(client, run.run)
            failed = with_lacks(client, run, failed, load_workers(client), at_ms=now_ms(client))
        causes = [unit.cause for unit in failed if unit.cause is not None]
        texts = Counter(cause.headline() + (f" at {cause.place}" if cause.place else "") for cause in causes)
        top = texts.most_common()
        types = [cause.type for cause in causes if top and top[0][0].startswith(cause.headline())]
        first = f": {top[0][0]}" if top else f": {run.reason}" if run.reason else ""
        return RunFailed(
            f"the run {run.state}{first}",
            run=run.run,
            causes=[text for text, _ in top],
            cause_type=types[0] if types else None,
            place=run.run,
            cure=f"see 'flowctl status {run.run}'",
        )


class Launcher:
    """What `experiment.submit()` and `experiment.run()` stand on, outside of trials."""

    def submit(
        self,
        target: Any,
        *,
        name: str | None = None,
        storage: str | None = None,
        parameters: Mapping[str, str] | None = None,
        priority: int = 0,
        weight: float = 1.0,
    ) -> RunHandle:
        """Compile and submit; returns at once with the handle. `priority` is added to that of each step (higher goes
        first), `weight` is the run's share beside others of equal priority.
        """
        settings = Settings.from_env()
        broker = Broker.connect(settings)
        run = submit_target(
            target,
            settings=settings,
            name=name,
            storage=storage,
            parameters=parameters or {},
            priority=priority,
            weight=weight,
        )
        return RunHandle(run, broker=broker, settings=settings)

    def submit_or_resume(self, target: Any, *, name: str, **options: Any) -> RunHandle:
        """Not yet: coming back to a run is built with resume."""
        raise NotYetError(
            "submit_or_resume is not yet supported", cure=f"use submit(name={name!r}) or attach({name!r})"
        )

    def run(self, target: Any, *, name: str | None = None, raise_on_failure: bool = True, **options: Any) -> Results:
        """Submit, work on this machine until the run has ended, and return its results."""
        from flowctl.local_run import LocalRun

        handle = self.submit(target, name=name, **options)
        with LocalRun(handle.run, broker=handle._broker, settings=handle._settings) as local:
            handle.wait_looking(local.look)
            local.dismiss()
        if raise_on_failure:
            handle.wait()
        return handle.results()


def attach(name: str) -> RunHandle:
    """The handle of a run that was submitted before, here or elsewhere. Raises RefusedError if there is none."""
    settings = Settings.from_env()
    handle = RunHandle(run_id(name), broker=Broker.connect(settings), settings=settings)
    handle.status()
    return handle


def submit_target(
    target: Any,
    *,
    settings: Settings,
    name: str | None,
    storage: str | None = None,
    overrides: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    priority: int = 0,
    weight: float = 1.0,
) -> str:
    """Compile and submit a target whose script is imported; returns the run's id."""
    from flowctl.workers.runs.submit import submit

    integer(priority, "priority", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY, cure="higher goes first")
    if not number(weight, "weight", minimum=0, maximum=MAX_WEIGHT):
        raise DeclarationError("is 0, must be above 0", place="weight", cure="1 is the share of any other run")
    compiled = compile_target(target, overrides=overrides or {}, parameters=parameters or {})
    module = sys.modules.get(target.function.__module__)
    where = compiled.storage_path if storage is None else storage
    return submit(
        compiled, name=name, storage=where, settings=settings, main_module=module, priority=priority, weight=weight
    )
