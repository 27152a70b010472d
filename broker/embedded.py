"""The embedded server: one per user and state folder, started on first need, shared by all, outliving who started it.

It answers on a Unix socket with a random password; TCP only after `listen`. Every write is on disk within a second, and
kill -9 of the server loses nothing that it acknowledged. A machine that loses power may lose the last second.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import ServerFacts, read_facts, translated
from flowctl.broker.errors import (
    BrokerError,
    ServerLoading,
    ServerSilent,
    ServerStartFailed,
    ServerUnreachable,
    SettingError,
)
from flowctl.broker.server_binary import ServerBinary, find_binary
from flowctl.broker.server_folder import (
    ServerFolder,
    ServerRecord,
    bind_words,
    check_downgrade,
    check_host,
    starters_turn,
    stopped,
    this_boot,
    try_lock,
)
from flowctl.broker.state_folder import kept_on_disk, make_private

START_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 600.0
"""How long a server may read its data; it says LOADING meanwhile."""

STOP_TIMEOUT_S = 60.0
KEPT_VARIABLES = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")
SPAWN = '"$0" "$1" </dev/null >>"$2" 2>&1 &'


@dataclass(frozen=True)
class ServerInfo:
    """The running embedded server. `listen` is its TCP address, None if it has a socket only."""

    pid: int
    socket: str
    product: str
    version: str
    started_ms: int
    listen: tuple[str, int] | None
    url: BrokerURL


def ensure_server(state: Path, *, env: Mapping[str, str] | None = None) -> BrokerURL:
    """Starts the server of this state folder unless it runs, and returns its address once it answers.

    Idempotent, and safe from any number of processes at once: they get the same server.
    """
    return _brought_up(state, env=env, is_asked_for=True)


def revive_server(state: Path, *, env: Mapping[str, str] | None = None) -> BrokerURL:
    """As `ensure_server`, for those that nobody told to start one: raises ServerUnreachable after `stop_server`."""
    return _brought_up(state, env=env, is_asked_for=False)


def _brought_up(state: Path, *, env: Mapping[str, str] | None, is_asked_for: bool) -> BrokerURL:
    running = running_server(state)
    if running is not None:
        return running.url
    with kept_on_disk(state):
        folder = _opened(state)
        with starters_turn(folder, timeout_s=START_TIMEOUT_S + LOAD_TIMEOUT_S):
            running = running_server(state)
            if running is not None:
                return running.url
            before = folder.read_record()
            if not is_asked_for and (before is None or before.is_stopped):
                raise ServerUnreachable(
                    "the server of this state folder was stopped", place=str(state), cure="start it with `flowctl up`"
                )
            return _start(folder, listen=before.listen if before else None, env=os.environ if env is None else env)


def running_server(state: Path) -> ServerInfo | None:
    """The server of this state folder, or None. Waits while it loads; raises if it is stuck or on another machine."""
    folder = ServerFolder(state)
    record = folder.read_record()
    if record is None or record.is_stopped:
        return None
    check_host(record, state)
    try:
        facts = _facts_when_loaded(folder, record)
    except ServerSilent as error:
        raise _stuck(folder) from error
    except ServerUnreachable:
        return None
    return ServerInfo(
        pid=facts.pid,
        socket=record.socket,
        product=facts.product,
        version=facts.version,
        started_ms=record.started_ms,
        listen=record.listen,
        url=folder.url(record),
    )


def stop_server(state: Path) -> bool:
    """Stops the server in good order and waits until its process is gone; False if none was running."""
    folder = ServerFolder(state)
    if folder.read_record() is None:
        return False
    with kept_on_disk(state), starters_turn(folder, timeout_s=START_TIMEOUT_S):
        running, record = running_server(state), folder.read_record()
        if record is None:
            return False
        if running is not None:
            _shut_down(folder, running)
        elif (descriptor := try_lock(folder.server_lock)) is not None:
            os.close(descriptor)
        else:
            raise _stuck(folder)
        folder.remove_socket(record)
        folder.write_record(stopped(record))
        return running is not None


def listen(state: Path, *, address: tuple[str, int] | None, env: Mapping[str, str] | None = None) -> ServerInfo:
    """Serves the same data also on TCP at `address` (host to bind, port), or no longer (None); a restart keeps it.

    The running server is changed in place, so nothing that runs notices.
    """
    folder = _opened(state)
    with kept_on_disk(state), starters_turn(folder, timeout_s=START_TIMEOUT_S + LOAD_TIMEOUT_S):
        running, record, password = running_server(state), folder.read_record(), folder.read_password()
        if running is None or record is None or password is None:
            _start(folder, listen=address, env=os.environ if env is None else env)
        elif record.listen != address:
            _set_port(running.url, address)
            changed = replace(record, listen=address)
            folder.write_config(changed, password=password)
            folder.write_record(changed)
        running = running_server(state)
    if running is None:
        raise ServerUnreachable("the server stopped meanwhile", place=str(state), cure="try again")
    return running


def _set_port(url: BrokerURL, address: tuple[str, int] | None) -> None:
    from redis.exceptions import ResponseError

    bind, port = address or ("127.0.0.1", 0)
    client = url.redis_client()
    try:
        with translated(url):
            client.execute_command("CONFIG", "SET", "bind", bind_words(bind), "port", port)
    except BrokerError as error:
        if isinstance(error.__cause__, ResponseError):
            raise SettingError(
                f"the server cannot listen there ({error.__cause__})",
                place=f"{bind}:{port}",
                cure="use a free port, and an address of this machine (or 0.0.0.0)",
            ) from error
        raise
    finally:
        client.close()


def _opened(state: Path) -> ServerFolder:
    make_private(state)
    folder = ServerFolder(state)
    make_private(folder.path)
    make_private(folder.data)
    return folder


def _facts_when_loaded(folder: ServerFolder, record: ServerRecord) -> ServerFacts:
    url = folder.url(record)
    # A health check is a PING at each connect, which a loading server refuses; INFO it answers.
    client = url.redis_client(health_check_interval=0)
    deadline = time.monotonic() + LOAD_TIMEOUT_S
    try:
        while True:
            with translated(url):
                facts = read_facts(client)
            if not facts.is_loading:
                return facts
            if time.monotonic() > deadline:
                raise ServerLoading(
                    f"the embedded server has been reading its data for {LOAD_TIMEOUT_S:g} s",
                    place=str(folder.state),
                    cure=f"see {folder.log}",
                )
            time.sleep(0.01)
    finally:
        client.close()


def _start(folder: ServerFolder, *, listen: tuple[str, int] | None, env: Mapping[str, str]) -> BrokerURL:
    before = folder.read_record()
    check_host(before, folder.state)
    binary = find_binary(env)
    if folder.has_data():
        check_downgrade(before, binary, folder.state)
    lock = _take_server_lock(folder)
    try:
        record = ServerRecord(
            host=socket.gethostname(),
            boot=this_boot(),
            socket=folder.place_socket(before),
            product=binary.product,
            version=binary.version,
            started_ms=time.time_ns() // 1_000_000,
            listen=listen,
        )
        # Both are written before the server exists: if this process dies now, the next one finds the server by them.
        folder.write_config(record, password=folder.read_password() or secrets.token_hex(32))
        folder.write_record(record)
        log_size = folder.log.stat().st_size if folder.log.exists() else 0
        _spawn(folder, binary, lock=lock, env=env)
    finally:
        os.close(lock)
    try:
        _wait_until_up(folder, record, log_size=log_size)
    except ServerStartFailed:
        if before is None:
            folder.forget_record()
        else:
            folder.write_record(before)
        raise
    return folder.url(record)


def _take_server_lock(folder: ServerFolder) -> int:
    """A killed server's fork that rewrites the log may hold the lock a moment longer than the server."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (lock := try_lock(folder.server_lock)) is None:
        if time.monotonic() > deadline:
            raise _stuck(folder)
        time.sleep(0.005)
    return lock


def _spawn(folder: ServerFolder, binary: ServerBinary, *, lock: int, env: Mapping[str, str]) -> None:
    """In a session of its own, handed over to init by a shell that ends at once; inherits the lock and no secrets."""
    os.close(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    subprocess.run(
        ["/bin/sh", "-c", SPAWN, str(binary.path), str(folder.config), str(folder.log)],
        pass_fds=(lock,),
        start_new_session=True,
        cwd=folder.path,
        env={name: env[name] for name in KEPT_VARIABLES if name in env},
        check=True,
    )


def _wait_until_up(folder: ServerFolder, record: ServerRecord, *, log_size: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            _facts_when_loaded(folder, record)
            return
        except ServerUnreachable as error:
            died = try_lock(folder.server_lock)
            if died is None and time.monotonic() < deadline:
                time.sleep(0.005)
                continue
            if died is not None:
                os.close(died)
            raise ServerStartFailed(
                f"the embedded server did not start: {folder.log_tail(since=log_size)}",
                place=str(folder.state),
                cure=f"see {folder.log}",
            ) from error


def _shut_down(folder: ServerFolder, running: ServerInfo) -> None:
    from redis.exceptions import ConnectionError as Closed

    client = running.url.redis_client(socket_timeout=STOP_TIMEOUT_S)
    try:
        # The server closes the connection instead of an answer.
        with translated(running.url), suppress(Closed):
            client.execute_command("SHUTDOWN")
    finally:
        client.close()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (lock := try_lock(folder.server_lock)) is None:
        if time.monotonic() > deadline:
            raise _stuck(folder)
        time.sleep(0.005)
    os.close(lock)


def _stuck(folder: ServerFolder) -> ServerStartFailed:
    return ServerStartFailed(
        "a server process holds this folder's data but does not answer",
        place=str(folder.state),
        cure=f"see {folder.log}, and end the process that holds {folder.server_lock}",
    )
