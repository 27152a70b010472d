"""The line that `flowctl up --listen` prints makes another machine a worker.

One with another home; and, where the kernel lets the test make one, one in another network.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cluster import LEASE_TTL_S, WAIT_S, Cluster
from server import private_home
from trial_scripts import body

BIN = str(Path(sys.executable).parent)
LINE = re.compile(r"FLOWCTL_JOIN=(fc1[A-Za-z0-9_-]+) flowctl worker")
TRIAL = """
import json
note("environ", json.dumps([pair for pair in os.environ.items() if not pair[0].startswith("_")]))
note("from", restored())
print("line 1", flush=True)
keep(me.attempt, y=7.5)
note("up", os.getpid())
while not (Path(os.environ["SIDE"]) / "go").exists():
    time.sleep(0.02)
print("line 2", flush=True)
report({"epoch": 9, "y": 1.0})
"""
ON_Y = 'metric="y", mode="max"'


@dataclass(frozen=True)
class Machine:
    """Another machine in all but the kernel: its environment, its worker, and what must stay secret on it."""

    env: dict[str, str]
    worker: subprocess.Popen[bytes]
    log: Path
    secrets: dict[str, str]

    @property
    def shell(self) -> dict[str, str]:
        """The environment of a shell there in which the token is exported."""
        return {**self.env, "FLOWCTL_JOIN": self.secrets["token"]}


@contextmanager
def pasted(cluster: Cluster, line: str, *, prefix: tuple[str, ...] = ()) -> Iterator[Machine]:
    """Pastes the line into a shell with an environment of its own and waits until the worker there accepts.

    prefix: a command that runs the shell elsewhere.
    """
    found = LINE.fullmatch(line)
    assert found is not None, line
    home, state = Path(tempfile.mkdtemp(prefix="fcu-", dir="/tmp")), private_home()
    cluster.homes.append(state)
    env = {"PATH": f"{BIN}:{os.defpath}", "HOME": str(home), "FLOWCTL_HOME": str(state), "SIDE": str(cluster.side)}
    env |= {"FLOWCTL_LEASE_TTL_S": str(LEASE_TTL_S), "FLOWCTL_STOP_GRACE_S": "2"}
    log, before = home / "log", set(boots(cluster))
    with log.open("wb") as file:
        shell = subprocess.Popen(
            [*prefix, "sh"], stdin=subprocess.PIPE, stdout=file, stderr=file, env=env, cwd=home, start_new_session=True
        )
    assert shell.stdin is not None
    shell.stdin.write(line.encode() + b"\n")
    shell.stdin.close()
    secrets = {
        "token": found.group(1),
        "key": (cluster.home / "secret.key").read_text().strip(),
        "password": cluster.broker.url.password,
    }
    try:
        cluster.until(lambda: set(boots(cluster)) - before or shell.poll() is not None, what="the pasted worker")
        assert shell.poll() is None, log.read_text()
        yield Machine(env, shell, log, secrets)
        for child in psutil.Process(shell.pid).children():
            child.terminate()
        assert shell.wait(WAIT_S) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(WAIT_S)
        shutil.rmtree(home, ignore_errors=True)


def boots(cluster: Cluster) -> list[str]:
    """Every start of a worker that accepts."""
    known = cluster.client.zrange("fc:boots", 0, -1)
    return [boot for boot in known if cluster.client.hget(f"fc:boot:{boot}", "accepting") == "1"]


def opened(cluster: Cluster, host: str = "127.0.0.1") -> str:
    """Opens the server with the cluster's storage; the line to paste."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        address = f"{host}:{probe.getsockname()[1]}"
    done = cluster.flowctl("up", "--listen", address, "--storage", str(cluster.storage), check=True)
    lines = [line for line in done.stdout.splitlines() if "FLOWCTL_JOIN" in line]
    assert len(lines) == 1, done.stdout
    return lines[0]


def run_there(machine: Machine, *args: str, prefix: tuple[str, ...] = ()) -> str:
    """What a command says that is run on the other machine."""
    command = [*prefix, f"{BIN}/flowctl", *args]
    done = subprocess.run(command, env=machine.shell, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_pasted_line_starts_a_worker_that_runs_what_was_submitted_here(cluster: Cluster) -> None:
    line = opened(cluster)
    with pasted(cluster, line) as there:
        run = cluster.submit(body(TRIAL, options=ON_Y))
        cluster.until(lambda: cluster.lines("up"), what="the trial's start")

        check_nothing_shows(cluster, there)
        follows = [
            subprocess.Popen([f"{BIN}/flowctl", "logs", "--follow", f"{run}/0"], env=env, stdout=subprocess.PIPE)
            for env in (cluster.env, there.shell)
        ]
        firsts = [follow.stdout.readline() for follow in follows if follow.stdout is not None]
        (cluster.side / "go").touch()
        rests = [follow.communicate(timeout=WAIT_S)[0] for follow in follows]
        cluster.wait(run)

        assert (firsts, rests) == ([b"line 1\n"] * 2, [b"line 2\n"] * 2)
        assert run_there(there, "results", run, "--json") == cluster.flowctl("results", run, "--json").stdout
        log = there.log.read_text()

    assert not [name for name, secret in there.secrets.items() if secret in log]


def test_a_checkpoint_of_the_joined_worker_is_gone_on_from_here(cluster: Cluster) -> None:
    with pasted(cluster, opened(cluster)):
        run = cluster.submit(body(TRIAL, options=ON_Y))
        cluster.until(lambda: cluster.lines("up"), what="the trial's start")
    assert cluster.state(run, 0) == "pending"

    (cluster.side / "go").touch()
    cluster.worker(cpu=1, name="here")
    cluster.wait(run)

    assert cluster.lines("from") == ["0", "1"]
    assert [attempt["worker"] for attempt in cluster.trial(run, 0)["history"]][-1] == "here"
    assert cluster.json("best", run)["best"]["metrics"]["y"] == 7.5


def test_the_line_of_a_server_without_storage_is_not_printed(cluster: Cluster) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    del cluster.env["FLOWCTL_STORAGE"]

    said = cluster.flowctl("up", "--listen", f"127.0.0.1:{port}", check=True).stdout

    assert "other machines can run nothing yet; add --storage" in said
    assert "FLOWCTL_JOIN" not in said


def test_a_worker_with_another_key_gets_nothing_and_the_trials_say_so(cluster: Cluster) -> None:
    stranger = cluster.worker(cpu=1, far=True, name="stranger", env={"FLOWCTL_SECRET_KEY": "x" * 64})
    run = cluster.submit(body("note('ran', me.worker)"))

    reason = cluster.trial(run, 0)["pending"]["text"]
    said = cluster.flowctl("status", run).stdout
    assert "no worker holds the key" in reason and reason in said
    assert "flowctl up --listen" in said or "FLOWCTL_SECRET_KEY" in said

    cluster.worker(cpu=1, name="right")
    cluster.wait(run)
    assert cluster.lines("ran") == ["right"]
    cluster.until(lambda: not cluster.client.sismember("fc:journals", run), what="the end of the journal")
    assert [event["to"] for event in cluster.events(run) if event["kind"] == "run"][-1] == "completed"
    assert stranger.stop() == 0


def test_a_worker_that_does_not_see_the_storage_hands_back_and_writes_nothing_there(cluster: Cluster) -> None:
    """As on a machine where the shared folder is not mounted: its mount point is an empty folder."""
    run = cluster.submit(body("note('ran', me.attempt)"))
    away = cluster.root / "away"
    cluster.storage.rename(away)
    cluster.storage.mkdir()
    blind = cluster.worker(cpu=1, name="blind")

    def reason() -> str:
        return str((cluster.trial(run, 0)["pending"] or {}).get("text", ""))

    cluster.until(lambda: "worker blind cannot see file://" in reason(), what="the reason", deadline_s=20)
    found = cluster.trial(run, 0)
    assert (found["attempts"], found["failures"], found["losses"], found["history"]) == (0, 0, 0, [])
    cluster.until(lambda: "left to other workers" in blind.text(), what="the journal that is left alone")
    assert list(cluster.storage.iterdir()) == []

    cluster.storage.rmdir()
    away.rename(cluster.storage)
    cluster.wait(run)
    assert cluster.lines("ran") == ["1"]


def test_a_worker_in_another_network_joins_over_a_real_link(cluster: Cluster) -> None:
    with two_networks() as (address, enter):
        line = opened(cluster, address)
        with pasted(cluster, line, prefix=enter) as there:
            run = cluster.submit(body("note('net', os.readlink('/proc/self/ns/net'))\nprint('there')"))
            cluster.wait(run)
            assert run_there(there, "logs", f"{run}/0", prefix=enter) == "there\n"

    assert cluster.lines("net") not in ([], [os.readlink("/proc/self/ns/net")])  # noqa: PTH115 (a name, not a path)


def check_nothing_shows(cluster: Cluster, there: Machine) -> None:
    """While a trial runs: its environment, as itself and as others see it, and the arguments of every process."""
    pid = int(cluster.lines("up")[0])
    environ = psutil.Process(pid).environ()
    assert environ["FLOWCTL_HOME"] == there.env["FLOWCTL_HOME"]
    seen = {"/proc": str(environ), "os.environ": "".join(cluster.lines("environ"))}
    for process in psutil.process_iter():
        try:
            seen[f"arguments of {process.pid}"] = " ".join(process.cmdline())
        except psutil.Error:
            continue
    shown = [(place, name) for place, text in seen.items() for name, secret in there.secrets.items() if secret in text]
    assert shown == []
    assert "FLOWCTL_ATTEMPT" in environ and "FLOWCTL_JOIN" not in environ


@contextmanager
def two_networks() -> Iterator[tuple[str, tuple[str, ...]]]:
    """A second network namespace with a link to this one: (this end's address, a command that runs what follows there).

    Skips the test where that is not permitted.
    """
    name = f"fc{os.getpid()}"
    net = f"10.213.{os.getpid() % 250}"
    steps = (
        f"netns add {name}",
        f"link add {name}a type veth peer name {name}b netns {name}",
        f"addr add {net}.1/24 dev {name}a",
        f"link set {name}a up",
        f"-n {name} addr add {net}.2/24 dev {name}b",
        f"-n {name} link set {name}b up",
    )
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command here")
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True, check=False)
        for step in steps:
            done = subprocess.run(["ip", *step.split()], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        yield f"{net}.1", ("ip", "netns", "exec", name)
