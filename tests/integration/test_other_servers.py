"""FLOWCTL_BROKER_URL: the whole path over a plain server, a socket, TLS, and Sentinel with a failover in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import FLOWCTL, WAIT_S, Cluster
from server import eventually
from tls_front import make_certificate, tls_front
from trial_scripts import body, epochs

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import connect
from flowctl.broker.errors import BrokerError
from flowctl.broker.server_binary import find_binary
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker

PASSWORD = "pass/word@x"
QUOTED = "pass%2Fword%40x"


@contextmanager
def served(folder: Path, *lines: str, sentinel: bool = False, password: str = PASSWORD) -> Iterator[int]:
    """The server program with these lines; its pid. It is ended by SIGKILL."""
    folder.mkdir()
    config = folder / "server.conf"
    login = [f"requirepass {password}", f"masterauth {password}"] if password and not sentinel else []
    config.write_text("\n".join([f"dir {folder}", 'save ""' if not sentinel else "", *login, *lines, ""]))
    command = [str(find_binary(os.environ).path), str(config), *(["--sentinel"] if sentinel else [])]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)


@contextmanager
def used(cluster: Cluster, url: str) -> Iterator[None]:
    """The cluster with this server instead of an embedded one; at the end everything is checked there."""
    own, cluster.env = cluster.env, {**cluster.env, "FLOWCTL_BROKER_URL": url, "FLOWCTL_SECRET_KEY": "k" * 64}
    eventually(lambda: answers(url), deadline_s=WAIT_S, what="the server's start")
    vars(cluster)["broker"] = Broker.connect(Settings.from_env(cluster.env))
    try:
        yield
        for worker in cluster.workers:
            assert worker.stop() == 0, worker.text()
        cluster.check()
        assert not (cluster.home / "server").exists(), "an embedded server was started beside it"
    finally:
        for worker in cluster.workers:
            worker.kill()
        del cluster.broker
        cluster.env = own


def answers(url: str) -> bool:
    try:
        connect(url).close()
    except BrokerError:
        return False
    return True


def whole_path(cluster: Cluster) -> None:
    """Submit, work, results, log; the password is in no text and no argument."""
    worker = cluster.worker(cpu=2)
    run = cluster.submit(body("print('hello')\nkeep(1)\nnote('ran', me.trial)", trials=3))
    cluster.wait(run)
    assert [trial["status"] for trial in cluster.results(run)] == ["completed"] * 3
    assert sorted(cluster.lines("ran")) == ["0", "1", "2"]
    assert cluster.flowctl("logs", f"{run}/0").stdout == "hello\n"
    said = cluster.flowctl("doctor").stdout + cluster.flowctl("up").stdout + worker.text()
    assert PASSWORD not in said and QUOTED not in said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_plain_server_with_a_password_on_another_database(cluster: Cluster, scheme: str) -> None:
    port = free_port()
    url = f"{scheme}://:{QUOTED}@127.0.0.1:{port}/3"
    with served(cluster.root / "plain", f"port {port}", "bind 127.0.0.1"), used(cluster, url):
        whole_path(cluster)

        space = cluster.client.info("keyspace")
        assert set(space) == {"db3"}


@pytest.mark.parametrize("form", ["unix://:{password}@{path}?db=2", "redis+socket://:{password}@{path}?virtual_host=2"])
def test_a_server_on_a_socket(cluster: Cluster, form: str) -> None:
    path = cluster.root / "s.sock"
    url = form.format(password=QUOTED, path=path)
    with served(cluster.root / "plain", "port 0", f"unixsocket {path}"), used(cluster, url):
        whole_path(cluster)

        assert set(cluster.client.info("keyspace")) == {"db2"}


def test_a_server_behind_tls(cluster: Cluster) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command here")
    certificate, key = make_certificate(cluster.root)
    port = free_port()
    with (
        served(cluster.root / "plain", f"port {port}", "bind 127.0.0.1"),
        tls_front(certificate, key, to_port=port) as front,
    ):
        url = f"rediss://:{QUOTED}@127.0.0.1:{front}/1"
        with used(cluster, f"{url}?ssl_ca_certs={certificate}"):
            whole_path(cluster)
        env = {**cluster.env, "FLOWCTL_BROKER_URL": url}
        distrusted = subprocess.run(
            [FLOWCTL, "list"], env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    assert distrusted.returncode == 4
    assert "certificate" in distrusted.stderr.lower() and len(distrusted.stderr.splitlines()) == 1


def test_a_run_goes_on_over_a_failover_by_sentinel(cluster: Cluster) -> None:
    first, second, watch = free_port(), free_port(), free_port()
    monitor = (
        f"port {watch}",
        "bind 127.0.0.1",
        f"sentinel monitor main 127.0.0.1 {first} 1",
        f"sentinel auth-pass main {PASSWORD}",
        "sentinel down-after-milliseconds main 1000",
        "sentinel failover-timeout main 5000",
    )
    root = cluster.root
    url = f"sentinel://:{QUOTED}@127.0.0.1:{watch}/0?master=main"
    with (
        served(root / "one", f"port {first}", "bind 127.0.0.1", "appendonly yes"),
        served(root / "two", f"port {second}", "bind 127.0.0.1", "appendonly yes", f"replicaof 127.0.0.1 {first}"),
        served(root / "watch", *monitor, sentinel=True),
        used(cluster, url),
    ):
        sentinel = BrokerURL(kind="redis", hosts=(("127.0.0.1", watch),)).redis_client()
        eventually(lambda: has_replica(sentinel), deadline_s=WAIT_S, what="the replica that the sentinel knows")
        cluster.worker(cpu=2)
        run = cluster.submit(epochs(trials=6, epochs=6, epoch_s=0.3))
        cluster.until(lambda: cluster.lines("0") and cluster.lines("1"), what="the first trials")

        sentinel.execute_command("SENTINEL", "FAILOVER", "main")
        cluster.until(lambda: master(sentinel) == second, what="the failover")

        assert cluster.flowctl("wait", run, timeout_s=WAIT_S).returncode == 0
        assert [trial["status"] for trial in cluster.results(run)] == ["completed"] * 6
        assert [cluster.lines(str(index))[-1] for index in range(6)] == ["kept 6"] * 6


def has_replica(sentinel: Any) -> bool:
    rows = sentinel.execute_command("SENTINEL", "REPLICAS", "main")
    return any(dict_of(row).get("master-link-status") == "ok" for row in rows)


def master(sentinel: Any) -> int:
    address = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
    return int(address[1])


def dict_of(row: Any) -> dict[str, str]:
    """A sentinel's answer, which redis-py gives as it came or as a dictionary."""
    return row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
