"""`with_resources`: the same function with another request; the original is never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.experiment import Experiment, experiment
from flowctl.dsl.flow import Flow
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.leaf import AnyLeaf, Leaf
from flowctl.dsl.place import caller_place
from flowctl.dsl.request import Resources


@overload
def with_resources(target: AnyLeaf, resources: Resources) -> AnyLeaf: ...  # type: ignore[overload-overlap]
@overload
def with_resources(target: Callable[..., Any], resources: Resources) -> Experiment: ...
def with_resources(target: Any, resources: Resources) -> Any:
    """`target` asking for `resources`: an experiment or a stage stays one, a plain function becomes an experiment.

    Wrapping one target twice gives two that know nothing of each other. Raises like `experiment`.
    """
    if isinstance(target, Leaf):
        return target.options(resources=resources)
    if not callable(target) or isinstance(target, (type, Flow)):
        what = f"with_resources takes an experiment, a stage or a function, not {kind_of(target)}"
        raise DeclarationError(what, place=caller_place(), cure="in a flow, wrap its steps")
    return experiment(resources=resources)(target)
