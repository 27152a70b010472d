"""From a declared object to a plan and the code that it names; pure, apart from the seed that `seed="random"` draws."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.flow import Flow
from flowctl.dsl.jsonvalue import JSON, kind_of
from flowctl.dsl.leaf import Leaf
from flowctl.dsl.names import check_step_name
from flowctl.dsl.overrides import apply_overrides
from flowctl.dsl.place import at
from flowctl.dsl.plan import EXPERIMENT, MAX_TRIALS, Plan, Step, edges_of
from flowctl.dsl.request import ResourceFunction
from flowctl.dsl.sample import grid_points
from flowctl.dsl.trace import Call, check_arguments

TASK = "flowctl.run_unit"
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class StepCode:
    """The user's code of a step: its function, and the functions of its stop condition."""

    function: Callable[..., Any]
    stop: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True)
class Asking:
    """The resource function of a step, and the labels that its requests get. Only the submitting process calls it."""

    function: ResourceFunction
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A plan, and its code by the keys that the plan's steps name; `storage_path` is the declared one, if any.

    `asking` holds, by step, the functions that say what each of its trials asks for.
    """

    plan: Plan
    code: Mapping[str, StepCode] = field(default_factory=dict)
    storage_path: str | None = None
    asking: Mapping[str, Asking] = field(default_factory=dict)


def compile_target(
    target: object,
    *,
    overrides: Mapping[str, str] = _NOTHING,
    parameters: Mapping[str, Any] = _NOTHING,
    draw_seed: Callable[[], str] = lambda: secrets.token_hex(8),
) -> Compiled:
    """Compile an experiment, a stage or a flow.

    `overrides` are `[STEP.]keyword[.key]` → text, `parameters` a flow's name → text (or a value). Raises
    `DeclarationError` with place and cure; a user's flow function may raise anything.
    """
    recorded: dict[str, JSON] = {}
    if isinstance(target, Flow):
        calls, recorded = target.trace(parameters)
        name, flow = target.name, target.name
    elif isinstance(target, Leaf):
        if parameters:
            raise DeclarationError(
                f"the {target.kind} {target.step_name} has no parameters",
                place=target.place,
                cure="only a flow has; use --set for keywords",
            )
        calls, flow = [_alone(target)], None
        name = calls[0].name
    else:
        raise DeclarationError(f"a {kind_of(target)} cannot be run", cure="give an experiment, a stage or a flow")
    leaves = apply_overrides({call.name: call.leaf for call in calls}, overrides)
    calls = [replace(call, leaf=leaves[call.name]) for call in calls]
    _check_best(calls)
    code = _Code()
    steps = tuple(_step(call, code.key(call)) for call in calls)
    plan = _seeded(Plan(name=name, steps=steps, flow=flow, parameters=recorded), leaves, draw_seed)
    return Compiled(plan, code.entries, _storage_path(calls), _asking(leaves))


def _asking(leaves: Mapping[str, Leaf]) -> dict[str, Asking]:
    declared = {name: leaf.declaration for name, leaf in leaves.items()}
    return {
        name: Asking(each.resource_function, each.labels)
        for name, each in declared.items()
        if each.resource_function is not None
    }


def _alone(leaf: Leaf) -> Call:
    name = check_step_name(leaf.step_name, place=leaf.place)
    try:
        check_arguments(leaf, (), {}, place=leaf.place)
    except DeclarationError as error:
        what = f"{leaf.step_name} needs inputs, so it cannot run alone ({error.what})"
        raise DeclarationError(what, place=leaf.place, cure="call it in a @flow and run that") from None
    return Call(name, leaf)


def _check_best(calls: list[Call]) -> None:
    """Raises `DeclarationError` where the best trial of an experiment without a metric is asked for."""
    leaves = {call.name: call.leaf for call in calls}
    for call in calls:
        edges = edges_of([list(call.inputs), dict(call.keyword_inputs or {})])
        for step, path in edges:
            if path[:1] == ("best",) and leaves[step].declaration.metric is None:
                what = f"{call.name} needs {step}.best, and {step} has no metric"
                raise DeclarationError(what, place=leaves[step].place, cure='add metric="…" and mode="max" or "min"')


def _step(call: Call, code: str) -> Step:
    leaf, declared = call.leaf, call.leaf.declaration
    total = 1
    if leaf.kind == EXPERIMENT:
        points = grid_points(declared.space)
        total = points * declared.num_samples
        if total > MAX_TRIALS:
            what = f"{points:,} grid points × {declared.num_samples:,} samples are more than {MAX_TRIALS:,} trials"
            raise DeclarationError(what, place=at(leaf.place, "param_space"), cure="use choice instead of grid")
    return Step(
        name=call.name,
        kind=leaf.kind,
        code=code,
        place=leaf.place or "",
        total=total,
        seed="",
        request=declared.request,
        has_resource_function=declared.resource_function is not None,
        labels=declared.labels,
        max_concurrent_trials=declared.max_concurrent_trials,
        priority=declared.priority,
        pending_timeout_s=declared.pending_timeout_s,
        inputs=call.inputs,
        keyword_inputs=call.keyword_inputs or {},
        after=call.after,
        space=declared.space,
        num_samples=declared.num_samples,
        metric=declared.metric,
        mode=declared.mode,
        policy=declared.policy,
        stop=dict(declared.stop.limits) or None,
        stop_functions=len(declared.stop.functions),
        signature=_signature(),
    )


def _signature() -> dict[str, JSON]:
    """A step as Celery writes a signature; run, index, epoch and boot are filled in at placement."""
    return {
        "task": TASK,
        "args": ["RUN:STEP:INDEX", "EPOCH"],
        "kwargs": {},
        "options": {"queue": "fcq.BOOT"},
        "subtask_type": None,
        "immutable": True,
    }


def _seeded(plan: Plan, leaves: Mapping[str, Leaf], draw_seed: Callable[[], str]) -> Plan:
    """The plan with every seed recorded: as declared, drawn, or derived from the names of plan and step.

    From names alone, so that more samples, another stop or another range leave the draws that were there as they are.
    """
    steps = []
    for step in plan.steps:
        seed = leaves[step.name].declaration.seed
        if seed is None:
            seed = hashlib.sha256(f"{plan.name}:{step.name}".encode()).hexdigest()[:16]
        elif seed == "random":
            seed = draw_seed()
        steps.append(replace(step, seed=seed))
    return replace(plan, steps=tuple(steps))


def _storage_path(calls: list[Call]) -> str | None:
    paths = {call.leaf.declaration.storage_path: call for call in calls if call.leaf.declaration.storage_path}
    if len(paths) > 1:
        call = list(paths.values())[1]
        what = f"a run has one storage, its steps declare {', '.join(map(repr, paths))}"
        raise DeclarationError(what, place=at(call.leaf.place, "storage_path"), cure="declare the same one")
    return next(iter(paths), None)


class _Code:
    """Collects code once, however often it is called; the key is the name of the first step that has it."""

    def __init__(self) -> None:
        self.entries: dict[str, StepCode] = {}

    def key(self, call: Call) -> str:
        function, stop = call.leaf.function, call.leaf.declaration.stop.functions
        for key, entry in self.entries.items():
            if entry.function is function and list(map(id, entry.stop)) == list(map(id, stop)):
                return key
        self.entries[call.name] = StepCode(function, stop)
        return call.name
