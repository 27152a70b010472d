"""The errors of flowctl: one root, one small tree, one line of text each.

    FlowctlError
    ├── DeclarationError   2  what a person declared cannot be
    │   └── NotYetError    2  it can be, but this version does not do it
    ├── ScriptError        2  a script cannot be read or holds no target
    ├── ValueRefused       2  a value cannot be kept as JSON (also a TypeError)
    ├── RefusedError       5  refused for a name, a code, a trust or a damage
    ├── UnreachableError   4  a server or a storage does not answer
    └── RunFailed          1  a run that was waited for did not complete

The number is the exit code of the command line. `broker/errors.py` and `storage/errors.py` subclass these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class FlowctlError(Exception):
    """Says what is wrong, at which place, and the cure, in one line.

    Every attribute survives pickling, also those that a subclass adds.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, place: str | None = None, cure: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.place = place
        self.cure = cure

    def __str__(self) -> str:
        start = f"{self.place}: " if self.place else ""
        end = f"; {self.cure}" if self.cure else ""
        return " ".join(f"{start}{self.what}{end}".splitlines())

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[FlowctlError], args: tuple[Any, ...], attributes: dict[str, Any]) -> FlowctlError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class DeclarationError(FlowctlError):
    """Something that a person declared cannot be."""

    exit_code = 2


class NotYetError(DeclarationError):
    """Something that will be possible, and that this version refuses instead of ignoring it."""


class ScriptError(FlowctlError):
    """A script cannot be imported, or does not hold what was asked for."""

    exit_code = 2


class ValueRefused(FlowctlError, TypeError):
    """A value that cannot be kept as JSON; `place` names the key that holds it."""

    exit_code = 2


class RefusedError(FlowctlError):
    """Refused for a name, a code, a trust or a damage; nothing was changed."""

    exit_code = 5


class UnreachableError(FlowctlError):
    """A server or a storage does not answer."""

    exit_code = 4


class RunFailed(FlowctlError):
    """A run that was waited for failed or was cancelled.

    `causes` are one-line texts, first the most frequent; `cause_type` is the type name of the first, where it has one.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        run: str,
        causes: Sequence[str] = (),
        cause_type: str | None = None,
        place: str | None = None,
        cure: str | None = None,
    ) -> None:
        super().__init__(what, place=place, cure=cure)
        self.run = run
        self.causes = tuple(causes)
        self.cause_type = cause_type
