"""The hook through which a declared object reaches what can run it; this package cannot.

The facade provides a launcher. Where a submission would be wrong (in a trial it can deadlock, while a script is
imported for submission it would submit twice), `refusing` takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from flowctl.dsl.errors import RefusedError, ScriptError
from flowctl.dsl.place import caller_place


class Launcher(Protocol):
    """What an experiment, a stage or a flow needs to be run; the target comes first."""

    def submit(self, target: Any, *, name: str | None = None, **options: Any) -> Any: ...

    def submit_or_resume(self, target: Any, *, name: str, **options: Any) -> Any: ...

    def run(self, target: Any, *, name: str | None = None, **options: Any) -> Any: ...


_provided: list[Launcher] = []
_refusals: list[tuple[str, str | None]] = []


def provide(launcher: Launcher) -> None:
    """Make `launcher` the one that is used from now on."""
    _provided[:] = [launcher]


def current() -> Launcher:
    """The launcher in use. Raises `ScriptError` at the caller's line where submitting is refused."""
    if _refusals:
        what, cure = _refusals[-1]
        raise ScriptError(what, place=caller_place(), cure=cure)
    if not _provided:
        raise RefusedError("nothing here can run it", cure="import flowctl")
    return _provided[0]


@contextmanager
def refusing(what: str, *, cure: str | None = None) -> Iterator[None]:
    """Within the block every submission is refused with these words and the line that tried it."""
    _refusals.append((what, cure))
    try:
        yield
    finally:
        _refusals.pop()
