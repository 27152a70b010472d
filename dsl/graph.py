"""A plan as a person reads it: text for a terminal, and a mermaid diagram. Pure strings."""

from __future__ import annotations

from dataclasses import dataclass

from flowctl.dsl.jsonvalue import JSON
from flowctl.dsl.plan import EXPERIMENT, Plan, Step, edges_of
from flowctl.dsl.resources import format_request
from flowctl.dsl.sample import grid_points

A_FUNCTION = "a function of the configuration"


@dataclass(frozen=True)
class Shape:
    """How many units of a plan ask for the same; `request` as a person reads it."""

    request: str
    count: int


def shapes(plan: Plan) -> list[Shape]:
    """The different requests of a plan, the most frequent first."""
    counts: dict[str, int] = {}
    for step in plan.steps:
        text = request_text(step)
        counts[text] = counts.get(text, 0) + step.total
    return [Shape(text, count) for text, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def request_text(step: Step) -> str:
    """What each unit of a step asks for."""
    return A_FUNCTION if step.request is None else format_request(step.request)


def describe_text(plan: Plan) -> str:
    """The steps in order, with what each needs, its trials and its resources, then the sum of each shape."""
    trials = sum(step.total for step in plan.steps if step.kind == EXPERIMENT)
    stages = sum(1 for step in plan.steps if step.kind != EXPERIMENT)
    lines = [f"{'flow' if plan.flow else 'plan'} {plan.name}: {_counts(trials, stages)}"]
    if plan.parameters:
        lines.append("  parameters: " + ", ".join(f"{k}={_short(v)}" for k, v in sorted(plan.parameters.items())))
    for step in plan.steps:
        lines += _step_lines(step)
    lines.append("resources:")
    lines += [f"  {shape.count} × {shape.request}" for shape in shapes(plan)]
    lines.append(plan.digest)
    return "\n".join(lines)


def mermaid(plan: Plan) -> str:
    """The graph for a mermaid viewer; an edge is named by the parts of the output that it carries."""
    ids = {step.name: f"s{number}" for number, step in enumerate(plan.steps)}
    lines = ["flowchart TD"]
    for step in plan.steps:
        label = f"{step.name}<br/>{_size(step)}<br/>{request_text(step)}"
        left, right = ("[[", "]]") if step.kind == EXPERIMENT else ("[", "]")
        lines.append(f'    {ids[step.name]}{left}"{label}"{right}')
    for step in plan.steps:
        parts: dict[str, set[str]] = {name: set() for name in step.after}
        for source, path in edges_of([list(step.inputs), dict(step.keyword_inputs)]):
            parts[source].add(".".join(path))
        for name in step.after:
            label = ", ".join(sorted(parts[name] - {""}))
            lines.append(f"    {ids[name]} -->{f'|{label}|' if label else ''} {ids[step.name]}")
    return "\n".join(lines)


def _step_lines(step: Step) -> list[str]:
    after = f", after {', '.join(step.after)}" if step.after else ""
    lines = [f"  {step.name} ({step.kind}, {step.place}): {_size(step)}, {request_text(step)}{after}"]
    details = []
    if step.kind == EXPERIMENT:
        details.append(f"{grid_points(step.space)} grid points × {step.num_samples} samples, seed {step.seed}")
    if step.metric:
        details.append(f"{step.mode} {step.metric}")
    stops = [f"{name} ≥ {_short(limit)}" for name, limit in sorted((step.stop or {}).items())]
    stops += [_counted(step.stop_functions, "function")] if step.stop_functions else []
    if stops:
        details.append("stop at " + " or ".join(stops))
    if step.policy.max_failures:
        count = step.policy.max_failures
        details.append("retries without limit" if count < 0 else f"up to {_counted(count, 'failure')}")
    if step.max_concurrent_trials is not None:
        details.append(f"at most {step.max_concurrent_trials} at once")
    if step.priority:
        details.append(f"priority {step.priority}")
    return lines + [f"    {detail}" for detail in details]


def _counts(trials: int, stages: int) -> str:
    parts = [_counted(trials, "trial")] if trials else []
    parts += [_counted(stages, "stage")] if stages else []
    return ", ".join(parts)


def _size(step: Step) -> str:
    return _counted(step.total, "trial") if step.kind == EXPERIMENT else "stage"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _short(value: JSON) -> str:
    text = str(value["$float"]) if isinstance(value, dict) and "$float" in value else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
