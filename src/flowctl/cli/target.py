"""What a person means by RUN, RUN/7 or RUN/step/7, looked up on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowctl.broker.view import RunView, StepView, load_run, load_runs, newest_run
from flowctl.dsl.errors import FlowctlError
from flowctl.dsl.names import did_you_mean, nearest, run_id

HELP = "RUN, RUN/7 or RUN/step/7; 7 is a trial of the newest run, nothing is the newest run."


class UnknownTarget(FlowctlError):
    """No such run, step or trial."""

    exit_code = 2


@dataclass(frozen=True)
class Target:
    """A run, and the step and the trial in it if the person named one."""

    run: RunView
    step: StepView | None = None
    index: int | None = None

    @property
    def label(self) -> str:
        if self.step is None or self.index is None:
            return self.run.run
        return self.run.label(self.step.name, self.index)


def find_target(client: Any, text: str | None) -> Target:
    """The run, or the trial, that `text` names; without text the newest run. A run's own name goes first."""
    if text is None:
        return Target(_newest(client))
    if not text:
        raise UnknownTarget(
            "the name of a run is empty", cure="'flowctl list' shows the runs; no name means the newest"
        )
    whole = load_run(client, run_id(text))
    if whole is not None:
        return Target(whole)
    head, _, last = text.rpartition("/")
    if last.isdigit():
        return _trial(client, head, int(last), text)
    run = load_run(client, run_id(head)) if head else None
    if run is not None:
        step = _step(run, last)
        return Target(run, step, 0 if not step.is_experiment else None)
    raise _unknown_run(client, text)


def find_run(client: Any, text: str | None) -> RunView:
    """The run that `text` names; refuses a trial."""
    target = find_target(client, text)
    if target.step is not None:
        raise UnknownTarget(f"'{text}' names a part of a run", cure=f"name the run: {target.run.run}")
    return target.run


def find_trial(client: Any, text: str | None) -> tuple[RunView, StepView, int]:
    """The trial that `text` names; a run that has only one unit means that one."""
    target = find_target(client, text)
    if target.step is not None and target.index is not None:
        return target.run, target.step, target.index
    steps = [target.step] if target.step is not None else list(target.run.steps)
    if len(steps) == 1 and steps[0].total == 1:
        return target.run, steps[0], 0
    raise UnknownTarget(f"'{target.run.run}' has several trials", cure=f"name one, such as {_example(target.run)}")


def _trial(client: Any, head: str, index: int, text: str) -> Target:
    if not head:
        return _at(_newest(client), None, index, text)
    run = load_run(client, run_id(head))
    if run is not None:
        return _at(run, None, index, text)
    front, _, name = head.rpartition("/")
    run = load_run(client, run_id(front)) if front else None
    if run is None:
        raise _unknown_run(client, front or head)
    return _at(run, _step(run, name), index, text)


def _at(run: RunView, step: StepView | None, index: int, text: str) -> Target:
    if step is None:
        names = [each.name for each in run.experiments]
        if len(names) != 1:
            known = ", ".join(each.name for each in run.steps)
            raise UnknownTarget(f"'{text}' needs a step: {run.run} has {known}", cure=f"write {_example(run)}")
        step = run.experiments[0]
    if index >= step.total:
        last = f"{run.label(step.name, 0)} to {run.label(step.name, step.total - 1)}"
        raise UnknownTarget(f"there is no trial '{text}'", cure=f"{step.name} has {last}")
    return Target(run, step, index)


def _step(run: RunView, name: str) -> StepView:
    step = run.step(name)
    if step is None:
        cure = did_you_mean(name, [each.name for each in run.steps], kind="steps")
        raise UnknownTarget(f"{run.run} has no step '{name}'", cure=cure)
    return step


def _newest(client: Any) -> RunView:
    newest = newest_run(client)
    run = load_run(client, newest) if newest else None
    if run is None:
        raise UnknownTarget("there is no run yet", cure="start one: flowctl run SCRIPT")
    return run


def _unknown_run(client: Any, text: str) -> UnknownTarget:
    names = [run.run for run in load_runs(client)]
    is_short = len(names) < 8 or nearest(text, names) is not None
    cure = did_you_mean(text, names, kind="runs") if is_short else "'flowctl list' shows the runs"
    return UnknownTarget(f"there is no run '{text}'", cure=cure if names else "start one: flowctl run SCRIPT")


def _example(run: RunView) -> str:
    steps = run.experiments or run.steps
    return run.label(steps[0].name, 0) if steps else f"{run.run}/0"
