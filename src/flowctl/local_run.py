"""A run on this machine: the local worker if one is up, else a worker of its own that takes this run only."""

from __future__ import annotations

import platform
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowctl.broker.reading import reading
from flowctl.broker.reason import Reason, who
from flowctl.broker.reasons import able_workers
from flowctl.broker.settings import Settings
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.store import Broker
from flowctl.broker.view import load_run, now_ms
from flowctl.broker.worker_view import WorkerView, load_workers
from flowctl.dsl.errors import FlowctlError, RunFailed
from flowctl.workers.local import LocalWorker
from flowctl.workers.runs.steer import cancel

STOP_GRACE_S = 10.0
TRACE = (" ", "\t", "Traceback (most recent", "The above exception was", "During handling of the above")
"""How the lines of a traceback begin that say nothing by themselves."""


class LocalWorkerDied(FlowctlError):
    """The worker that `run` had started ended although its run had not."""

    exit_code = 1


class LocalRun:
    """While it is entered, a worker on this machine takes the run. `own` is False if one was up already."""

    def __init__(self, run: str, *, broker: Broker, settings: Settings, resources: str | None = None) -> None:
        self.run = run
        self._broker = broker
        self._settings = settings
        self._resources = resources
        self._worker: LocalWorker | None = None

    @property
    def own(self) -> bool:
        """Whether a worker was started for this run."""
        return self._worker is not None

    def others(self) -> list[str]:
        """The workers, here and elsewhere, that can take trials of the run without the one that was started here."""
        with reading(self._broker):
            at_ms = now_ms(self._broker.client)
            found = load_run(self._broker.client, self.run)
            workers = load_workers(self._broker.client)
            if found is None:
                return []
            fit = [each for each in workers if each.is_live(at_ms) and each.only_run in (None, self.run)]
            able = able_workers(self._broker.client, found, fit, at_ms=at_ms)
        own = (socket.gethostname(), self._worker.pid) if self._worker is not None else None
        return [each.worker for each in able if each.python == found.python and (each.host, each.pid) != own]

    def __enter__(self) -> LocalRun:
        if self._has_ended():
            return self
        here = self._find()
        if self._resources and here is not None:
            text = "may take this run's trials too: --resources is what the worker offers that this run starts"
            print(f"note: worker {here.worker} is up already and {text}", file=sys.stderr)
        if self._resources or here is None:
            self._worker = LocalWorker.start(self._settings, run=self.run, resources=self._resources)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def look(self, snap: Snapshot) -> Snapshot:
        """A look at the run, with what is known here added. Raises LocalWorkerDied if the worker has ended by itself.

        A request that nothing here can meet cancels the run and raises RunFailed: no other machine is expected.
        """
        self._check_worker()
        if snap.run.ended:
            return snap
        mine = [each for each in snap.workers if self._is_mine(each) and each.is_live(snap.at_ms)]
        if not mine:
            return replace(snap, reasons=tuple(_starting(reason) for reason in snap.reasons))
        snap = replace(snap, reasons=tuple(_here(reason, mine) for reason in snap.reasons))
        impossible = [reason for reason in snap.reasons if reason.is_impossible]
        if not impossible or snap.run.wanted == "cancel":
            return snap
        lines = [f"{who(each, snap.run)} cannot run here: {each.text}" for each in impossible]
        with reading(self._broker):
            cancel(self._broker, self.run, reason="; ".join(lines))
        cure = impossible[0].cure or "the run was cancelled"
        raise RunFailed("; ".join(lines), run=self.run, causes=lines, place=self.run, cure=cure)

    def _is_mine(self, worker: WorkerView) -> bool:
        """Whether it is a worker that is meant to take the run."""
        return worker.only_run in ((self.run,) if self.own else (None, self.run))

    def _check_worker(self) -> None:
        if self._worker is not None and self._worker.exit_code is not None:
            raise LocalWorkerDied(
                f"the worker of this run {_ending(self._worker.exit_code, self._worker.log)}",
                place=str(self._worker.log),
                cure=f"the run waits; go on with 'flowctl run --attach {self.run}'",
            )

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the worker that was started here, if any: its trials go back to pending with their checkpoints."""
        if self._worker is not None:
            self._worker.stop(grace_s)
            self._worker = None

    def dismiss(self) -> None:
        """The run has ended: a worker that took only this run is ended at once."""
        if self._worker is not None:
            with reading(self._broker):
                self._worker.dismiss(self._broker)
            self._worker = None

    def kill(self) -> None:
        """End it at once, with everything that it runs."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _has_ended(self) -> bool:
        with reading(self._broker):
            found = load_run(self._broker.client, self.run)
        return found is not None and found.ended

    def _find(self) -> WorkerView | None:
        """A worker of this machine that can take the run now."""
        with reading(self._broker):
            at_ms = now_ms(self._broker.client)
            workers = load_workers(self._broker.client)
        minor = ".".join(platform.python_version_tuple()[:2])
        host = socket.gethostname()
        mine = (each for each in workers if each.host == host and each.python == minor and each.is_live(at_ms))
        return next((each for each in mine if each.only_run in (None, self.run)), None)


def _starting(reason: Reason) -> Reason:
    """What is true while the worker here starts: nobody has to do anything about it."""
    if reason.kind in ("waits_for_steps", "run_cancelled", "delayed"):
        return reason
    return Reason("starting", "the worker here starts", reason.count, reason.step)


def _here(reason: Reason, mine: Sequence[WorkerView]) -> Reason:
    """A reason as it reads on the machine of these workers."""
    if reason.kind != "shared":
        return reason
    text = reason.text
    for worker in mine:
        if worker.host == socket.gethostname():
            text = text.replace(f"of {worker.worker}'s machine", "of this machine")
    return replace(reason, text=text)


def _ending(code: int, log: Path) -> str:
    """How the worker ended: the signal, else its exit code and what it said last."""
    if code < 0:
        names = {each.value: f" ({each.name})" for each in signal.Signals}
        return f"was killed by signal {-code}{names.get(-code, '')}"
    return f"ended by itself (exit code {code}): {_last_words(log)}"


def _last_words(log: Path) -> str:
    """The last line of a log that says something: no frame of a traceback, no mark around one."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    told = (line for line in reversed(lines) if any(c.isalnum() for c in line) and not line.startswith(TRACE))
    return next(told, "it wrote nothing").strip()
