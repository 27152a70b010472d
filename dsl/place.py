"""Where something was declared: `file.py:LINE`, with the file's base name, so that it is the same on every machine."""

from __future__ import annotations

import os
import sys
from types import FrameType, FunctionType

_OWN = ("flowctl.dsl", "flowctl.dsl.")


def function_place(function: object) -> str | None:
    """The place of a function's first line, its decorator included; None for what is no Python function."""
    if isinstance(function, FunctionType):
        return f"{_base(function.__code__.co_filename)}:{function.__code__.co_firstlineno}"
    return None


def caller_place() -> str | None:
    """The place of the nearest caller that is not this package: the user's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != _OWN[0] and not name.startswith(_OWN[1]):
            return f"{_base(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _base(path: str) -> str:
    """The last part; every trial imports this module, and pathlib costs it milliseconds."""
    return path.rpartition(os.sep)[2]


def at(place: str | None, what: str) -> str:
    """`what` at a place, as the place of an error: `digits.py:12: max_failures`."""
    return f"{place}: {what}" if place else what
