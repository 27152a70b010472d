"""The best trial so far as people see it: also of trials that wait for their next attempt.

The server's ranking holds what runs and what has completed. A trial that went back to pending leaves it (it may yet be
cancelled by counter alone), but what it reported stays true, and after Ctrl-C it may be all there is.
"""

from __future__ import annotations

import math
from typing import Any, cast

from flowctl.broker.view import StepView, UnitView, best_unit, load_named
from flowctl.dsl.names import parse_unit
from flowctl.dsl.states import STEP_ENDED

MAX_WAITING = 200
"""Trials that went back stand at the head of their bucket, by number; so many of each are looked at."""


def best_so_far(client: Any, step: StepView) -> UnitView | None:
    """The trial with the best finite value that did not fail; equal values go to the lowest number."""
    ranked = best_unit(client, step)
    waiting = _best_waiting(client, step)
    if ranked is None or waiting is None or ranked.best is None or waiting.best is None:
        return ranked or waiting
    sign = 1 if step.mode == "min" else -1
    return min(ranked, waiting, key=lambda unit: (sign * cast(float, unit.best), unit.index))


def _best_waiting(client: Any, step: StepView) -> UnitView | None:
    if step.mode not in ("max", "min") or step.started_ms is None or not step.counts["pending"]:
        return None
    if step.state in STEP_ENDED:
        return None
    shapes = sorted(cast(set[str], client.smembers(f"fc:stepshapes:{step.run}:{step.name}")))
    pipe = client.pipeline(transaction=False)
    for shape in shapes:
        pipe.zrange(f"fc:bucket:{step.run}:{step.name}:{shape}", 0, MAX_WAITING - 1)
    units = [unit for found in pipe.execute() for unit in found] if shapes else []
    for unit in units:
        pipe.hget(f"fc:unit:{unit}", "best")
    values = pipe.execute() if units else []
    reported = [(float(value), unit) for value, unit in zip(values, units, strict=True) if value]
    sign = 1 if step.mode == "min" else -1
    finite = [(sign * value, parse_unit(unit).index, unit) for value, unit in reported if math.isfinite(value)]
    return load_named(client, [parse_unit(min(finite)[2])])[0] if finite else None
