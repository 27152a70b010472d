"""From a script on the command line to a submitted run; what `run` and `submit` share."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from flowctl.broker.reading import calling, reading
from flowctl.broker.reasons import Reason, pending_reasons, who
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.broker.view import RunView, load_run, now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.cli.script_options import assignments
from flowctl.dsl.compile import Compiled
from flowctl.dsl.errors import RefusedError
from flowctl.script import LoadedScript, compile_script, load_script


@dataclass(frozen=True)
class Prepared:
    """A script that is loaded and compiled; nothing is submitted yet."""

    script: LoadedScript
    compiled: Compiled


def prepare(script: str, *, sets: tuple[str, ...], parameters: tuple[str, ...]) -> Prepared:
    """Load and compile; everything that can be known to be wrong is an error here."""
    overrides, given = assignments(sets, "--set"), assignments(parameters, "-p")
    loaded = load_script(script)
    return Prepared(loaded, compile_script(loaded, overrides=overrides, parameters=given))


def submit_prepared(
    prepared: Prepared, *, broker: Broker, name: str | None, storage: str | None, settings: Settings
) -> str:
    """Submit; returns the run's id."""
    from flowctl.workers.runs.submit import submit

    where = prepared.compiled.storage_path if storage is None else storage
    module = prepared.script.module
    with calling(broker):
        return submit(prepared.compiled, name=name, storage=where, settings=settings, main_module=module)


def look(broker: Broker, run: str) -> tuple[RunView, list[Reason]]:
    """A run just submitted, and why its trials wait."""
    with reading(broker):
        found = load_run(broker.client, run)
        if found is None:
            raise RefusedError(f"the run '{run}' was removed at once", cure="submit again")
        at_ms = now_ms(broker.client)
        return found, pending_reasons(broker.client, found, load_workers(broker.client), at_ms=at_ms)


def problems(reasons: list[Reason], run: RunView) -> list[str]:
    """What a person must do before anything runs, one line each."""
    told = ("no_worker", "lost_contact", "not_accepting", "impossible", "python", "key")
    lines = []
    for reason in reasons:
        if reason.kind == "no_worker":
            lines.append("no worker is up; start one: flowctl worker")
        elif reason.kind in told:
            cure = f"; {reason.cure}" if reason.cure else ""
            lines.append(f"{who(reason, run)} cannot run: {reason.text}{cure}")
    return list(dict.fromkeys(lines))


def require_linux(command: str) -> None:
    """Trials run on Linux only; the client works elsewhere too."""
    if sys.platform != "linux":
        cure = "submit from here, and start workers on Linux"
        raise RefusedError(f"'flowctl {command}' runs trials, which needs Linux (this is {sys.platform})", cure=cure)
