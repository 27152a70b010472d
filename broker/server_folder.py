"""What the embedded server leaves in the state folder: its configuration, record, locks, log, socket and data.

Invariant: whoever holds `server.lock` is the only server on this data. The server inherits the lock's descriptor and so
holds it exactly as long as it lives; whoever starts or stops one holds `start.lock` meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import version_numbers
from flowctl.broker.errors import DowngradeRefused, ServerStartFailed, StateFolderRefused
from flowctl.broker.server_binary import ServerBinary

LONGEST_SOCKET_PATH = 100
"""Bytes. The kernel's bound is 107, some systems' 103."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CONFIG = """\
# Written by flowctl; changes are lost at the next start. Mode 600: it holds the password.
bind {bind}
port {port}
unixsocket {socket}
unixsocketperm 600
requirepass "{password}"
dir {data}
daemonize no
pidfile ""
logfile ""
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""


@dataclass(frozen=True)
class ServerRecord:
    """Who runs, or ran, on the data. `product` and `version` wrote it; `listen` is the TCP address served, or None."""

    host: str
    boot: str
    socket: str
    product: str
    version: str
    started_ms: int
    is_stopped: bool = False
    listen: tuple[str, int] | None = None


class ServerFolder:
    """The paths under `<state>/server`, and reading and writing them whole."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.path = state / "server"
        self.config = self.path / "server.conf"
        self.record_path = self.path / "server.json"
        self.log = self.path / "server.log"
        self.data = self.path / "data"
        self.server_lock = self.path / "server.lock"
        self.start_lock = self.path / "start.lock"

    def read_record(self) -> ServerRecord | None:
        """None if no server was ever started here."""
        try:
            fields = json.loads(self.record_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        listen = fields.get("listen")
        known = {name: fields[name] for name in ServerRecord.__dataclass_fields__ if name in fields}
        return ServerRecord(**{**known, "listen": (str(listen[0]), int(listen[1])) if listen else None})

    def write_record(self, record: ServerRecord) -> None:
        """Replaces the record whole."""
        _write_private(self.record_path, json.dumps({"format": 1, **asdict(record)}, indent=1) + "\n")

    def forget_record(self) -> None:
        """For a first start that failed: no server ever wrote here."""
        self.record_path.unlink(missing_ok=True)

    def write_config(self, record: ServerRecord, *, password: str) -> None:
        """Replaces the server's configuration whole."""
        bind, port = record.listen or ("127.0.0.1", 0)
        text = CONFIG.format(
            bind=bind_words(bind),
            port=port,
            socket=_quoted(record.socket),
            password=password,
            data=_quoted(str(self.data)),
        )
        _write_private(self.config, text)

    def read_password(self) -> str | None:
        """The password that the running server was started with; None before the first start."""
        try:
            found = re.search(r'^requirepass "([0-9a-f]+)"$', self.config.read_text(encoding="utf-8"), re.MULTILINE)
        except FileNotFoundError:
            return None
        return found.group(1) if found else None

    def url(self, record: ServerRecord) -> BrokerURL:
        """The address of this folder's server, by its socket."""
        return BrokerURL(kind="unix", path=record.socket, password=self.read_password() or "")

    def has_data(self) -> bool:
        """Whether a server ever wrote data here."""
        return self.data.is_dir() and any(self.data.iterdir())

    def place_socket(self, before: ServerRecord | None) -> str:
        """The socket's path: here, or in a short private folder if the path is too long for the kernel."""
        here = self.path / "server.sock"
        if len(os.fsencode(here)) <= LONGEST_SOCKET_PATH:
            return str(here)
        if before is not None and before.socket != str(here) and _is_private(Path(before.socket).parent):
            return before.socket
        roots = [root for root in (tempfile.gettempdir(), "/tmp") if len(os.fsencode(root)) <= LONGEST_SOCKET_PATH - 30]
        return str(Path(tempfile.mkdtemp(prefix="flowctl-", dir=(roots or ["/tmp"])[0])) / "server.sock")

    def remove_socket(self, record: ServerRecord) -> None:
        """Removes what a stopped server left of its socket, and the short folder made for it."""
        path = Path(record.socket)
        path.unlink(missing_ok=True)
        if path.parent != self.path and _is_private(path.parent):
            path.parent.rmdir()

    def log_tail(self, *, since: int) -> str:
        """The last line that tells something of what the server wrote after byte `since`."""
        try:
            text = self.log.read_bytes()[since:].decode("utf-8", "replace")
        except FileNotFoundError:
            return "its log is empty"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = [line for line in lines if "# " in line or "***" in line or "rror" in line] or lines
        return told[-1] if told else "its log is empty"


def this_boot() -> str:
    """Names this start of this machine; equal in all its containers."""
    if BOOT_ID.exists():
        return BOOT_ID.read_text().strip()
    import psutil

    return str(int(psutil.boot_time()))


def check_host(record: ServerRecord | None, state: Path) -> None:
    """Refuses a folder whose server runs on another machine: locks and sockets do not reach that far."""
    if record is None or record.is_stopped or record.boot == this_boot() or record.host == socket.gethostname():
        return
    raise StateFolderRefused(
        f"the server of this state folder runs on {record.host}, this is {socket.gethostname()}",
        place=str(state),
        cure="set FLOWCTL_HOME to a folder local to this machine, or run `flowctl down` there "
        f"(if that machine is gone for good, remove {state / 'server' / 'server.json'})",
    )


def check_downgrade(record: ServerRecord | None, binary: ServerBinary, state: Path) -> None:
    """Refuses a server that would not read, or would silently ignore, the data that a newer or another one wrote."""
    if record is None:
        return
    new, old = version_numbers(binary.version), version_numbers(record.version)
    # Valkey parted from Redis at 7.2: it reads what redis up to 7.2 wrote, and redis reads nothing of its.
    is_heir = record.product == "redis" and binary.product == "valkey" and old <= (7, 2)
    if not is_heir and (record.product != binary.product or new < old):
        raise DowngradeRefused(
            f"its data was written by {record.product} {record.version}, the server found is "
            f"{binary.product} {binary.version} ({binary.path})",
            place=str(state),
            cure=f"use {record.product} {'.'.join(map(str, old))} or newer, or another state folder",
        )


def try_lock(path: Path) -> int | None:
    """Takes the lock and returns its descriptor, not inheritable; None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def starters_turn(folder: ServerFolder, *, timeout_s: float) -> Iterator[None]:
    """Holds `start.lock`; ServerStartFailed if others hold it for too long."""
    deadline = time.monotonic() + timeout_s
    while (descriptor := try_lock(folder.start_lock)) is None:
        if time.monotonic() > deadline:
            raise ServerStartFailed(
                f"another process has been starting or stopping the server for {timeout_s:g} s",
                place=str(folder.start_lock),
                cure="see which process holds that file, and end it",
            )
        time.sleep(0.005)
    try:
        yield
    finally:
        os.close(descriptor)


def bind_words(host: str) -> str:
    """A host as the server's `bind` wants it."""
    return {"*": "* -::*", "::": "* -::*"}.get(host, host)


def stopped(record: ServerRecord) -> ServerRecord:
    """The record of a server that was stopped in good order: any machine may start the next one."""
    return replace(record, is_stopped=True)


def _write_private(path: Path, text: str) -> None:
    """Replaces a mode-600 file whole, durably, or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
