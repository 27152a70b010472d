"""What the stages of a flow returned, in one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from flowctl.broker.view import RunView
from flowctl.render.table import cut, number, pairs

OutputOf: TypeAlias = Callable[[str], Any]
"""What a completed stage returned, as JSON; None if that cannot be read."""


def output_lines(run: RunView, output_of: OutputOf, *, only_last: bool) -> list[str]:
    """One line per completed stage that returned something; `only_last`: of those that nothing else takes."""
    needed = {name for step in run.steps for name in step.after} if only_last else set()
    lines = []
    for step in run.steps:
        if step.is_experiment or step.state != "completed" or step.name in needed:
            continue
        output = output_of(step.name)
        if isinstance(output, dict) and "$manifest" in output:
            text = "" if only_last else "a checkpoint"
        else:
            text = pairs(output) if isinstance(output, dict) else cut(number(output), 100) if output is not None else ""
        if text:
            lines.append(f"{step.name}: {text}")
    return lines
