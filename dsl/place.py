"""Where something was declared: `file.py:LINE`, with the file's base name, so that it is the same on every machine."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import FrameType, FunctionType

_OWN = ("flowctl.dsl", "flowctl.dsl.")


def function_place(function: object) -> str | None:
    """The place of a function's first line, its decorator included; None for what is no Python function."""
    if isinstance(function, FunctionType):
        return f"{PurePath(function.__code__.co_filename).name}:{function.__code__.co_firstlineno}"
    return None


def caller_place() -> str | None:
    """The place of the nearest caller that is not this package: the user's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != _OWN[0] and not name.startswith(_OWN[1]):
            return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def at(place: str | None, what: str) -> str:
    """`what` at a place, as the place of an error: `digits.py:12: max_failures`."""
    return f"{place}: {what}" if place else what
