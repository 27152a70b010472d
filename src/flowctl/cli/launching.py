"""From a script on the command line to a submitted run; what `run` and `submit` share."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace

from flowctl.broker.reading import calling, reading
from flowctl.broker.reason import Reason, who
from flowctl.broker.reasons import pending_reasons
from flowctl.broker.settings import Settings
from flowctl.broker.shapes import load_needs
from flowctl.broker.store import Broker
from flowctl.broker.view import RunView, load_run, now_ms
from flowctl.broker.worker_view import WorkerView, load_workers
from flowctl.cli.script_options import assignments
from flowctl.dsl.compile import Compiled
from flowctl.dsl.errors import RefusedError
from flowctl.script import LoadedScript, compile_script, load_script


@dataclass(frozen=True)
class Prepared:
    """A script that is loaded and compiled; nothing is submitted yet."""

    script: LoadedScript
    compiled: Compiled


@dataclass(frozen=True)
class Submission:
    """How a run is submitted: its name, where it is stored, and its order among others."""

    name: str | None = None
    storage: str | None = None
    priority: int = 0
    weight: float = 1.0


def prepare(
    script: str, *, sets: tuple[str, ...], parameters: tuple[str, ...], pending_timeout: float | None = None
) -> Prepared:
    """Load and compile; everything that can be known to be wrong is an error here. `pending_timeout` is that of every
    step, instead of its own.
    """
    overrides, given = assignments(sets, "--set"), assignments(parameters, "-p")
    loaded = load_script(script)
    compiled = compile_script(loaded, overrides=overrides, parameters=given)
    if pending_timeout is not None:
        steps = tuple(replace(step, pending_timeout_s=pending_timeout) for step in compiled.plan.steps)
        compiled = replace(compiled, plan=replace(compiled.plan, steps=steps))
    return Prepared(loaded, compiled)


def submit_prepared(prepared: Prepared, submission: Submission, *, broker: Broker, settings: Settings) -> str:
    """Submit; returns the run's id. What a function of the script prints goes to stderr."""
    from flowctl.workers.runs.submit import submit

    where = prepared.compiled.storage_path if submission.storage is None else submission.storage
    with calling(broker), contextlib.redirect_stdout(sys.stderr):
        return submit(
            prepared.compiled,
            name=submission.name,
            storage=where,
            settings=settings,
            main_module=prepared.script.module,
            priority=submission.priority,
            weight=submission.weight,
        )


def look(broker: Broker, run: str) -> tuple[RunView, list[Reason]]:
    """A run just submitted, and why its trials wait."""
    with reading(broker):
        found = load_run(broker.client, run)
        if found is None:
            raise RefusedError(f"the run '{run}' was removed at once", cure="submit again")
        at_ms = now_ms(broker.client)
        return found, pending_reasons(broker.client, found, load_workers(broker.client), at_ms=at_ms)


def notes(broker: Broker, run: RunView) -> list[str]:
    """What a person may have forgotten, one line each: GPUs that nothing of the run asks for."""
    with reading(broker):
        at_ms = now_ms(broker.client)
        workers = [each for each in load_workers(broker.client) if each.is_live(at_ms) and _offers_gpu(each)]
        needs = load_needs(broker.client, run.run, [step.name for step in run.steps])
    if not workers or not needs or any(_is_gpu(name) for need in needs for name in need):
        return []
    named = ", ".join(each.worker for each in workers[:3]) + (", …" if len(workers) > 3 else "")
    return [f'note: no trial asks for a GPU, so none sees one; {named} offers some: resources={{"gpu": 1}}']


def _offers_gpu(worker: WorkerView) -> bool:
    return any(units > 0 for name, units in worker.offer.items() if _is_gpu(name))


def _is_gpu(name: str) -> bool:
    """`gpu` in a request, `gpu:ID` in an offer."""
    return name.partition(":")[0] == "gpu"


def problems(reasons: list[Reason], run: RunView) -> list[str]:
    """What a person must do before anything runs, one line each."""
    told = ("no_worker", "lost_contact", "not_accepting", "quarantined", "shared")
    lines = []
    for reason in reasons:
        if reason.kind == "no_worker":
            lines.append("no worker is up; start one: flowctl worker")
        elif reason.is_impossible or reason.kind in told:
            cure = f"; {reason.cure}" if reason.cure else ""
            now = " now" if reason.kind == "shared" else ""
            lines.append(f"{who(reason, run)} cannot run{now}: {reason.text}{cure}")
    return list(dict.fromkeys(lines))


def require_linux(command: str) -> None:
    """Trials run on Linux only; the client works elsewhere too."""
    if sys.platform != "linux":
        cure = "submit from here, and start workers on Linux"
        raise RefusedError(f"'flowctl {command}' runs trials, which needs Linux (this is {sys.platform})", cure=cure)
