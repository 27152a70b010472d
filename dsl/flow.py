"""`@flow`: a function whose calls of stages and experiments become the steps of a plan.

The function runs once, while the plan is compiled. Its parameters, each with a default, are the flow's parameters; they
are recorded in the plan. What it returns is ignored: results are read per step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, overload

from flowctl.dsl import launcher, trace
from flowctl.dsl.errors import DeclarationError, NotYetError, RefusedError
from flowctl.dsl.leaf import check_function
from flowctl.dsl.names import run_id
from flowctl.dsl.parameters import check_defaults, read_parameters
from flowctl.dsl.place import at, caller_place, function_place
from flowctl.dsl.trace import Call


class Flow:
    """A graph in the making; `name` is the flow's and, without another, the start of its runs' names."""

    def __init__(self, function: object, *, name: str | None = None) -> None:
        self.function = check_function(function, "@flow")
        self.place = function_place(self.function)
        self.name = self.function.__name__ if name is None else _check_name(name, self.place)
        self.signature = inspect.signature(self.function)
        check_defaults(self.function, place=self.place)
        functools.update_wrapper(self, self.function, updated=())

    def trace(self, parameters: Mapping[str, Any]) -> tuple[list[Call], dict[str, Any]]:
        """Run the function once: its calls in order, and the parameters with their values as JSON.

        `parameters` are as typed on a command line, or values. Raises `DeclarationError`; what the function itself
        raises passes through.
        """
        values, recorded = read_parameters(self.function, parameters)
        refusal = launcher.refusing("a flow does not submit", cure="call the step inside the flow: train(data)")
        with trace.tracing() as recording, refusal:
            self.function(**values)
        if not recording.calls:
            raise DeclarationError(f"the flow {self.name!r} calls no stage and no experiment", place=self.place)
        return recording.calls, recorded

    def __call__(self, *args: Any, **keywords: Any) -> NoReturn:
        if trace.current() is not None:
            raise NotYetError("a flow inside a flow is not yet supported", place=caller_place())
        name = self.function.__name__
        what = f"the flow {self.name!r} is not run by calling it"
        raise DeclarationError(what, place=caller_place(), cure=f"use {name}.run() or {name}.submit()")

    def submit(self, *, name: str | None = None, **options: Any) -> Any:
        """Submit a run of this flow and return its handle at once."""
        return launcher.current().submit(self, name=name, **options)

    def submit_or_resume(self, *, name: str, **options: Any) -> Any:
        """Submit it, or go on with the run of that name."""
        return launcher.current().submit_or_resume(self, name=name, **options)

    def run(self, *, name: str | None = None, **options: Any) -> Any:
        """Submit it, take part in the work on this machine, and return the results."""
        return launcher.current().run(self, name=name, **options)

    def __repr__(self) -> str:
        return f"<flow {self.name}>"


@overload
def flow(function: Callable[..., Any], /) -> Flow: ...
@overload
def flow(*, name: str | None = ...) -> Callable[[Callable[..., Any]], Flow]: ...
def flow(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **unknown: Any) -> Any:
    """Declare a flow; usable bare and with a name. Raises `DeclarationError` with file and line."""

    def decorate(decorated: Callable[..., Any]) -> Flow:
        for keyword in unknown:
            what = f"@flow has no keyword {keyword!r}"
            raise DeclarationError(what, place=function_place(decorated), cure="known keywords: name")
        return Flow(decorated, name=name)

    return decorate if function is None else decorate(function)


def _check_name(name: object, place: str | None) -> str:
    if not isinstance(name, str):
        raise DeclarationError(f"is {name!r}, not text", place=at(place, "name"))
    try:
        run_id(name)
    except RefusedError as error:
        raise DeclarationError(error.what, place=at(place, "name"), cure=error.cure) from None
    return name
