"""The witness: a small process beside each worker that knows for certain when one of its processes has died.

It watches the worker's main process and its pool processes by pidfd, in a session of its own, so that what kills the
worker's process group leaves it alive. A guardian that died: what is left of its trial is removed and released within
milliseconds. The main process died: the guardians go with it, everything of this boot is removed, and the server is
told, so that its trials run elsewhere without waiting for a lease.

A closed connection proves nothing; a pidfd does.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from flowctl.broker.contact import NoContact
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.dsl.errors import FlowctlError
from flowctl.workers import tree, units
from flowctl.workers.burial import Burials, await_devices
from flowctl.workers.identity import Identity

LOOK_S = 1.0
RETRY_S = 0.2
log = logging.getLogger("flowctl")

_COMMAND = "import sys; from flowctl.workers.witness import main; main(sys.argv[1:])"


def start(who: Identity) -> "subprocess.Popen[bytes]":
    """Starts the witness of this process, the worker's main one."""
    told = [who.worker, who.boot, str(who.folder), who.machine, who.scope, who.host, str(os.getpid())]
    command = [sys.executable, "-c", _COMMAND, *told]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def dismiss(process: "subprocess.Popen[bytes]") -> None:
    """The worker has ended in order and said goodbye: its witness has nothing to tell."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.write(b"over")
        process.stdin.close()


def _was_told() -> bool:
    """What the worker wrote before it ended, if it did; never waits: pool processes may hold the other end."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and os.read(0, 4) == b"over"


def main(told: list[str]) -> None:
    """The process: until the worker's main process has ended, and nothing of it is left."""
    worker, boot, folder, machine, scope, host, pid = told
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever stops the worker stops it; this process ends with it
    who = Identity(worker, boot, Path(folder), machine, scope, host, lock_fd=-1)
    try:
        watched = Watched(int(pid))
    except ProcessLookupError:
        watched = None
    Witness(who, Settings.from_env(), watched).watch()


class Watched:
    """The main process and its children, each with a pidfd that becomes readable when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.main_fd = os.pidfd_open(pid)
        self._children: dict[int, int] = {}

    def look(self) -> None:
        """Children come and go: the pool replaces its processes."""
        try:
            found = {child.pid for child in psutil.Process(self.pid).children()} - {os.getpid()}
        except psutil.NoSuchProcess:
            return
        for pid in found - self._children.keys():
            with contextlib.suppress(ProcessLookupError):
                self._children[pid] = os.pidfd_open(pid)

    def wait(self, timeout_s: float) -> tuple[bool, bool]:
        """(the main process has ended, some child has)."""
        fds = {fd: pid for pid, fd in self._children.items()}
        ready, _, _ = select.select([self.main_fd, *fds], [], [], timeout_s)
        for fd in ready:
            if fd in fds:
                os.close(self._children.pop(fds[fd]))
        return self.main_fd in ready, any(fd in fds for fd in ready)


class Witness:
    """Of one boot of a worker. `watched` is None if its main process had ended before anybody looked."""

    def __init__(self, who: Identity, settings: Settings, watched: Watched | None) -> None:
        self.who = who
        self._settings = settings
        self._watched = watched
        self._burials = Burials(who)
        self._broker: Broker | None = None

    def watch(self) -> None:
        """Returns when the worker has ended, and everything of it."""
        has_dead = False
        while self._watched is not None:
            self._watched.look()
            is_over, child_died = self._watched.wait(RETRY_S if has_dead else LOOK_S)
            if is_over:
                break
            if has_dead or child_died:
                has_dead = not self._bury_dead()
        self._end()

    # --- a guardian died ---

    def _bury_dead(self) -> bool:
        """Removes and releases what guardians left that died; False: not all of it yet."""
        dead = [file for file in units.running(self.who.units) if not file.is_alive()]
        try:
            are_buried = [self._burials.bury(self._connected(), file) for file in dead]
        except (NoContact, FlowctlError) as error:
            log.warning("the witness of %s cannot reach the server: %s", self.who.worker, error)
            self._broker = None
            return False
        return all(are_buried)

    # --- the worker ended ---

    def _end(self) -> None:
        if _was_told():
            return  # it ended in order, and has said goodbye itself
        left = units.running(self.who.units)
        for file in left:
            if file.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(file.pid, signal.SIGKILL)
        swept = tree.sweep_marked(self._is_ours)
        await_devices(left, swept)
        deadline = time.monotonic() + 10 * self._settings.lease_ttl_s  # then the server knows by itself
        while time.monotonic() < deadline:
            try:
                reply = self._connected().calls.worker_leave(self.who.boot, text=f"worker {self.who.worker} was killed")
            except (NoContact, FlowctlError):
                self._broker = None
                time.sleep(RETRY_S)
                continue
            if reply.word == "OK":
                log.warning("worker %s was killed; %s processes of it were removed", self.who.worker, len(swept))
            return

    def _is_ours(self, mark: str) -> bool:
        return mark.startswith(f"{self.who.boot}/")

    def _connected(self) -> Broker:
        if self._broker is None:
            self._broker = Broker.connect(self._settings, start=False, is_alone=True)
        return self._broker
