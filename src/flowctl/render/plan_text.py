"""A plan for people: as text, and as a mermaid graph."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from flowctl.broker.shape_view import show_need
from flowctl.dsl.graph import A_FUNCTION
from flowctl.dsl.labels import show_labels
from flowctl.dsl.plan import Plan, Step
from flowctl.dsl.resources import format_request
from flowctl.render.plan_asks import PlannedAsks
from flowctl.render.table import cut, number, pairs, table

NOTHING: Mapping[str, PlannedAsks] = MappingProxyType({})


def plan_text(
    plan: Plan, first_configs: Mapping[str, Mapping[str, Any]], asked: Mapping[str, PlannedAsks] = NOTHING
) -> str:
    """Steps with their edges, trials, requests and limits, then the number of trials of each request.

    `first_configs` holds the configuration of trial 0 per experiment, as an example of the search space;
    `asked`, per step whose resources are a function of the configuration, what that says.
    """
    title = f"{plan.name}  {len(plan.steps)} step{'s' if len(plan.steps) != 1 else ''}, {trials(plan)}"
    lines = [title, f"plan {plan.digest}"]
    if plan.parameters:
        lines.append(f"parameters: {pairs(plan.parameters, limit=20)}")
    rows = [
        [step.name, step.kind, str(step.total), needs(step, asked), ", ".join(step.after), step.place]
        for step in plan.steps
    ]
    lines += ["", table(["step", "kind", "trials", "needs each", "after", "declared at"], rows)]
    for step in plan.steps:
        lines += _details(step, first_configs.get(step.name, {}))
    lines += ["", "in all:"]
    lines += [f"  {count} × {need}" for need, count in shapes(plan, asked).items()]
    warnings = [failure.line() for each in asked.values() for failure in each.failures]
    lines += ["", *warnings] if warnings else []
    return "\n".join(lines)


def trials(plan: Plan) -> str:
    """`24 trials`, counting experiments only; stages are named apart."""
    count = sum(step.total for step in plan.steps if step.kind == "experiment")
    stages = sum(step.total for step in plan.steps if step.kind != "experiment")
    parts = [f"{count} trial{'s' if count != 1 else ''}"] if count else []
    parts += [f"{stages} stage{'s' if stages != 1 else ''}"] if stages else []
    return " and ".join(parts)


def needs(step: Step, asked: Mapping[str, PlannedAsks] = NOTHING) -> str:
    """What each unit of a step asks for."""
    if step.name in asked:
        return asked[step.name].needs()
    if step.request is not None:
        return format_request(step.request, vector=show_need)
    return f"{A_FUNCTION} on {show_labels(step.labels)}" if step.labels else A_FUNCTION


def shapes(plan: Plan, asked: Mapping[str, PlannedAsks] = NOTHING) -> dict[str, int]:
    """How many units ask for the same, in the order of the steps; those for which a function fails are left out."""
    counts: dict[str, int] = {}
    for step in plan.steps:
        found = asked[step.name].counts() if step.name in asked else [(needs(step), step.total)]
        for need, count in found:
            counts[need] = counts.get(need, 0) + count
    return counts


def plan_mermaid(plan: Plan) -> str:
    """The graph as a mermaid flowchart; an edge carries what is passed."""
    lines = ["flowchart TD"]
    for step in plan.steps:
        text = f"{step.name}<br/>{step.total} trials" if step.kind == "experiment" else step.name
        shape = f'[["{text}"]]' if step.kind == "experiment" else f'["{text}"]'
        lines.append(f"    {_node(step.name)}{shape}")
    for step in plan.steps:
        passed = edges(step)
        for source in step.after:
            label = ", ".join(passed.get(source, []))
            lines.append(f"    {_node(source)} -->{f'|{label}|' if label else ''} {_node(step.name)}")
    return "\n".join(lines)


def edges(step: Step) -> dict[str, list[str]]:
    """Per source step the outputs of it that this step takes, such as `best.config`; `output` for the whole."""
    found: dict[str, list[str]] = {}
    for source, path in _outputs([list(step.inputs), dict(step.keyword_inputs)]):
        name = ".".join(str(part) for part in path) or "output"
        if name not in found.setdefault(source, []):
            found[source].append(name)
    return found


def _details(step: Step, config: Mapping[str, Any]) -> Iterator[str]:
    told = []
    if step.metric:
        told.append(f"{step.mode} {step.metric}")
    if step.num_samples > 1:
        told.append(f"{step.num_samples} samples")
    if step.stop:
        told.append("stops at " + " or ".join(f"{key} ≥ {limit:g}" for key, limit in step.stop.items()))
    if step.stop_functions:
        told.append(f"{step.stop_functions} stop function{'s' if step.stop_functions > 1 else ''}")
    if step.policy.max_failures:
        told.append(f"{step.policy.max_failures} failures allowed")
    told += _limits(step)
    if config:
        told.append(f"trial 0: {cut(pairs(config), 90)}")
    inputs = [
        f"{source}.{name}" if name != "output" else source for source, names in edges(step).items() for name in names
    ]
    if inputs:
        told.append(f"takes {', '.join(inputs)}")
    if told:
        yield ""
        yield f"{step.name}: {'; '.join(told)}"
    for key, entries in _plain_lists(step.space):
        yield f"note: {key} is the list {cut(number(entries), 40)} in every trial; to try each: grid({number(entries)})"


def _plain_lists(space: Any, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Lists of several different numbers that the space holds as they are: often meant as a grid."""
    for key, value in space["$dict"] if isinstance(space, dict) and "$dict" in space else []:
        name = f"{prefix}{key}"
        numbers = isinstance(value, list) and all(type(each) in (int, float) for each in value)
        if numbers and len(set(value)) == len(value) > 1:
            yield name, value
        yield from _plain_lists(value, f"{name}/")


def _limits(step: Step) -> Iterator[str]:
    if step.max_concurrent_trials is not None:
        yield f"at most {step.max_concurrent_trials} at once"
    if step.priority:
        yield f"priority {step.priority}"
    if step.pending_timeout_s is not None:
        yield f"fails after waiting {step.pending_timeout_s:g} s"
    if step.policy.enforce:
        yield f"{' and '.join(step.policy.enforce)} enforced"
    if step.policy.on_bundle_loss == "repair":
        yield "a lost bundle is repaired"


def _outputs(value: Any) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(value, Mapping):
        if "$output" in value:
            yield value["$output"], value.get("path", [])
            return
        for each in value.values():
            yield from _outputs(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _outputs(each)


def _node(name: str) -> str:
    """An identifier that mermaid takes: `end` and names that begin with a digit are no identifiers there."""
    return "s_" + name.replace("_", "__").replace("-", "_")


def plan_json(plan: Plan, asked: Mapping[str, PlannedAsks] = NOTHING) -> dict[str, Any]:
    """The body of `plan --json`: the plan itself and what it amounts to."""
    return {
        "plan": json.loads(plan.canonical()),
        "digest": plan.digest,
        "trials": {step.name: step.total for step in plan.steps},
        "shapes": [{"needs": need, "count": count} for need, count in shapes(plan, asked).items()],
        "warnings": [failure.to_json() for each in asked.values() for failure in each.failures],
    }
