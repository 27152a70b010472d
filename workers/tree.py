"""Finding and removing process trees. A tree is what carries the attempt's mark in its environment, or descends from
who does.

A guardian is the subreaper of its trial: whatever the trial leaves behind, in whatever session, becomes the guardian's
child, so that "no child left" proves that the tree is gone.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

import psutil

MARK = "FLOWCTL_ATTEMPT"
"""Environment variable of every trial process: `boot/unit/epoch/nonce`."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4


def become_subreaper() -> None:
    """Orphaned descendants of this process become its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_environment() -> None:
    """Other processes of this user can't read this process' environment from /proc."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def kill_session(pid: int) -> None:
    """SIGKILL to the process group that `pid` leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def has_children() -> bool:
    """Whether this process has any child, running or not yet reaped. One system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def sweep_children(*, timeout_s: float = 10.0) -> int:
    """Kills and reaps every descendant of this process; counts them. For a guardian, whose only descendants are its
    trial's.
    """
    swept = 0
    deadline = time.monotonic() + timeout_s
    while has_children() and time.monotonic() < deadline:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
                swept += 1
        _reap(deadline)
    return swept


def descendants() -> list[int]:
    """Every process that this one, or one of its descendants, has started and that is not yet reaped."""
    return [child.pid for child in psutil.Process().children(recursive=True)]


def sweep_marked(matches: Callable[[str], bool], *, timeout_s: float = 10.0) -> list[int]:
    """Kills every process of this user whose mark `matches`, until none is left; which those were."""
    swept = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = [
            process for process in psutil.process_iter() if process.pid != os.getpid() and matches(_mark_of(process))
        ]
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                swept.append(process.pid)
        psutil.wait_procs(found, timeout=1)
    return swept


def find_marked(mark: str) -> list[int]:
    """Every process of this user that carries exactly this mark."""
    return [process.pid for process in psutil.process_iter() if _mark_of(process) == mark]


def _mark_of(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARK, ""))
    except (psutil.Error, OSError):
        return ""


def _reap(deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return
        if found is None:
            time.sleep(0.005)
            return
