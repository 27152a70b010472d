"""docker-compose.yml, judged by Docker Compose itself; a real server runs with the configuration that it holds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server import bare_server

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import check_server, connect
from flowctl.broker.errors import WrongPassword
from flowctl.broker.settings import VARIABLES, Settings

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "compose0password"
GIVEN = {"FLOWCTL_PASSWORD": PASSWORD, "FLOWCTL_SECRET_KEY": "k" * 64}


def compose_program() -> str | None:
    beside = Path(sys.executable).with_name("docker-compose")
    return str(beside) if beside.exists() else shutil.which("docker-compose")


needs_compose = pytest.mark.skipif(compose_program() is None, reason="Docker Compose is not packaged for this platform")


def compose(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(compose_program()), "-f", str(ROOT / "docker-compose.yml"), "--profile", "*", *arguments]
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **env}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean, check=False)


@pytest.fixture(scope="module")
def rendered() -> dict[str, Any]:
    answer = compose("config", "--format", "json", env=GIVEN)
    assert answer.returncode == 0, answer.stderr
    loaded: dict[str, Any] = json.loads(answer.stdout)
    return loaded


@needs_compose
def test_file_passes_with_all_profiles_and_without_a_warning() -> None:
    answer = compose("config", "-q", env=GIVEN)

    assert (answer.returncode, answer.stderr) == (0, "")


@needs_compose
@pytest.mark.parametrize("missing", sorted(GIVEN))
def test_file_without_password_or_key_is_refused_by_name(missing: str) -> None:
    answer = compose("config", "-q", env={name: value for name, value in GIVEN.items() if name != missing})

    assert answer.returncode != 0
    assert f"required variable {missing}" in answer.stderr


@needs_compose
def test_profiles_are_gpu_flower_and_cli(rendered: dict[str, Any]) -> None:
    profiles = {name: service.get("profiles", []) for name, service in rendered["services"].items()}

    assert profiles == {"server": [], "worker": [], "worker-gpu": ["gpu"], "flower": ["flower"], "cli": ["cli"]}


@needs_compose
def test_ports_are_open_on_loopback_only(rendered: dict[str, Any]) -> None:
    ports = [port for service in rendered["services"].values() for port in service.get("ports", [])]

    assert len(ports) == 2
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


@needs_compose
def test_password_and_key_stand_in_no_command(rendered: dict[str, Any]) -> None:
    for service in rendered["services"].values():
        shown = json.dumps([service.get("command"), service.get("entrypoint"), service.get("healthcheck")])
        assert PASSWORD not in shown
        assert GIVEN["FLOWCTL_SECRET_KEY"] not in shown


@needs_compose
def test_workers_wait_for_the_server_scale_and_have_time_to_stop(rendered: dict[str, Any]) -> None:
    worker = rendered["services"]["worker"]

    assert worker["depends_on"]["server"]["condition"] == "service_healthy"
    assert worker["deploy"]["replicas"] == 1
    assert "container_name" not in worker
    assert "ports" not in worker
    assert worker["init"] is True
    assert worker["stop_grace_period"] == "2m0s"
    assert int(worker["shm_size"]) >= 2**30
    assert [volume["target"] for volume in worker["volumes"]] == ["/runs"]


@needs_compose
def test_gpu_profile_reserves_devices(rendered: dict[str, Any]) -> None:
    devices = rendered["services"]["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]

    assert [(device["driver"], device["count"], device["capabilities"]) for device in devices] == [
        ("nvidia", -1, ["gpu"])
    ]


@needs_compose
def test_worker_environment_is_what_settings_read(rendered: dict[str, Any], tmp_path: Path) -> None:
    read_by_flowctl = {variable.name for variable in VARIABLES if variable.reader == "flowctl"}

    for name in ("worker", "worker-gpu", "flower", "cli"):
        environment = rendered["services"][name]["environment"]
        assert {key for key in environment if key.startswith("FLOWCTL_")} <= read_by_flowctl
        settings = Settings.from_env({**environment, "FLOWCTL_HOME": str(tmp_path)})
        assert BrokerURL.parse(str(settings.broker_url)).password == PASSWORD
        assert (settings.storage, settings.lease_ttl_s) == ("/runs", 15)


def test_variables_of_the_file_are_known() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")

    assert set(re.findall(r"\$\{(FLOWCTL_[A-Z_]+)", text)) <= {variable.name for variable in VARIABLES}


@needs_compose
def test_server_runs_with_the_configuration_that_the_file_holds(rendered: dict[str, Any], tmp_path: Path) -> None:
    content = rendered["configs"]["server_conf"]["content"]
    # Exactly the file's text, but for what belongs to the container: its folder, and a port that may be taken here.
    lines = [line for line in content.splitlines() if line not in ("dir /data", "port 6379", "bind * -::*")]

    with bare_server(*lines, password=PASSWORD) as server:
        client = connect(server.url)
        facts = check_server(client, url=server.url)
        with pytest.raises(WrongPassword):
            connect(BrokerURL(kind="unix", path=server.url.path))
        client.close()

    assert len(content.splitlines()) - len(lines) == 3
    assert (facts.policy, facts.is_durable) == ("noeviction", True)


@needs_compose
def test_health_check_reads_the_password_from_the_file(rendered: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "server.conf"
    config.write_text(rendered["configs"]["server_conf"]["content"])
    kind, command = rendered["services"]["server"]["healthcheck"]["test"]
    found = re.search(r'REDISCLI_AUTH="\$+\((.*?)\)"', command)

    assert kind == "CMD-SHELL" and found is not None
    script = found.group(1).replace("/etc/flowctl/server.conf", str(config))
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.strip() == PASSWORD


def test_dockerfile_copies_what_dockerignore_lets_through() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()

    assert ignore.index("*") < ignore.index("!src")
    assert {"!src", "!dsl", "!broker", "!workers", "!storage", "!pyproject.toml", "!README.md", "!LICENSE"} <= set(
        ignore
    )
    assert 'ENTRYPOINT ["flowctl"]' in (ROOT / "Dockerfile").read_text(encoding="utf-8")
