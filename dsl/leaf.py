"""What experiments and stages have in common: a function, its keywords, and what a call of it means.

A leaf is a value: `options` returns a new one and leaves the original unchanged. Inside a flow a call is recorded and
gives an output; anywhere else it is a plain call of the function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar, TypeVar

from flowctl.dsl import launcher, trace
from flowctl.dsl.declaration import Declaration, check_keywords, refuse_not_yet
from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.names import check_step_name
from flowctl.dsl.output import Output
from flowctl.dsl.place import at, caller_place, function_place

AnyLeaf = TypeVar("AnyLeaf", bound="Leaf")

_CALL_OPTIONS: Mapping[str, Any] = {"on_failure": "stop", "min_completed": None}


class Leaf:
    """A decorated function. `function` is the user's own; `declaration` holds the checked keywords."""

    kind: ClassVar[str]
    decorator: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]]
    built: ClassVar[frozenset[str]]
    __name__: str  # the function's, as functools.update_wrapper sets it

    def __init__(self, function: object, keywords: Mapping[str, Any], *, name: str | None = None) -> None:
        self.function = check_function(function, self.decorator)
        self.place = function_place(self.function)
        check_keywords(keywords, self.defaults, place=self.place, of=self.decorator)
        # read-only defaults become plain dictionaries: a leaf can be pickled, and so can code that names one
        self.keywords: dict[str, Any] = {
            key: dict(value) if isinstance(value, MappingProxyType) else value
            for key, value in {**self.defaults, **keywords}.items()
        }
        self.name = None if name is None else check_step_name(name, place=self.place)
        refuse_not_yet(self.keywords, self.defaults, self.built, place=self.place)
        self.declaration = self._declare()
        functools.update_wrapper(self, self.function, updated=())

    def _declare(self) -> Declaration:
        raise NotImplementedError

    @property
    def step_name(self) -> str:
        """The name given by `options`, else the function's."""
        return self.name if self.name is not None else self.function.__name__

    def options(self: AnyLeaf, *, name: str | None = None, **changes: Any) -> AnyLeaf:
        """The same function with other keywords, and with a step name of its own; the original is unchanged."""
        place = caller_place()
        check_keywords(changes, [*self.defaults, "name", *_CALL_OPTIONS], place=place, of=f"{self.step_name}.options")
        for option, default in _CALL_OPTIONS.items():
            if changes.pop(option, default) != default:
                raise NotYetError("is not yet supported", place=at(place, option), cure="leave it out")
        return type(self)(self.function, {**self.keywords, **changes}, name=self.name if name is None else name)

    def map(self, items: object) -> Output:
        """Fan out over an output; not yet."""
        raise NotYetError(f"{self.step_name}.map is not yet supported", place=caller_place())

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        recording = trace.current()
        if recording is not None:
            return recording.record(self, args, keywords)
        for value in (*args, *keywords.values()):
            if isinstance(value, Output):
                what = f"{value!r} is passed to {self.step_name} outside of its flow"
                raise DeclarationError(what, place=caller_place(), cure="call it inside the flow")
        return self._call_function(args, keywords)

    def _call_function(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.function(*args, **keywords)

    def submit(self, *, name: str | None = None, **options: Any) -> Any:
        """Submit a run of this alone and return its handle at once."""
        return launcher.current().submit(self, name=name, **options)

    def submit_or_resume(self, *, name: str, **options: Any) -> Any:
        """Submit it, or go on with the run of that name."""
        return launcher.current().submit_or_resume(self, name=name, **options)

    def run(self, *, name: str | None = None, **options: Any) -> Any:
        """Submit it, take part in the work on this machine, and return the results."""
        return launcher.current().run(self, name=name, **options)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.step_name}>"


def check_function(function: object, decorator: str) -> FunctionType:
    """Return what was decorated if it can be called once per trial. Raises `DeclarationError`."""
    if not isinstance(function, FunctionType):
        place = caller_place()
        if isinstance(function, type):
            raise NotYetError(f"{decorator} of a class is not yet supported", place=place, cure="decorate a function")
        cure = f"write {decorator} above a def, with keywords in parentheses"
        raise DeclarationError(f"{decorator} decorates a function, not {kind_of(function)}", place=place, cure=cure)
    what = None
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what = "an async function"
    elif inspect.isgeneratorfunction(function):
        what = "a generator"
    if what is not None:
        cure = "write a plain def; report values with report()"
        raise NotYetError(f"{what} is not yet supported", place=function_place(function), cure=cure)
    return function


def keyword_defaults(decorator: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters of a decorator and their defaults: the one list of names."""
    parameters = inspect.signature(decorator).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
