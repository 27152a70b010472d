"""The embedded server: one per state folder whatever happens to whom, durable, private, and stopped in good order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from redis.exceptions import ConnectionError as Closed
from server import eventually, server_processes

from flowctl.broker import embedded
from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import check_server, connect
from flowctl.broker.embedded import ensure_server, listen, running_server, stop_server
from flowctl.broker.errors import (
    DowngradeRefused,
    NoServerBinary,
    ServerStartFailed,
    ServerUnreachable,
    SettingError,
    StateFolderRefused,
)
from flowctl.broker.server_binary import find_binary
from flowctl.broker.server_folder import LONGEST_SOCKET_PATH, ServerFolder, try_lock
from flowctl.dsl.errors import UnreachableError

STARTER = """
import sys
from pathlib import Path
from flowctl.broker.embedded import ensure_server, running_server
home = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
url = ensure_server(home)
print(running_server(home).pid, flush=True)
sys.stdin.readline()
"""


def starter(home: Path) -> subprocess.Popen[str]:
    """A process in a session of its own that starts the server when it reads a line, and then stays."""
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pid_of(home: Path) -> int:
    running = running_server(home)
    assert running is not None
    return running.pid


def script(path: Path, answer: str) -> Path:
    """A program that only tells a version."""
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


# Starting


def test_eight_processes_at_once_get_one_server(home: Path) -> None:
    starters = [starter(home) for _ in range(8)]
    assert [hear(process) for process in starters] == ["ready"] * 8

    for process in starters:
        say(process)
    pids = {hear(process) for process in starters}

    assert len(pids) == 1
    assert [process.pid for process in server_processes(home)] == [int(pids.pop())]
    for process in starters:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_server_outlives_whoever_started_it(home: Path, number: signal.Signals) -> None:
    process = starter(home)
    hear(process)
    say(process)
    pid = int(hear(process))

    os.killpg(process.pid, number)
    process.communicate(timeout=20)

    assert pid_of(home) == pid


def test_second_start_is_the_same_server(home: Path) -> None:
    first = ensure_server(home)
    pid = pid_of(home)

    assert ensure_server(home) == first
    assert pid_of(home) == pid


def test_server_passes_its_own_checks_and_leaves_no_key(home: Path) -> None:
    url = ensure_server(home)
    client = connect(url)

    facts = check_server(client, url=url)

    assert (facts.policy, facts.is_durable, client.keys("*")) == ("noeviction", True, [])
    client.close()


def test_server_inherits_no_settings_and_no_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCTL_SECRET_KEY", "s" * 64)
    ensure_server(home)
    process = psutil.Process(pid_of(home))

    assert [name for name in process.environ() if name.startswith("FLOWCTL_")] == []
    assert process.terminal() is None
    assert os.getsid(process.pid) != os.getsid(0)
    assert Path(f"/proc/{process.pid}/fd/0").readlink() == Path("/dev/null")


# Privacy


def test_server_is_private(home: Path) -> None:
    url = ensure_server(home)
    folder, process = ServerFolder(home), psutil.Process(pid_of(home))

    assert stat.S_IMODE(Path(url.path).stat().st_mode) == 0o600
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder.config, folder.record_path, folder.log)} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder.path, folder.data)} == {0o700}
    assert len(url.password) == 64
    assert url.password not in " ".join(process.cmdline()) + " ".join(process.environ().values())
    assert process.net_connections(kind="inet") == []


def test_password_is_kept_through_restarts_so_that_addresses_stay_good(home: Path) -> None:
    url = ensure_server(home)

    stop_server(home)

    assert ensure_server(home) == url


# Death


def test_kill_of_the_server_loses_no_acknowledged_write(home: Path) -> None:
    client = connect(ensure_server(home))
    killer = threading.Timer(0.3, os.kill, (pid_of(home), signal.SIGKILL))
    acknowledged = 0

    killer.start()
    with pytest.raises(Closed):
        while True:
            acknowledged = client.incr("count")
    killer.join()
    after = connect(ensure_server(home))

    assert acknowledged > 100
    # One more may have been done without its answer.
    assert int(after.get("count")) in (acknowledged, acknowledged + 1)
    client.close()
    after.close()


def test_eight_processes_bring_a_killed_server_back_once(home: Path) -> None:
    ensure_server(home)
    killed = pid_of(home)
    starters = [starter(home) for _ in range(8)]
    assert [hear(process) for process in starters] == ["ready"] * 8

    os.kill(killed, signal.SIGKILL)
    for process in starters:
        say(process)
    pids = {int(hear(process)) for process in starters} - {killed}

    assert len(pids) == 1
    eventually(lambda: [process.pid for process in server_processes(home)] == list(pids))
    for process in starters:
        process.kill()
        process.communicate()


def test_server_that_reads_its_data_is_waited_for(home: Path, tmp_path: Path) -> None:
    client = connect(ensure_server(home))
    client.eval("for i = 1, 10000 do redis.call('SET', 'key:' .. i, string.rep('x', 50)) end", 0)
    os.kill(pid_of(home), signal.SIGKILL)
    slow = tmp_path / "slow-server"
    real = find_binary(os.environ).path
    delays = "--key-load-delay 100 --loading-process-events-interval-bytes 1024"
    slow.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} --version\nexec {real} "$1" {delays}\n')
    slow.chmod(0o755)

    url = ensure_server(home, env={**os.environ, "FLOWCTL_SERVER_BINARY": str(slow)})

    after = connect(url)
    assert after.dbsize() == 10_000
    client.close()
    after.close()


# Never two


def test_server_holds_the_lock_as_long_as_it_lives(home: Path) -> None:
    ensure_server(home)
    folder = ServerFolder(home)

    assert try_lock(folder.server_lock) is None

    os.kill(pid_of(home), signal.SIGKILL)
    eventually(lambda: not server_processes(home))
    descriptor = try_lock(folder.server_lock)
    assert descriptor is not None
    os.close(descriptor)


def test_no_second_server_is_started_beside_one_that_cannot_be_reached(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ensure_server(home)
    pid = pid_of(home)
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.2)

    Path(url.path).unlink()
    with pytest.raises(ServerStartFailed, match="holds this folder's data but does not answer"):
        ensure_server(home)

    assert [process.pid for process in server_processes(home)] == [pid]


def test_frozen_server_is_named_and_no_second_one_started(home: Path) -> None:
    ensure_server(home)
    pid = pid_of(home)

    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ServerStartFailed, match=r"server\.lock"):
            ensure_server(home)
        assert [process.pid for process in server_processes(home)] == [pid]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_folder_of_another_machine_is_refused_until_its_server_was_stopped(home: Path) -> None:
    ensure_server(home)
    folder = ServerFolder(home)
    record = folder.read_record()
    stop_server(home)
    assert record is not None
    foreign = replace(record, host="elsewhere", boot="another boot")

    folder.write_record(foreign)
    with pytest.raises(StateFolderRefused, match=r"runs on elsewhere.*FLOWCTL_HOME") as caught:
        ensure_server(home)
    folder.write_record(replace(foreign, is_stopped=True))
    ensure_server(home)

    assert caught.value.exit_code == 5


def test_restart_of_the_machine_is_no_other_machine(home: Path) -> None:
    ensure_server(home)
    folder = ServerFolder(home)
    record = folder.read_record()
    assert record is not None
    os.kill(pid_of(home), signal.SIGKILL)

    folder.write_record(replace(record, boot="the boot before"))

    assert connect(ensure_server(home)).ping()


# Versions and programs


def test_downgrade_is_refused_by_name(home: Path) -> None:
    ensure_server(home)
    stop_server(home)
    folder = ServerFolder(home)
    record = folder.read_record()
    assert record is not None

    folder.write_record(replace(record, version="99.1.0"))
    with pytest.raises(DowngradeRefused, match=r"written by valkey 99\.1\.0, the server found is valkey") as caught:
        ensure_server(home)

    assert caught.value.exit_code == 5
    assert server_processes(home) == []


def test_other_product_that_would_start_empty_is_refused(home: Path, tmp_path: Path) -> None:
    ensure_server(home)
    stop_server(home)
    program = script(tmp_path / "redis-server", "Redis server v=99.0.0 sha=0")

    with pytest.raises(DowngradeRefused, match=r"redis 99\.0\.0"):
        ensure_server(home, env={**os.environ, "FLOWCTL_SERVER_BINARY": str(program)})


@pytest.mark.parametrize(
    ("answer", "text"),
    [("Redis server v=6.2.7 sha=0", r"redis 6\.2\.7 is too old"), ("GNU tar 1.34", "no Valkey or Redis server")],
)
def test_chosen_program_that_does_not_do_is_named(home: Path, tmp_path: Path, answer: str, text: str) -> None:
    program = script(tmp_path / "server", answer)

    with pytest.raises(NoServerBinary, match=text):
        ensure_server(home, env={**os.environ, "FLOWCTL_SERVER_BINARY": str(program)})


def test_chosen_program_that_is_missing_is_named(home: Path) -> None:
    with pytest.raises(NoServerBinary, match=r"/nowhere/server: .*No such file"):
        ensure_server(home, env={**os.environ, "FLOWCTL_SERVER_BINARY": "/nowhere/server"})


def test_program_that_dies_at_once_is_an_error_with_its_last_words(home: Path, tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Valkey server v=9.9.9" && exit\necho "Fatal error: no luck"\nexit 1\n'
    )
    program.chmod(0o755)

    with pytest.raises(ServerStartFailed, match="Fatal error: no luck"):
        ensure_server(home, env={**os.environ, "FLOWCTL_SERVER_BINARY": str(program)})

    # The version that never wrote is not remembered.
    assert connect(ensure_server(home)).ping()


# Stopping


def test_stop_ends_the_process_and_keeps_the_data(home: Path) -> None:
    url = ensure_server(home)
    client = connect(url)
    client.set("kept", "yes")

    stopped = stop_server(home)

    assert stopped is True
    assert server_processes(home) == []
    assert not Path(url.path).exists()
    assert running_server(home) is None
    assert connect(ensure_server(home)).get("kept") == "yes"
    client.close()


def test_stop_of_nothing_says_so(home: Path) -> None:
    assert stop_server(home) is False

    ensure_server(home)
    stop_server(home)

    assert stop_server(home) is False


def test_stop_after_a_kill_leaves_a_folder_that_starts_anywhere(home: Path) -> None:
    ensure_server(home)
    os.kill(pid_of(home), signal.SIGKILL)
    eventually(lambda: running_server(home) is None)

    assert stop_server(home) is False

    record = ServerFolder(home).read_record()
    assert record is not None and record.is_stopped


# Long paths


def test_socket_of_a_deep_folder_moves_to_a_short_private_one(home: Path) -> None:
    deep = home / ("d" * 60) / ("e" * 60)
    url = ensure_server(deep)
    short = Path(url.path).parent

    assert len(os.fsencode(url.path)) <= LONGEST_SOCKET_PATH
    assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert connect(ensure_server(deep)).ping()

    os.kill(pid_of(deep), signal.SIGKILL)
    assert ensure_server(deep).path == url.path
    shutil.rmtree(short)
    with pytest.raises(UnreachableError):
        connect(url)
    for process in server_processes(deep):
        process.kill()
    again = ensure_server(deep)
    stop_server(deep)

    assert not Path(again.path).parent.exists()


# TCP


def test_listen_serves_the_same_data_without_a_restart_and_a_restart_keeps_it(home: Path) -> None:
    client = connect(ensure_server(home))
    client.set("seen", "by all")
    pid, port = pid_of(home), free_port()

    info = listen(home, address=("127.0.0.1", port))
    tcp = BrokerURL(kind="redis", hosts=(("127.0.0.1", port),), password=info.url.password)

    assert (info.pid, info.listen) == (pid, ("127.0.0.1", port))
    assert connect(tcp).get("seen") == "by all"
    with pytest.raises(UnreachableError, match="wants a password"):
        connect(BrokerURL(kind="redis", hosts=tcp.hosts))
    os.kill(pid, signal.SIGKILL)
    ensure_server(home)
    assert connect(tcp).get("seen") == "by all"
    client.close()


def test_listen_off_closes_the_port(home: Path) -> None:
    port = free_port()
    info = listen(home, address=("127.0.0.1", port))

    listen(home, address=None)

    with pytest.raises(ServerUnreachable):
        connect(BrokerURL(kind="redis", hosts=(("127.0.0.1", port),), password=info.url.password))
    assert connect(info.url).ping()


def test_listen_on_a_port_in_use_is_refused_and_changes_nothing(home: Path) -> None:
    ensure_server(home)
    before = running_server(home)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(SettingError, match=f"127.0.0.1:{port}: .*free port"):
            listen(home, address=("127.0.0.1", port))

    assert running_server(home) == before
    assert json.loads(ServerFolder(home).record_path.read_text())["listen"] is None


def test_start_with_a_port_that_was_taken_meanwhile_says_so_and_listen_off_cures_it(home: Path) -> None:
    port = free_port()
    listen(home, address=("127.0.0.1", port))
    stop_server(home)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ServerStartFailed, match="did not start"):
            ensure_server(home)
        assert listen(home, address=None).listen is None
