"""What `flowctl run` says of a worker that ended by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from flowctl.local_run import _ending

REMOTE = '''\
2026-01-01 00:00:00,000 INFO ready
billiard.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "a.py", line 3, in f
    raise ValueError("x")
    ^^^^^^^^^^^^^^^^^^^^^
ValueError: x
"""

'''


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (REMOTE, "ValueError: x"),
        ("flowctl: no\n\n---\n", "flowctl: no"),
        ('"""\n', "it wrote nothing"),
        ("", "it wrote nothing"),
    ],
)
def test_the_last_line_that_says_something_is_shown(tmp_path: Path, text: str, said: str) -> None:
    log = tmp_path / "worker.log"
    log.write_text(text)

    assert _ending(1, log) == f"ended by itself (exit code 1): {said}"


def test_a_signal_is_named_whatever_the_log_says(tmp_path: Path) -> None:
    assert _ending(-signal.SIGKILL, tmp_path / "none") == "was killed by signal 9 (SIGKILL)"
    assert _ending(2, tmp_path / "none") == "ended by itself (exit code 2): its log cannot be read"
