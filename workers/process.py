"""How a trial process is started, watched and removed: the one narrow seam (start, process handle, exit status).

A fresh interpreter in a session of its own. Nothing else may depend on being its parent: a fork server is meant to
stand behind this seam later.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flowctl.broker.settings import SECRETS
from flowctl.workers import tree

_COMMAND = "import sys; from flowctl.workers.trial_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"


@dataclass(frozen=True)
class Exit:
    """How a process ended: an exit code, or the signal that killed it."""

    code: int | None
    signal: int | None


class TrialProcess:
    """One started process. `pidfd` becomes readable when it has ended."""

    def __init__(self, popen: "subprocess.Popen[bytes]", *, output_fd: int, mark: str) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.pidfd = os.pidfd_open(popen.pid)
        self.output_fd = output_fd
        self.mark = mark

    @classmethod
    def start(cls, *, channel_fd: int, folder: Path, mark: str, env: Mapping[str, str]) -> "TrialProcess":
        """Starts the interpreter in `folder`; stdout and stderr come through `output_fd`. `mark` is its
        FLOWCTL_ATTEMPT. `env` is the worker's environment as its grant changes it; no secret of it gets through.
        """
        clean = {name: value for name, value in env.items() if name not in SECRETS}
        clean |= {tree.MARK: mark, "PYTHONUNBUFFERED": "1"}
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            popen = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(channel_fd), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                cwd=folder,
                env=clean,
                pass_fds=(channel_fd,),
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        os.set_blocking(read_fd, False)
        return cls(popen, output_fd=read_fd, mark=mark)

    def terminate(self) -> None:
        """Asks the process alone to end (SIGTERM): user code sees TrialStopped. What it started is swept later."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        """Ends the process and its session at once."""
        tree.kill_session(self.pid)

    def wait(self) -> Exit:
        """Reaps the process; call it when `pidfd` is readable."""
        code = self._popen.wait()
        return Exit(code=None, signal=-code) if code < 0 else Exit(code=code, signal=None)

    def sweep(self) -> int:
        """Removes everything that is left of its tree; returns how many processes that were."""
        tree.kill_session(self.pid)
        return tree.sweep_children()

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self.pidfd)
        os.close(self.output_fd)
