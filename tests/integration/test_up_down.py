"""`flowctl up` and `flowctl down`: start once, open to others, say what is running, stop."""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server import server_processes

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import connect
from flowctl.broker.embedded import ensure_server, running_server
from flowctl.broker.errors import StateFolderUnwritable
from flowctl.broker.join import JoinToken
from flowctl.broker.settings import Settings, expand_join
from flowctl.broker.state_folder import kept_on_disk
from flowctl.cli.up import reachable_name
from flowctl.storage.signing import Keyring

MAIN = "from flowctl.cli.main import main; main()"


def flowctl(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it; FLOWCTL_HOME is the test's."""
    command = [sys.executable, "-c", MAIN, *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def answered(*arguments: str, **variables: str) -> dict[str, Any]:
    answer = flowctl(*arguments, "--json", **variables)
    assert answer.returncode == 0, answer.stderr
    body: dict[str, Any] = json.loads(answer.stdout)
    assert (body["format"], body["kind"]) == (1, arguments[0])
    return body


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def put_run(client: Any, state: str) -> None:
    """A run as `list` sees it."""
    client.zadd("fc:runs", {"sweep": 1})
    client.hset("fc:run:sweep", mapping={"name": "sweep", "state": state, "wanted": "run", "created_ms": 1})


# up


def test_up_starts_the_server_once_and_makes_the_key(home: Path) -> None:
    first = answered("up")
    second = answered("up")

    assert (first["is_new"], second["is_new"]) == (True, False)
    assert first["pid"] == second["pid"] == server_processes(home)[0].pid
    assert first["key_id"] == second["key_id"]
    assert stat.S_IMODE((home / "secret.key").stat().st_mode) == 0o600
    assert (first["listen"], first["join"]) == (None, None)


def test_up_shows_no_password(home: Path) -> None:
    answer = flowctl("up")

    running = running_server(home)

    assert running is not None and running.url.password not in answer.stdout + answer.stderr
    assert "started" in answer.stdout


def test_join_line_is_all_that_another_machine_needs(home: Path, tmp_path: Path) -> None:
    body = answered("up", "--listen", f"127.0.0.1:{free_port()}", "--storage", str(tmp_path / "runs"))

    variable, *rest = body["join"].split(" ")
    env = dict([variable.split("=", 1)])
    other = Settings.from_env({**env, "FLOWCTL_HOME": str(tmp_path / "other")})

    assert rest == ["flowctl", "worker"]
    assert list(env) == ["FLOWCTL_JOIN"]
    assert other.storage == body["storage"] == f"file://{tmp_path / 'runs'}"
    assert connect(str(other.broker_url)).ping()
    assert Keyring.from_env(expand_join(env), other.home, create=False).key_id == body["key_id"]


def test_up_listen_without_storage_says_that_others_can_run_nothing_yet(home: Path) -> None:
    body = answered("up", "--listen", f"127.0.0.1:{free_port()}")

    assert body["join"] is None
    assert any("can run nothing yet" in note for note in body["notes"])
    assert any("this machine only" in note for note in body["notes"])


def test_up_listen_keeps_the_running_server_and_off_takes_it_back(home: Path, tmp_path: Path) -> None:
    pid = answered("up")["pid"]

    opened = answered("up", "--listen", f"127.0.0.1:{free_port()}")
    later = answered("up", "--storage", str(tmp_path))
    closed = answered("up", "--listen", "off")

    assert [opened["pid"], later["pid"], closed["pid"]] == [pid] * 3
    assert later["listen"] == opened["listen"] is not None
    assert later["join"] is not None
    assert closed["listen"] is None


def test_up_listen_on_all_addresses_names_one_in_the_token(home: Path, tmp_path: Path) -> None:
    body = answered("up", "--listen", f"0.0.0.0:{free_port()}", "--storage", str(tmp_path))

    token = JoinToken.decode(body["join"].split(" ")[0].split("=", 1)[1])
    host = BrokerURL.parse(token.broker).hosts[0][0]

    assert host not in ("0.0.0.0", "127.0.0.1")
    assert any(f"uses {host}" in note for note in body["notes"])


def test_reachable_name_of_a_named_host_is_that_host() -> None:
    assert reachable_name("box.example") == ("box.example", None)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--listen", "here"), "--listen"),
        (("--listen", "127.0.0.1:99999"), "99999"),
        (("--listen", "203.0.113.77:7000"), "203.0.113.77:7000"),
    ],
)
def test_up_refuses_what_cannot_be_in_one_line(home: Path, arguments: tuple[str, ...], word: str) -> None:
    ensure_server(home)

    answer = flowctl("up", *arguments)

    assert (answer.returncode, answer.stdout) == (2, "")
    assert word in answer.stderr and len(answer.stderr.splitlines()) == 1


def test_up_remembers_the_storage_for_what_is_submitted_here(home: Path, tmp_path: Path) -> None:
    named = answered("up", "--storage", str(tmp_path / "runs"))
    later = answered("up")

    url = f"file://{tmp_path / 'runs'}"
    found = Settings.from_env(os.environ)
    assert (named["storage"], later["storage"], found.storage) == (url, url, url)
    assert any("submitted from here" in note for note in named["notes"])
    assert f"{url} is writable (named by flowctl up --storage)" in flowctl("doctor").stdout
    assert Settings.from_env({**os.environ, "FLOWCTL_STORAGE": "/other"}).storage == "/other"
    assert Settings.from_env({**os.environ, "FLOWCTL_BROKER_URL": "redis://other"}).storage_from is None

    forgotten = answered("up", "--storage", "off")

    assert forgotten["storage"] is None
    assert Settings.from_env(os.environ).storage_from is None


def test_up_says_where_a_shell_with_a_storage_of_its_own_submits_to(home: Path, tmp_path: Path) -> None:
    body = answered("up", "--storage", str(tmp_path / "runs"), FLOWCTL_STORAGE=str(tmp_path / "mine"))

    assert any("FLOWCTL_STORAGE is set here" in note for note in body["notes"])


def test_up_with_a_storage_that_cannot_be_written_starts_nothing(home: Path) -> None:
    answer = flowctl("up", "--listen", f"127.0.0.1:{free_port()}", "--storage", "/proc/flowctl")

    assert answer.returncode in (4, 5)
    assert len(answer.stderr.splitlines()) == 1
    assert server_processes(home) == []


def test_up_with_another_server_checks_it_and_starts_none(home: Path, server: BrokerURL) -> None:
    body = answered("up", FLOWCTL_BROKER_URL=server.url())
    refused = flowctl("up", "--listen", "0.0.0.0:7000", FLOWCTL_BROKER_URL=server.url())

    assert body["server"] == server.safe()
    assert server_processes(home) == []
    assert refused.returncode == 2


# a full disk


@pytest.mark.parametrize("arguments", [("status",), ("list",), ("up",)])
def test_a_state_folder_that_takes_no_writes_is_one_line_with_place_and_cure(
    home: Path, arguments: tuple[str, ...]
) -> None:
    Keyring.from_env({}, home, create=True)  # `up` makes it first
    command = [sys.executable, "-c", f"import resource; resource.setrlimit({resource.RLIMIT_FSIZE}, (0, 0)); {MAIN}"]

    answer = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)

    assert answer.returncode == 4, answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert str(home) in answer.stderr and "cannot write" in answer.stderr and "make room" in answer.stderr
    assert server_processes(home) == []
    assert list((home / "server").glob(".server*")) == []


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    expected = pytest.raises(StateFolderUnwritable, match=r"cannot write .*No space left on device")
    with expected as caught, kept_on_disk(tmp_path):
        Path("/dev/full").write_text("x")

    assert caught.value.place == str(tmp_path)


# down


def test_down_stops_an_unused_server(home: Path) -> None:
    pid = answered("up")["pid"]

    first, second = answered("down"), answered("down")

    assert (first["stopped"], first["pid"]) == (True, pid)
    assert second["stopped"] is False
    assert server_processes(home) == []


def test_down_refuses_while_a_run_is_active_and_names_it(home: Path) -> None:
    client = connect(ensure_server(home))
    put_run(client, "running")

    refused = flowctl("down")
    assert running_server(home) is not None
    forced = answered("down", "--force")

    assert refused.returncode == 5
    assert "1 run active" not in refused.stdout
    assert "sweep" in refused.stderr and "--force" in refused.stderr
    assert (forced["stopped"], forced["runs"]) == (True, ["sweep"])
    client.close()


def test_down_refuses_while_a_worker_is_up(home: Path) -> None:
    client = connect(ensure_server(home))
    seconds, _ = client.time()
    client.zadd("fc:boots", {"boot1": int(seconds) * 1000 + 1000})
    client.hset("fc:boot:boot1", mapping={"worker": "w1", "state": "up", "host": "h"})

    refused = flowctl("down")

    assert refused.returncode == 5
    assert "1 worker (w1) up" in refused.stderr
    client.close()


def test_down_names_the_variable_that_names_another_server(home: Path, server: BrokerURL) -> None:
    token = JoinToken(broker=server.url(), key="k" * 64, storage="/s").encode()

    said = flowctl("down", FLOWCTL_JOIN=token).stdout

    assert "FLOWCTL_JOIN names a server" in said and "FLOWCTL_BROKER_URL" not in said


def test_down_does_not_mind_ended_runs(home: Path) -> None:
    client = connect(ensure_server(home))
    put_run(client, "completed")

    assert answered("down")["stopped"] is True
    client.close()
