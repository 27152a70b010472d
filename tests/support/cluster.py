"""A whole flowctl for one test: an own state folder, storage and server, real workers, and the command line.

The fixture `cluster` (tests/integration/conftest.py) gives one and checks afterwards that nothing is left of it:

    def test_it(cluster):
        worker = cluster.worker(cpu=1)                          # a process group of its own; returns once it accepts
        run = cluster.submit(SCRIPT, "--name", "x")             # text of a script → id of the run
        cluster.until(lambda: cluster.status(run)["counts"]["running"] == 1)
        worker.kill()                                           # kill -9 of the group: main process and guardians
        cluster.wait(run)                                       # the run as `flowctl status --json` says once it ended
        assert cluster.trial(run, 0)["attempts"] == 2
        assert [trial["status"] for trial in cluster.results(run)] == ["completed"]
        assert cluster.flowctl("best", run).returncode == 0

Scripts find an empty folder for what they leave behind in the variable SIDE (`cluster.side`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from server import eventually, private_home, remove_home

from flowctl.broker.embedded import ensure_server
from flowctl.broker.invariants import violations
from flowctl.broker.keys import unowned
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.broker.view import load_run
from flowctl.render.results_json import report_bodies
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring
from flowctl.workers.runs.load_results import load_results

LEASE_TTL_S = 5
WAIT_S = 60.0
"""Deadline of everything that a healthy machine does in seconds: the machine may be slow."""

FLOWCTL = str(Path(sys.executable).with_name("flowctl"))
ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class Worker:
    """A started worker; `boot` is what the server calls this start of it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    boot: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def guardians(self) -> list[int]:
        """Its pool processes."""
        return [child.pid for child in psutil.Process(self.pid).children() if os.getpgid(child.pid) == self.pid]

    def kill(self, *, only_main: bool = False, machine: bool = False) -> None:
        """kill -9: of the main process and all its guardians at once, or of the main process alone. `machine`: as if
        the machine died: nothing is left that could tell.
        """
        if self.is_over:
            return
        if machine:
            for child in psutil.Process(self.pid).children():
                if any("workers.witness" in part for part in child.cmdline()):
                    child.kill()
        if only_main:
            self.process.kill()
        else:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def kill_group(self) -> None:
        """kill -9 of whatever is left of it after its main process died."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def stop(self, timeout_s: float = WAIT_S) -> int:
        """SIGTERM, as a service manager sends it; the exit code."""
        if not self.is_over:
            self.process.terminate()
        return self.process.wait(timeout_s)

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")


class Cluster:
    """See the head of this file. `env` is the environment of every process that it starts."""

    def __init__(self) -> None:
        self.home = private_home()
        self.root = Path(tempfile.mkdtemp(prefix="fcc-", dir="/tmp"))
        self.storage = self.root / "storage"
        self.side = self.root / "side"
        self.side.mkdir()
        self.homes = [self.home]
        self.workers: list[Worker] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWCTL_", "PYTEST_"))}
        self.env = {
            **clean,
            "FLOWCTL_HOME": str(self.home),
            "FLOWCTL_STORAGE": str(self.storage),
            "FLOWCTL_LEASE_TTL_S": str(LEASE_TTL_S),
            "FLOWCTL_STOP_GRACE_S": "2",
            "SIDE": str(self.side),
        }
        self._scripts = 0

    # --- the server ---

    @cached_property
    def broker(self) -> Broker:
        """The test's own connection; starts the server if nothing has yet."""
        ensure_server(self.home)
        return Broker.connect(Settings.from_env(self.env))

    @property
    def client(self) -> Any:
        """A client of redis-py."""
        return self.broker.client

    # --- workers ---

    def worker(
        self,
        *,
        cpu: int | None = None,
        resources: str | None = None,
        slots: int | None = None,
        name: str | None = None,
        only: str | None = None,
        far: bool = False,
        env: Mapping[str, str] | None = None,
        command: list[str] | None = None,
        accepting: bool = True,
    ) -> Worker:
        """Starts `flowctl worker` (or `command`) and waits until work can be placed on it.

        far: with a state folder of its own and the server's address and key, as on another machine.
        """
        given = {**self.env, **(self._far() if far else {}), **(env or {})}
        name = name or f"w{len(self.workers)}"
        command = command or [FLOWCTL, "worker", "--name", name]
        resources = resources or (f"cpu={cpu}" if cpu is not None else None)
        options = {"--resources": resources, "--slots": slots, "--run": only}
        command = command + [part for key, value in options.items() if value is not None for part in (key, str(value))]
        log = self.root / f"{name}-{len(self.workers)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=given,
                cwd=self.root,
                start_new_session=True,
            )
        made = Worker(name, process, log, "")
        self.workers.append(made)
        if accepting:
            eventually(lambda: made.is_over or self._boot_of(process.pid), deadline_s=WAIT_S, what=f"worker {name}")
            assert not made.is_over, f"worker {name} ended with {process.returncode}: {made.text()}"
            made = Worker(name, process, log, self._boot_of(process.pid))
            self.workers[-1] = made
        return made

    def _boot_of(self, pid: int) -> str:
        """The boot of a worker that accepts, by its main process; empty if there is none."""
        for boot in self.client.zrange("fc:boots", 0, -1):
            record = self.client.hmget(f"fc:boot:{boot}", "pid", "accepting", "state")
            if record == [str(pid), "1", "up"]:
                return str(boot)
        return ""

    def _far(self) -> dict[str, str]:
        home = private_home()
        self.homes.append(home)
        self.flowctl("up", check=True)
        return {
            "FLOWCTL_HOME": str(home),
            "FLOWCTL_BROKER_URL": self.broker.url.url(),
            "FLOWCTL_SECRET_KEY": (self.home / "secret.key").read_text().strip(),
        }

    # --- the command line ---

    def flowctl(self, *args: str, check: bool = False, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        done = subprocess.run(
            [FLOWCTL, *args],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"flowctl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done

    def json(self, *args: str) -> dict[str, Any]:
        """What a command says with --json, read strictly."""
        return strict_json(self.flowctl(*args, "--json", check=True).stdout)

    def script(self, text: str) -> Path:
        """Writes a script; its path."""
        self._scripts += 1
        path = self.root / f"script{self._scripts}.py"
        path.write_text(text)
        return path

    def submit(self, text: str, *args: str) -> str:
        """Submits the text of a script; the run's id."""
        return str(self.json("submit", str(self.script(text)), *args)["run"])

    def status(self, target: str) -> dict[str, Any]:
        """A run, or with RUN/7 a trial, as `flowctl status` says."""
        return self.json("status", target)

    def trial(self, run: str, index: int) -> dict[str, Any]:
        """One trial with the history of its attempts."""
        return self.status(f"{run}/{index}")

    def results(self, run: str, *args: str) -> list[dict[str, Any]]:
        """One entry per trial; with "--rows" one per report."""
        found = self.json("results", run, *args)
        return list(found["rows" if "--rows" in args else "trials"])

    def wait(self, run: str, *, state: str | None = "completed", timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Waits for the end of a run; its status. `state` is what must have become of it (None: any end)."""
        self.until(lambda: self.state(run) in ENDED, what=f"the end of {run}", deadline_s=timeout_s)
        found = self.status(run)
        assert state in (None, found["state"]), found
        return found

    # --- looking on ---

    def state(self, run: str, index: int | None = None) -> str:
        """The state of a run or, with an index, of a trial of its only experiment; empty if there is none."""
        if index is None:
            return self.client.hget(f"fc:run:{run}", "state") or ""
        return self.client.hget(f"fc:unit:{self.unit(run, index)}", "state") or ""

    def unit(self, run: str, index: int) -> str:
        """The full name of a trial of the run's last step."""
        return f"{run}:{self.client.lindex(f'fc:steps:{run}', -1)}:{index}"

    def trial_pids(self, run: str, index: int | None = None) -> list[int]:
        """Every process that carries the mark of a trial of this run, the trial's own process first."""
        pattern = rf"[0-9a-f]+/{re.escape(run)}:[^:/]+:{r'[0-9]+' if index is None else index}/"
        found = [pid for pid, mark in self.marked() if re.match(pattern, mark)]
        return sorted(found, key=lambda pid: (os.getsid(pid) != pid, pid))

    def marked(self) -> Iterator[tuple[int, str]]:
        """(pid, FLOWCTL_ATTEMPT) of every live process of this cluster's trials."""
        homes = {str(home) for home in self.homes}
        for process in psutil.process_iter():
            try:
                env = process.environ()
                mark = env.get("FLOWCTL_ATTEMPT") if env.get("FLOWCTL_HOME") in homes else None
                if mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process.pid, mark
            except (psutil.Error, OSError):
                continue

    def lines(self, name: str) -> list[str]:
        """The lines of a file that scripts wrote into `side`; none if there is no such file."""
        path = self.side / name
        return path.read_text().splitlines() if path.exists() else []

    def has_lines(self, name: str, least: int) -> bool:
        """Whether that file has at least so many lines."""
        return len(self.lines(name)) >= least

    def until(self, holds: Callable[[], object], *, what: str = "it", deadline_s: float = WAIT_S) -> None:
        """Waits for a condition; fails with the workers' last words."""
        try:
            eventually(holds, deadline_s=deadline_s, what=what)
        except AssertionError as error:
            runs = "\n".join(self.flowctl("status", run).stdout for run in self.client.zrange("fc:runs", 0, -1))
            logs = "\n".join(f"--- {worker.name}\n{worker.text()[-3000:]}" for worker in self.workers)
            raise AssertionError(f"{error}\n{runs}\n{logs}") from None

    def used(self) -> dict[str, dict[str, int]]:
        """What is booked on each boot, zeros left out."""
        sums = {}
        for key in self.client.scan_iter("fc:used:*"):
            found = {dim: int(n) for dim, n in self.client.hgetall(key).items() if int(n)}
            if found:
                sums[key.removeprefix("fc:used:")] = found
        return sums

    def events(self, run: str) -> list[dict[str, str]]:
        """All events of a run in order: those of its journal on storage and those still in the server."""
        found = {str(event["id"]): event for event in self.folder(run).journal_read()}
        found |= dict(self.client.xrange(f"fc:events:{run}"))
        return [found[name] for name in sorted(found, key=lambda name: tuple(map(int, name.split("-"))))]

    def ends(self, run: str) -> dict[str, int]:
        """How often each trial ended, by its full name."""
        ended = [event["unit"] for event in self.events(run) if event.get("unit") and event.get("to") in ENDED]
        return dict(Counter(ended))

    # --- the end ---

    def check(self) -> None:
        """Everything that must hold once the workers are stopped and every run has ended."""
        for worker in self.workers:  # of those that were killed, the machine knows that they are dead
            self.broker.calls.worker_leave(worker.boot, text="killed by the test")
        assert self.violations() == []
        runs = self.client.zrange("fc:runs", 0, -1)
        if all(self.state(run) in ENDED for run in runs):
            self.until(lambda: not self.used(), what="the return of all tokens")
            assert self.client.hlen("fc:unacked") == 0, self.client.hgetall("fc:unacked")
            assert list(self.client.scan_iter("fcq.*")) == []
        left = dict(self.marked())
        assert not left, f"processes of trials that outlived them: {left}"

    def violations(self) -> list[str]:
        """Broken invariants and keys that nobody owns."""
        return [*violations(self.client), *unowned(self.client)]

    def rows(self, run: str) -> list[dict[str, Any]]:
        """Every report of a run as this process reads it: the rows of `flowctl results --rows --json`."""
        view = load_run(self.client, run)
        assert view is not None
        return report_bodies(load_results(self.client, view, self.folder(run)))

    def trial_rows(self, run: str, index: int) -> list[dict[str, Any]]:
        """The reports of one trial as this process reads them: metrics and automatic keys in one dictionary."""
        view = load_run(self.client, run)
        assert view is not None
        return load_results(self.client, view, self.folder(run))[index].rows()

    def folder(self, run: str) -> RunFolder:
        """The run's folder on storage."""
        keyring = Keyring.from_env(self.env, self.home, create=False)
        return RunFolder(Location.open(str(self.storage)), run, keyring)

    def close(self, *, check: bool) -> None:
        """Stops everything, checks, and removes all that is left."""
        try:
            for worker in self.workers:
                if not worker.is_over:
                    worker.process.terminate()
            for worker in self.workers:
                worker.stop()
            if check:
                self.check()
        finally:
            for worker in self.workers:
                worker.kill()
            for pid, _ in list(self.marked()):
                psutil.Process(pid).kill()
            for home in self.homes:
                remove_home(home)
            subprocess.run(["chmod", "-R", "u+rwX", str(self.root)], check=False)
            subprocess.run(["rm", "-rf", str(self.root)], check=False)


def strict_json(text: str) -> dict[str, Any]:
    """A JSON object; NaN and infinities are no JSON."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    loaded: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return loaded
