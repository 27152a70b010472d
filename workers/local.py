"""A worker of this machine as a child process, for `flowctl run`: it takes one run only and ends with its starter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from flowctl.broker.settings import Settings
from flowctl.broker.state_folder import kept_on_disk
from flowctl.broker.store import Broker


class LocalWorker:
    """A started worker. Its log is `log`."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, log: Path) -> None:
        self._process = process
        self.log = log
        self.pid = process.pid

    @classmethod
    def start(
        cls, settings: Settings, *, run: str | None, resources: str | None = None, slots: int | None = None
    ) -> "LocalWorker":
        """Starts it in a session of its own, so that Ctrl-C at the terminal reaches only its starter."""
        logs = settings.home / "logs"
        log = logs / f"worker-{os.getpid()}.log"
        with kept_on_disk(settings.home):
            logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = log.open("ab")
        command = [sys.executable, "-m", "flowctl.workers.local", str(os.getpid())]
        env = dict(os.environ)
        for name, value in (("FLOWCTL_ONLY_RUN", run), ("FLOWCTL_RESOURCES", resources), ("FLOWCTL_SLOTS", slots)):
            if value is not None:
                env[name] = str(value)
        with file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=env,
                start_new_session=True,
                cwd=settings.home,
            )
        return cls(process, log=log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self, grace_s: float = 15.0) -> None:
        """Drains it: trials are asked to end and go back to pending; after the grace it is killed."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def dismiss(self, broker: Broker) -> None:
        """Ends it at once when its only run has ended: nothing runs there, and its starter can say so for certain."""
        self.kill()
        for boot in broker.client.zrange("fc:boots", 0, -1):
            pid, only = broker.client.hmget(f"fc:boot:{boot}", "pid", "only")
            if pid == str(self.pid) and only:
                broker.calls.worker_leave(boot, text="its run has ended")

    def kill(self) -> None:
        """Ends it at once. Its pool processes and their trials die with it."""
        self._process.kill()
        self._process.wait()


def _main(parent: int) -> int:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 0
    from flowctl.workers.launch import Options, main

    return main(Options(run=os.environ.get("FLOWCTL_ONLY_RUN") or None))


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
