"""Which errors of a trial get the hint about its folder."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from flowctl.workers.relative_path import HINT, hint


def hint_of(function: Callable[[], object]) -> str | None:
    try:
        function()
    except BaseException as error:
        return hint(error, traceback.extract_tb(error.__traceback__))
    raise AssertionError("nothing was raised")


def raising(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Path("data.csv").open, HINT),
        (raising(FileNotFoundError(2, "No such file or directory", b"data/train")), HINT),
        (raising(FileNotFoundError("data.csv not found.")), HINT),
        (Path("/nowhere/data.csv").open, None),
        (raising(FileNotFoundError("/nowhere/data.csv not found.")), None),
        (raising(FileNotFoundError("nothing to load")), None),
        (raising(FileNotFoundError()), None),
        (raising(ValueError("data.csv")), None),
        (lambda: subprocess.run(["no-such-program"], check=False), None),
    ],
)
def test_only_a_relative_path_that_is_not_there_gets_the_hint(
    function: Callable[[], object], expected: str | None
) -> None:
    assert hint_of(function) == expected
