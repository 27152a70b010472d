"""`flowctl doctor`: every check has a verdict and a cure; it starts nothing and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server import bare_server, server_processes

from flowctl.broker.doctor import server_checks
from flowctl.broker.embedded import ensure_server
from flowctl.cli.doctor import all_checks


def flowctl(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command as a person runs it, with these variables more."""
    command = [sys.executable, "-c", "from flowctl.cli.main import main; main()", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@pytest.fixture
def env(home: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a person with a state folder and a storage of their own."""
    return {**os.environ, "FLOWCTL_HOME": str(home), "FLOWCTL_STORAGE": str(tmp_path / "runs")}


def verdicts(env: dict[str, str]) -> dict[str, str]:
    return {check.name: check.verdict for check in all_checks(env)}


def test_doctor_on_a_fresh_machine_warns_of_what_is_not_there_yet(env: dict[str, str], home: Path) -> None:
    found = verdicts(env)

    assert {name for name, verdict in found.items() if verdict == "warn"} == {"key", "server"}
    assert "fail" not in found.values()
    assert list(home.iterdir()) == []
    assert server_processes(home) == []
    assert not Path(env["FLOWCTL_STORAGE"]).exists()


def test_doctor_judges_the_running_server(env: dict[str, str], home: Path) -> None:
    ensure_server(home)

    found = verdicts(env)

    names = {name for name in found if name.startswith("server ")}
    assert names == {
        f"server {part}"
        for part in ("program", "version", "mode", "role", "memory policy", "memory", "persistence", "rights", "schema")
    }
    assert {found[name] for name in names} == {"ok"}
    assert (found["server"], found["clock"], found["workers"]) == ("ok", "ok", "warn")


def test_doctor_names_unknown_variables_with_the_nearest(env: dict[str, str]) -> None:
    checks = [check for check in all_checks({**env, "FLOWCTL_STORGE": "x"}) if check.name == "variables"]

    assert [(check.verdict, check.detail, check.cure) for check in checks] == [
        ("warn", "nothing reads FLOWCTL_STORGE", "did you mean FLOWCTL_STORAGE?")
    ]


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("FLOWCTL_BROKER_URL", "unix:///nowhere/s.sock", "server"),
        ("FLOWCTL_BROKER_URL", "ftp://h", "settings"),
        ("FLOWCTL_LEASE_TTL_S", "1", "settings"),
        ("FLOWCTL_SERVER_BINARY", "/nowhere/server", "server program"),
        ("FLOWCTL_SECRET_KEY", "short", "key"),
        ("FLOWCTL_STORAGE", "/proc/flowctl/runs", "storage"),
        ("FLOWCTL_STORAGE", "nothing://x", "storage"),
    ],
)
def test_doctor_fails_on_what_must_be_mended(env: dict[str, str], variable: str, value: str, name: str) -> None:
    checks = [check for check in all_checks({**env, variable: value}) if check.verdict == "fail"]

    assert [check.name for check in checks] == [name]
    assert checks[0].cure


def test_doctor_fails_on_a_state_folder_that_others_may_write_to(env: dict[str, str], home: Path) -> None:
    home.chmod(0o777)

    assert verdicts(env)["state folder"] == "fail"


def test_server_checks_name_every_fault_at_once() -> None:
    with bare_server("maxmemory 1", "maxmemory-policy allkeys-lru") as server:
        checks = {check.name: check for check in server_checks(server.url)}

    assert checks["server memory policy"].verdict == "fail"
    assert checks["server memory"].verdict == "fail"
    assert checks["server persistence"].verdict == "warn"
    assert "workers" not in checks


def test_server_checks_of_a_wrong_password_show_no_secret() -> None:
    with bare_server("requirepass right", password="s3cr3tword") as server:
        checks = server_checks(server.url)

    assert [(check.name, check.verdict) for check in checks] == [("server", "fail")]
    assert "s3cr3tword" not in repr(checks)


def test_command_prints_one_strict_object(env: dict[str, str]) -> None:
    answer = flowctl("doctor", "--json", **env)

    body: dict[str, Any] = json.loads(answer.stdout)

    assert (answer.returncode, body["format"], body["kind"]) == (0, 1, "doctor")
    assert {frozenset(check) for check in body["checks"]} == {frozenset({"name", "verdict", "detail", "cure"})}


def test_command_in_a_pipe_prints_one_plain_line_per_check(env: dict[str, str]) -> None:
    answer = flowctl("doctor", **{**env, "FLOWCTL_BROKER_URL": "unix:///nowhere/s.sock"})

    assert answer.returncode == 4
    assert "\x1b" not in answer.stdout
    assert all(line.split(maxsplit=1)[0] in ("ok", "warn", "fail") for line in answer.stdout.splitlines())
    assert any(line.startswith("fail server: unix:///nowhere/s.sock") for line in answer.stdout.splitlines())
