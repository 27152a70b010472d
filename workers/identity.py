"""Who this worker is: a name that lasts, a boot id for this start, a folder for its files. One per process, made
before the pool forks.
"""

import fcntl
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowctl.dsl.errors import RefusedError


@dataclass(frozen=True)
class Identity:
    """One start of one worker. `lock_fd` holds the name on this machine for as long as the process lives."""

    worker: str
    boot: str
    folder: Path
    machine: str
    scope: str
    """Where the lock on the name holds: this machine and this state folder."""
    host: str
    lock_fd: int

    @property
    def queue(self) -> str:
        """The Celery queue of this boot alone: a restarted worker never sees old messages."""
        return f"fcq.{self.boot}"

    @property
    def units(self) -> Path:
        """Where guardians say which attempts physically run."""
        return self.folder / self.boot


def take(home: Path, *, name: str | None, scope_of: Callable[[str], str | None]) -> Identity:
    """Takes a worker's name: the given one, or the host's, then host-2, host-3, … `scope_of` says where a name that the
    server knows is held. Raises RefusedError if the given one is another's.
    """
    host, machine = socket.gethostname(), machine_id()
    workers = home / "workers"
    workers.mkdir(mode=0o700, parents=True, exist_ok=True)
    scope = hashlib.sha256(f"{machine}\0{workers.resolve()}".encode()).hexdigest()[:16]
    base = re.sub(r"[^A-Za-z0-9._-]", "-", name or host)[:60] or "worker"
    for number in range(1, 1000):
        worker = base if number == 1 else f"{base}-{number}"
        fd = _lock(workers / f"{worker}.lock") if scope_of(worker) in (None, scope) else None
        if fd is not None:
            boot = secrets.token_hex(8)
            folder = workers / worker
            (folder / boot).mkdir(mode=0o700, parents=True, exist_ok=True)
            return Identity(
                worker=worker, boot=boot, folder=folder, machine=machine, scope=scope, host=host, lock_fd=fd
            )
        if name:
            raise RefusedError(f"a worker named '{name}' runs already", cure="give another --name, or none")
    raise RefusedError("a thousand workers of this name run already")


def machine_id() -> str:
    """What tells this machine from another: FLOWCTL_MACHINE, else its boot's id where the system has one, else the host
    name.
    """
    if os.environ.get("FLOWCTL_MACHINE"):
        return os.environ["FLOWCTL_MACHINE"]
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
