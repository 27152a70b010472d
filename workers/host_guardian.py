"""The guardian of a host: the pool process that runs, for a trial elsewhere, one function on a bundle of its placement
group.

It claims with a nonce of its own, renews a lease of its own, and is stopped when the attempt that asked for it is over.
What it runs is signed by that attempt's guardian. Invariant: it says that it ended when its whole tree is gone.
"""

import json
import logging
import os
import select
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowctl.broker.calls import HostFence, Reply
from flowctl.broker.contact import NoContact
from flowctl.broker.store import Broker
from flowctl.dsl.errors import FlowctlError
from flowctl.dsl.names import parse_unit
from flowctl.storage.attempt import AttemptFolder
from flowctl.storage.host_code import read_host_code
from flowctl.storage.host_log import write_host_log
from flowctl.storage.signing import Keyring
from flowctl.storage.trial_files import HostPart
from flowctl.workers import attention, units
from flowctl.workers.channel import FrameReader, pack
from flowctl.workers.decision import cause_of_exit
from flowctl.workers.devices import Device
from flowctl.workers.grant import Grant
from flowctl.workers.holdings import Holdings
from flowctl.workers.identity import Identity
from flowctl.workers.jobs import Jobs
from flowctl.workers.output import Output
from flowctl.workers.preparation import open_run
from flowctl.workers.process import Exit, TrialProcess

MAX_RESULT = 2**20
CLAIM_RETRY_S = 0.2
PUBLISH_RETRY_S = 0.5
LONGEST_WAIT_S = 60.0
log = logging.getLogger("flowctl")


def guard_host(
    host: HostFence,
    *,
    identity: Identity,
    broker: Broker,
    keyring: Keyring,
    home: Path,
    stop_grace_s: float,
    devices: Sequence[Device] = (),
) -> None:
    """Claims a host and carries it to its end; returns at once if it is not ours to run."""
    with units.taken(
        identity.units, unit=host.unit, epoch=host.epoch, nonce=host.nonce, bundle=host.bundle, number=host.number
    ):
        claimed = _claim(broker, host, identity.boot)
        if claimed is None:
            return
        folder = identity.folder / f"{identity.boot}-{host.bundle}-{host.number}-{host.nonce}"
        folder.mkdir(mode=0o700, parents=True)
        try:
            HostGuardian(
                host,
                claimed,
                identity=identity,
                broker=broker,
                keyring=keyring,
                folder=folder,
                stop_grace_s=stop_grace_s,
                devices=devices,
            ).carry()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _claim(broker: Broker, host: HostFence, boot: str) -> dict[str, Any] | None:
    deadline = time.monotonic() + broker.calls.times.dispatch_ms / 1000
    while True:
        try:
            reply = broker.calls.host_claim(host, boot=boot)
        except NoContact:
            if time.monotonic() > deadline:
                return None
            time.sleep(CLAIM_RETRY_S)
            continue
        return reply.value if reply.word == "OK" else None


class HostGuardian:
    """One host. `state` and `result` are what its attempt is told at the end."""

    def __init__(
        self,
        host: HostFence,
        claimed: dict[str, Any],
        *,
        identity: Identity,
        broker: Broker,
        keyring: Keyring,
        folder: Path,
        stop_grace_s: float,
        devices: Sequence[Device],
    ) -> None:
        self.host = host
        self.claimed = claimed
        self.identity = identity
        self.broker = broker
        self.keyring = keyring
        self.folder = folder
        self.stop_grace_s = stop_grace_s
        self.unit = parse_unit(host.unit)
        self.said: dict[str, Any] | None = None
        self.refusal: str | None = None
        self.is_lost = self.is_cancelled = False
        self.kill_at: float | None = None
        self.exit: Exit | None = None
        self.jobs = Jobs()
        self.attempt: AttemptFolder | None = None
        self.output = Output(self.jobs, self._write_log)
        self._period_s = broker.calls.times.lease_ms / 4000
        self._renew_at = time.monotonic() + self._period_s
        self._frames = FrameReader()
        self.grant = Grant({str(name): int(n) for name, n in claimed["tokens"].items()}, devices)
        self.holdings = Holdings(
            self.grant, unit=host.unit, epoch=host.epoch, folder=identity.units, bundle=host.bundle
        )
        self.nudges = attention.listen(identity.boot, f"{host.unit}@{host.epoch}#{host.bundle}")
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        work = folder / "work"
        work.mkdir()
        mark = f"{identity.boot}/{host.unit}/{host.epoch}/{host.nonce}"
        env = self.grant.environment(os.environ)
        self.process = TrialProcess.start(channel_fd=theirs.fileno(), folder=work, mark=mark, env=env)
        theirs.close()

    def carry(self) -> None:
        """Fetches the code while the interpreter starts, watches it, removes its tree, says how it ended."""
        self.jobs.submit(self._fetch, self._on_code)
        try:
            self._watch()
        finally:
            pids = self.holdings.processes(self.process.pid)
            self.process.sweep()
            if pids:
                self.jobs.submit(lambda: self.holdings.await_devices(pids), lambda _result, _error: None)
            self.output.finish()
            while not self.jobs.is_idle:
                select.select([self.jobs.fd], [], [], 1.0)
                self.jobs.collect()
            self.holdings.close()
            self.process.close()
            self.channel.close()
            self.nudges.close()
            self.jobs.close()
        self._publish()

    # --- preparation ---

    def _fetch(self) -> Path:
        self.holdings.note_devices(trial_pid=self.process.pid)
        run = open_run(self.claimed["location"], self.unit.run, self.claimed["token"], self.keyring)
        attempt = AttemptFolder(run, self.unit.step, self.unit.index, self.host.epoch, self.claimed["by"])
        data = read_host_code(
            attempt,
            bundle=self.host.bundle,
            number=self.host.number,
            digest=self.claimed["digest"],
        )
        self.attempt = attempt
        path = self.folder / "code.pkl"
        path.write_bytes(data)
        return path

    def _on_code(self, path: Path | None, error: BaseException | None) -> None:
        if path is None:
            if not isinstance(error, FlowctlError | OSError):
                log.error("could not prepare a host of %s", self.host.unit, exc_info=error)
            self.refusal = str(error)
            self.process.kill()
            return
        self.holdings.begin((), trial_pid=self.process.pid)
        self._send(
            {
                "kind": "host",
                "payload": str(path),
                "inputs": [],
                "keyword_inputs": {},
                "stop": None,
                "metric": None,
                "iteration": 0,
                "time_before_s": 0.0,
                "context": {
                    "run": self.unit.run,
                    "step": self.unit.step,
                    "trial": self.unit.index,
                    "attempt": self.claimed["attempt"],
                    "worker": self.identity.worker,
                    "seed": None,
                    **self.grant.context,
                },
                "devices": self.grant.session,
            }
        )

    def _send(self, frame: dict[str, Any]) -> None:
        try:
            self.channel.setblocking(True)
            self.channel.sendall(pack(frame))
            self.channel.setblocking(False)
        except OSError:
            return  # its end is noticed by its process

    # --- the loop ---

    def _watch(self) -> None:
        poll = select.poll()
        output_fd, channel_fd = self.process.output_fd, self.channel.fileno()
        for fd in (self.process.pidfd, output_fd, channel_fd, self.nudges.fileno(), self.jobs.fd):
            poll.register(fd, select.POLLIN)
        while self.exit is None:
            due = min(at for at in (self._renew_at, self.kill_at, self.output.flush_at) if at is not None)
            wait_s = min(max(0.0, due - time.monotonic()), LONGEST_WAIT_S)
            ready = dict(poll.poll(int(wait_s * 1000) + 1))
            if self.jobs.fd in ready:
                self.jobs.collect()
            if output_fd in ready and not self._read_output():
                poll.unregister(output_fd)
            if channel_fd in ready and not self._listen():
                poll.unregister(channel_fd)
            if self.process.pidfd in ready:
                self._listen()
                self._read_output()
                self.exit = self.process.wait()
            nudged = attention.drain(self.nudges)
            self._on_time(bool(nudged), is_leaving=b"p" in nudged)

    def _on_time(self, nudged: bool, *, is_leaving: bool) -> None:
        now = time.monotonic()
        if (nudged or now >= self._renew_at) and not self.is_lost:
            self._renew()
        if is_leaving:
            self._stop()
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.process.kill()
        self.output.flush_due(now)

    def _renew(self) -> None:
        try:
            word = self.broker.calls.host_renew(self.host).word
        except NoContact:
            self._renew_at = time.monotonic() + min(1.0, self._period_s)
            return
        self._renew_at = time.monotonic() + self._period_s
        if word == "LOST":
            self.is_lost = True
            self._renew_at = float("inf")
            self.process.kill()
        elif word == "CANCEL":
            self.is_cancelled = True
            self._stop()

    def _stop(self) -> None:
        if self.kill_at is None and self.exit is None:
            self.kill_at = time.monotonic() + self.stop_grace_s
            self.process.terminate()

    def _listen(self) -> bool:
        try:
            while data := self.channel.recv(1 << 20):
                for frame in self._frames.feed(data):
                    if frame.get("t") == "end":
                        self.said = frame
                        self.kill_at = self.kill_at or time.monotonic() + self.stop_grace_s
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            self.process.kill()
        return False

    def _read_output(self) -> bool:
        try:
            data = os.read(self.process.output_fd, 1 << 16)
        except BlockingIOError:
            return True
        self.output.take(data)
        return bool(data)

    def _write_log(self, offset: int, data: bytes) -> None:
        if self.attempt is not None:
            part = HostPart(self.host.bundle, self.host.number, self.host.nonce)
            write_host_log(self.attempt, part, offset, data)

    # --- the end ---

    def _ending(self) -> tuple[str, dict[str, Any]]:
        if self.refusal is not None:
            return "failed", {"cause": {"kind": "refused", "text": self.refusal}}
        if self.said is None or self.said["status"] == "stopped":
            if self.is_cancelled or self.said is not None:
                return "cancelled", {"cause": {"kind": "cancelled", "text": "cancelled"}}
            assert self.exit is not None
            return "failed", {"cause": cause_of_exit(self.exit)}
        if self.said["status"] == "failed":
            return "failed", {"cause": self.said["cause"]}
        value = self.said["output"]
        if len(json.dumps(value)) > MAX_RESULT:
            text = f"what it returned is larger than {MAX_RESULT} bytes as JSON; write it to a file and return its name"
            return "failed", {"cause": {"kind": "exception", "type": "ResultTooLarge", "text": text}}
        return "completed", {"value": value}

    def _publish(self) -> None:
        state, result = self._ending()
        log.info("bundle %s of %s: %s", self.host.bundle, self.host.unit, state)
        while True:
            try:
                self._say(state, result)
                return
            except NoContact:
                time.sleep(PUBLISH_RETRY_S)

    def _say(self, state: str, result: dict[str, Any]) -> Reply:
        return self.broker.calls.host_end(self.host, boot=self.identity.boot, state=state, result=result)
