"""What a call inside a flow returns: the promise of a result, not the result.

It can be passed to other calls, at any depth of lists and dictionaries, and nothing else: the value does not exist
while the flow is compiled. An experiment's output has `.best` (with `.config`, `.metrics`, `.checkpoint`) and
`.results`; a stage's is passed whole.
"""

from __future__ import annotations

from typing import Any, NoReturn

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import caller_place
from flowctl.dsl.plan import EXPERIMENT

_BEST: dict[str, Any] = {"config": {}, "metrics": {}, "checkpoint": {}}
_PATHS: dict[str, Any] = {"best": _BEST, "results": {}}


class OutputError(DeclarationError, AttributeError):
    """An output was used as if it were the value."""


class Output:
    """A promise of the value at `path` of a step's output."""

    __slots__ = ("_kind", "_path", "_step", "_trace")

    def __init__(self, trace: object, step: str, kind: str, path: tuple[str, ...] = ()) -> None:
        self._trace = trace
        self._step = step
        self._kind = kind
        self._path = path

    def __getattr__(self, name: str) -> Output:
        if name.startswith("__"):
            raise AttributeError(name)
        known = _PATHS if self._kind == EXPERIMENT else {}
        for part in self._path:
            known = known[part]
        if name in known:
            return Output(self._trace, self._step, self._kind, (*self._path, name))
        cure = "pass it to a stage, and read the part there"
        if known:
            cure = did_you_mean(name, known, kind="parts")
        raise OutputError(f"{self!r} has no part {name!r}", place=caller_place(), cure=cure)

    def __repr__(self) -> str:
        return f"the output {'.'.join((self._step, *self._path))}"

    def __hash__(self) -> int:
        return id(self)

    def _refuse(self, verb: str) -> NoReturn:
        what = f"{self!r} is not known while the flow is compiled, so it cannot be {verb}"
        raise OutputError(what, place=caller_place(), cure="pass it to a stage, and do it there")

    def __iter__(self) -> NoReturn:
        self._refuse("iterated")

    def __len__(self) -> NoReturn:
        self._refuse("measured with len()")

    def __bool__(self) -> NoReturn:
        self._refuse("used as a condition")

    def __getitem__(self, key: object) -> NoReturn:
        self._refuse(f"indexed with [{key!r}]")

    def __contains__(self, item: object) -> NoReturn:
        self._refuse("searched with in")

    def __call__(self, *args: object, **keywords: object) -> NoReturn:
        self._refuse("called")

    def __str__(self) -> NoReturn:
        self._refuse("made into text")

    def __format__(self, spec: str) -> NoReturn:
        self._refuse("made into text")


def _refusal(method: str, verb: str) -> None:
    def refuse(self: Output, *others: object) -> NoReturn:
        self._refuse(verb)

    refuse.__name__ = method
    refuse.__qualname__ = f"Output.{method}"
    setattr(Output, method, refuse)


_ARITHMETIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift")
for _name in (*_ARITHMETIC, "and", "or", "xor"):
    _refusal(f"__{_name}__", "calculated with")
    _refusal(f"__r{_name}__", "calculated with")
for _name in ("neg", "pos", "abs", "invert", "round"):
    _refusal(f"__{_name}__", "calculated with")
for _name in ("int", "float", "complex", "index", "bytes"):
    _refusal(f"__{_name}__", "made into a number")
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _refusal(f"__{_name}__", "compared")
