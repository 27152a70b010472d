"""A worker exactly as docker-compose.yml starts it, beside a real server with the configuration that the file holds.

Only what belongs to containers is mapped: folders into a temporary one, the server's name and port to this machine's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import WAIT_S, Cluster
from server import eventually
from trial_scripts import body

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import connect
from flowctl.broker.errors import ServerUnreachable
from flowctl.broker.server_binary import find_binary

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
GIVEN = {"FLOWCTL_PASSWORD": "compose0password", "FLOWCTL_SECRET_KEY": "k" * 64}


def rendered() -> dict[str, Any]:
    """The file as Docker Compose understands it; skips where there is none."""
    program = shutil.which("docker-compose", path=f"{BIN}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("Docker Compose is not packaged for this platform")
    command = [program, "-f", str(ROOT / "docker-compose.yml"), "--profile", "*", "config", "--format", "json"]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **GIVEN}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=env, check=True)
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_the_worker_of_the_file_finishes_a_run_submitted_with_the_environment_of_its_command_line(
    cluster: Cluster,
) -> None:
    file = rendered()
    services = file["services"]
    folder = cluster.root / "compose"
    with served(file["configs"]["server_conf"]["content"], services["server"], folder) as port:
        worker, cli = (mapped(services[name]["environment"], folder, port) for name in ("worker", "cli"))
        assert services["worker"]["command"] == ["worker"] and services["worker"].get("entrypoint") is None
        started = start(cluster, services["worker"]["command"], worker, "worker")
        try:
            own, cluster.env = cluster.env, {**shell(cluster), **cli, "FLOWCTL_HOME": str(cluster.home)}
            run = cluster.submit(body("note('ran', os.environ.get('FLOWCTL_BROKER_URL'))\nkeep(1)", trials=3))
            assert cluster.flowctl("wait", run).returncode == 0
            results = cluster.results(run)
            workers = cluster.json("workers")["workers"]
            shown = cluster.flowctl(*services["cli"]["command"]).stdout
            started.terminate()
            assert started.wait(WAIT_S) == 0
            cluster.check()
        finally:
            end(started)
        del cluster.broker
        cluster.env = own

    assert [trial["status"] for trial in results] == ["completed"] * 3
    assert cluster.lines("ran") == ["None"] * 3
    assert len(workers) == 1 and workers[0]["offer"]["cpu"] >= 1
    assert run in shown
    assert (folder / "runs" / run / "run.json").exists()


def test_the_worker_of_the_file_waits_for_no_embedded_server(cluster: Cluster) -> None:
    """Without the server it says so in a line; the container's restart policy starts it again."""
    file = rendered()
    env = mapped(file["services"]["worker"]["environment"], cluster.root / "compose", free_port())

    started = start(cluster, file["services"]["worker"]["command"], env, "worker")

    assert started.wait(WAIT_S) == 4
    assert "cannot reach the server" in (cluster.root / "worker.log").read_text()
    assert not (Path(env["FLOWCTL_HOME"]) / "server").exists()


@contextmanager
def served(content: str, service: dict[str, Any], folder: Path) -> Iterator[int]:
    """The server program with the file's configuration, given as the file gives it; its port."""
    assert service["command"] == ["valkey-server", "/etc/flowctl/server.conf"]
    port = free_port()
    lines = {"dir /data": f"dir {folder}/data", "port 6379": f"port {port}", "bind * -::*": "bind 127.0.0.1"}
    text = content.splitlines()
    assert set(lines) <= set(text)
    (folder / "data").mkdir(parents=True)
    config = folder / "server.conf"
    config.write_text("\n".join(lines.get(line, line) for line in text) + "\n")
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [find_binary(os.environ).path, config], stdout=log, stderr=log, start_new_session=True
        )
    url = BrokerURL(kind="redis", hosts=(("127.0.0.1", port),), password=GIVEN["FLOWCTL_PASSWORD"])
    try:
        eventually(lambda: process.poll() is not None or is_up(url), what="the server's start")
        assert process.poll() is None, (folder / "server.log").read_text()
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)


def is_up(url: BrokerURL) -> bool:
    try:
        connect(url).close()
    except ServerUnreachable:
        return False
    return True


def mapped(environment: dict[str, str], folder: Path, port: int) -> dict[str, str]:
    """The file's environment, with the image's, for this machine."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    found = {key: value or "" for key, value in environment.items()}
    assert found["FLOWCTL_BROKER_URL"].endswith("@server:6379/0") and found["FLOWCTL_STORAGE"] == "/runs"
    found["FLOWCTL_BROKER_URL"] = found["FLOWCTL_BROKER_URL"].replace("server:6379", f"127.0.0.1:{port}")
    image = dict(pair.split("=", 1) for pair in image_environment().split())
    return {**image, **found, "FLOWCTL_STORAGE": f"{folder}/runs", "FLOWCTL_HOME": f"{folder}/home"}


def image_environment() -> str:
    """What the Dockerfile sets."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("ENV ")).removeprefix("ENV ")


def shell(cluster: Cluster) -> dict[str, str]:
    return {"PATH": f"{BIN}:{os.defpath}", "HOME": str(cluster.root)}


def start(cluster: Cluster, command: list[str], env: dict[str, str], name: str) -> subprocess.Popen[bytes]:
    """The image's entry point with a service's command, in an environment that holds nothing else."""
    with (cluster.root / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [f"{BIN}/flowctl", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**shell(cluster), **env, "SIDE": str(cluster.side)},
            cwd=cluster.root,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
