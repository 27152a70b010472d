"""Real servers for tests: the embedded one in a private state folder, and bare ones with a configuration of choice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import connect
from flowctl.broker.embedded import stop_server
from flowctl.broker.server_binary import find_binary
from flowctl.dsl.errors import FlowctlError

DEADLINE_S = 20.0


def private_home() -> Path:
    """A new folder with mode 0700 and a path short enough for a socket."""
    return Path(tempfile.mkdtemp(prefix="fch-", dir="/tmp"))


def remove_home(home: Path) -> None:
    """Stops the folder's server, in good order if it can be, and removes the folder."""
    try:
        stop_server(home)
    except FlowctlError:
        pass
    finally:
        for process in server_processes(home):
            process.kill()
            process.wait(DEADLINE_S)
        shutil.rmtree(home, ignore_errors=True)


def server_processes(home: Path) -> list[psutil.Process]:
    """Every server process that was started for this state folder, zombies left out."""
    config = str(home / "server" / "server.conf")
    found = []
    for process in psutil.process_iter():
        try:
            # A running server shows its address instead of its arguments, so its open log tells whose it is.
            names = {file.path for file in process.open_files()} | set(process.cmdline())
            if {config, str(home / "server" / "server.log"), str(home / "server" / "server.lock")} & names:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return [process for process in found if process.pid != os.getpid()]


def flushed(url: BrokerURL) -> Any:
    """A client of the server, after all its data and scripts were removed."""
    client = connect(url)
    client.flushall()
    client.script_flush()
    return client


def eventually(holds: Callable[[], object], *, deadline_s: float = DEADLINE_S, what: str = "it") -> None:
    """Returns once `holds()` is true; fails the test if it is not within the deadline."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen within {deadline_s:g} s"
        time.sleep(0.01)


@dataclass(frozen=True)
class BareServer:
    """A server that a test configured itself."""

    url: BrokerURL
    pid: int


@contextmanager
def bare_server(*lines: str, password: str = "", username: str = "") -> Iterator[BareServer]:
    """Runs the server program with these configuration lines on a socket; ended by SIGKILL."""
    folder = Path(tempfile.mkdtemp(prefix="fcb-", dir="/tmp"))
    socket_path = folder / "s.sock"
    base = [f"unixsocket {socket_path}", f"dir {folder}", 'logfile ""', 'save ""', "daemonize no"]
    if not any(line.startswith("port ") for line in lines):
        base.append("port 0")
    config = folder / "server.conf"
    config.write_text("\n".join([*lines, *base, ""]))
    binary = find_binary(os.environ)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary.path, config], stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: socket_path.exists() or process.poll() is not None, what="the server's start")
        assert process.poll() is None, (folder / "log").read_text()
        yield BareServer(
            BrokerURL(kind="unix", path=str(socket_path), username=username, password=password), process.pid
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        shutil.rmtree(folder, ignore_errors=True)
