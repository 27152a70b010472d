"""The guardian: the pool process that owns one attempt. It claims, prepares, starts the trial process, watches it,
and publishes its end.

One loop in one thread speaks to the server and to the trial; storage work runs beside it in order. Whatever the loop
waits for, the lease is renewed. Invariant: the outcome record is written only when the whole tree of the trial is
gone, and published only when it is written.
"""

import json
import logging
import os
import select
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowctl.broker.calls import Reply
from flowctl.broker.cause import Cause
from flowctl.broker.contact import NoContact
from flowctl.broker.store import Broker
from flowctl.dsl.errors import FlowctlError
from flowctl.dsl.jsonvalue import encode
from flowctl.dsl.names import shown
from flowctl.storage.errors import StorageUnreachable
from flowctl.storage.segment import Segment
from flowctl.storage.signing import Keyring
from flowctl.workers import attention, units
from flowctl.workers.conversation import Conversation
from flowctl.workers.decision import CANCELLED, Budget, Decision, Ending, decide, hopeless
from flowctl.workers.devices import Device
from flowctl.workers.grant import Grant
from flowctl.workers.holdings import Holdings
from flowctl.workers.identity import Identity
from flowctl.workers.jobs import Jobs
from flowctl.workers.lease import Lease
from flowctl.workers.output import Output
from flowctl.workers.preparation import Bench, CannotSee, Claimed, Prepared, prepare
from flowctl.workers.process import Exit, TrialProcess
from flowctl.workers.rows import RowLog

HANDBACK_DELAY_MS = 5000
LONGEST_WAIT_S = 60.0
PUBLISH_RETRY_S = 0.5
log = logging.getLogger("flowctl")


def guard(
    *,
    unit: str,
    epoch: int,
    identity: Identity,
    broker: Broker,
    keyring: Keyring,
    home: Path,
    stop_grace_s: float,
    devices: Sequence[Device] = (),
) -> None:
    """Claims an attempt and carries it to its end; returns at once if it is not ours to run. `devices` are those of
    the worker, in its order.
    """
    lease = Lease(broker, unit=unit, epoch=epoch)
    with units.taken(identity.units, unit=unit, epoch=epoch, nonce=lease.fence.nonce):
        claimed = lease.claim(boot=identity.boot)
        if claimed is None:
            return
        log.info("%s begins, attempt %s", shown(unit), claimed.attempt)
        folder = identity.folder / f"{identity.boot}-{lease.fence.nonce}"
        try:
            folder.mkdir(mode=0o700)
            Guardian(
                claimed,
                lease=lease,
                identity=identity,
                keyring=keyring,
                home=home,
                folder=folder,
                stop_grace_s=stop_grace_s,
                devices=devices,
            ).carry()
        except OSError as error:  # this machine cannot carry it now: no disk, no descriptors, no processes
            log.exception("cannot carry %s", shown(unit))
            reason = f"worker {identity.worker} cannot carry it: {error}"
            _publish(lambda: broker.calls.trial_handback(lease.fence, reason=reason, delay_ms=HANDBACK_DELAY_MS))
        except Exception as error:
            log.exception("the guardian of %s failed", shown(unit))
            text = f"its guardian on {identity.worker} failed: {type(error).__name__}: {error}"
            _publish(
                lambda: broker.calls.trial_release(lease.fence, boot=identity.boot, cause="guardian_lost", text=text)
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Guardian:
    """One claimed attempt. `carry` returns when there is nothing more to do for it here."""

    def __init__(
        self,
        claimed: Claimed,
        *,
        lease: Lease,
        identity: Identity,
        keyring: Keyring,
        home: Path,
        folder: Path,
        stop_grace_s: float,
        devices: Sequence[Device] = (),
    ) -> None:
        self.claimed = claimed
        self.lease = lease
        self.calls = lease.broker.calls
        self.fence = lease.fence
        self.identity = identity
        self.keyring = keyring
        self.home = home
        self.stop_grace_s = stop_grace_s
        self.folder = folder
        self.jobs = Jobs()
        self.output = Output(self.jobs, self._write_log)
        self.rows = RowLog(self.jobs, write=self._write_rows, trim=self._trim_rows, note=self._note)
        self.is_lost = False
        self.is_cancelled = False
        self.is_leaving = False
        self.exit: Exit | None = None
        self.prepared: Prepared | None = None
        self.refusal: str | None = None
        self.kill_at: float | None = None
        grant = Grant(claimed.tokens, devices)
        self.holdings = Holdings(grant, unit=self.fence.unit, epoch=self.fence.epoch, folder=identity.units)
        self.nudges = attention.listen(identity.boot, self.fence.unit)
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        self.talk = Conversation(
            self.channel,
            jobs=self.jobs,
            lease=lease,
            claimed=claimed,
            grant=grant,
            rows=self.rows,
            folder=folder,
            on_wanted=self._on_wanted,
        )
        work = folder / "work"
        work.mkdir()
        mark = f"{identity.boot}/{self.fence.unit}/{self.fence.epoch}/{self.fence.nonce}"
        env = grant.environment(os.environ)
        self.process = TrialProcess.start(channel_fd=theirs.fileno(), folder=work, mark=mark, env=env)
        theirs.close()

    def carry(self) -> None:
        """Prepares while the interpreter starts, watches it, removes its tree, publishes its end."""
        self.jobs.submit(self._prepare, self._on_prepared)
        try:
            self._watch()
            self._sweep()
            self._drain_output()
            if not self.is_lost:
                self._close()
        finally:
            self._sweep()
            self.holdings.close()
            while not self.jobs.is_idle:
                select.select([self.jobs.fd], [], [], 1.0)
                self.jobs.collect()
            self.process.close()
            self.channel.close()
            self.nudges.close()
            self.jobs.close()

    # --- preparation ---

    def _prepare(self) -> Prepared:
        self.holdings.note_devices(trial_pid=self.process.pid)
        bench = Bench(
            broker=self.lease.broker,
            keyring=self.keyring,
            worker=self.identity.worker,
            boot=self.identity.boot,
            cache=self.home / "cache" / "payload",
            folder=self.folder,
        )
        return prepare(self.claimed, bench, is_wanted=lambda: not self.is_lost and self.talk.stop_reason is None)

    def _on_prepared(self, prepared: Prepared | None, error: BaseException | None) -> None:
        if prepared is None:
            if not isinstance(error, FlowctlError | OSError | NoContact):
                log.error("could not prepare %s", shown(self.fence.unit), exc_info=error)
            blind = isinstance(error, CannotSee | StorageUnreachable)
            where = f"worker {self.identity.worker} cannot see {self.claimed.location}: " if blind else ""
            self.refusal = where + str(error)
            self.process.kill()
            return
        self.prepared = prepared
        self.rows.go_on(prepared.rows_before, metric=prepared.step.metric)
        is_over = prepared.adopted is not None or prepared.missing is not None
        if is_over or self.talk.stop_reason is not None or self.is_lost:
            self.process.kill()
        else:
            self.holdings.begin(prepared.step.policy.enforce, trial_pid=self.process.pid)
            self.talk.begin(prepared, worker=self.identity.worker)

    # --- the loop ---

    def _watch(self) -> None:
        """Until the trial process has ended and all that it said is taken."""
        poll = select.poll()
        output_fd, channel_fd = self.process.output_fd, self.channel.fileno()
        for fd in (self.process.pidfd, output_fd, channel_fd, self.nudges.fileno(), self.jobs.fd):
            poll.register(fd, select.POLLIN)
        while self.exit is None:
            ready = dict(poll.poll(self._timeout_ms()))
            if self.jobs.fd in ready:
                self.jobs.collect()
            if output_fd in ready and not self._read_output():
                poll.unregister(output_fd)
            if channel_fd in ready and not self._listen():
                poll.unregister(channel_fd)
            if self.nudges.fileno() in ready:
                self._on_nudge()
            if self.process.pidfd in ready:
                self._listen()
                self.exit = self.process.wait()
            self._on_time()

    def _timeout_ms(self) -> int:
        times = [
            self.lease.renew_at,
            self.kill_at,
            self.talk.outbox.retry_at,
            self.rows.flush_at,
            self.output.flush_at,
            self.holdings.look_at,
        ]
        due_s = min(at for at in times if at is not None) - time.monotonic()
        return int(min(max(0.0, due_s), LONGEST_WAIT_S) * 1000) + 1

    def _on_time(self) -> None:
        now = time.monotonic()
        if now >= self.lease.renew_at and not self.is_lost:
            self._on_wanted(self.lease.renew())
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.process.kill()
        if self.holdings.is_exceeded(is_over=self.exit is not None or self.talk.said is not None):
            self.process.kill()
        self.talk.outbox.pump()
        self.rows.flush_due(now)
        self.output.flush_due(now)

    def _listen(self) -> bool:
        try:
            return self.talk.read()
        except ValueError:
            text = "something but flowctl wrote to the trial's channel to its guardian; it was stopped"
            log.warning("%s: %s", shown(self.fence.unit), text)
            self.talk.said = {
                "status": "failed",
                "cause": {"kind": "exception", "type": "BrokenChannel", "text": text},
            }
            self.process.kill()
            return False

    def _on_nudge(self) -> None:
        if b"p" in attention.drain(self.nudges):
            self._stop("preempted")
        if not self.is_lost:
            self._on_wanted(self.lease.renew())

    def _on_wanted(self, word: str) -> None:
        """What the server wants of this attempt, or that the trial has said its last word."""
        if word == "LOST" and not self.is_lost:
            log.warning("lost %s epoch %s: stopping it", shown(self.fence.unit), self.fence.epoch)
            self.is_lost = True
            self.lease.renew_at = float("inf")
            self.process.kill()
        elif word == "CANCEL":
            self.is_cancelled = True
            self._stop("cancelled")
        elif word == "END" and self.kill_at is None:
            self.kill_at = time.monotonic() + self.stop_grace_s

    def _stop(self, reason: str) -> None:
        """Asks the trial to end; the first reason stands, except that a cancel outweighs a preemption."""
        if self.talk.stop_reason is None or (reason == "cancelled" and self.talk.stop_reason == "preempted"):
            self.talk.stop_reason = reason
        if self.kill_at is None and self.exit is None:
            if self.prepared is None:
                self.process.kill()
            else:
                self.kill_at = time.monotonic() + self.stop_grace_s
                self.process.terminate()

    # --- output and rows ---

    def _read_output(self) -> bool:
        try:
            data = os.read(self.process.output_fd, 1 << 16)
        except BlockingIOError:
            return True
        self.output.take(data)
        return bool(data)

    def _drain_output(self) -> None:
        try:
            while data := os.read(self.process.output_fd, 1 << 16):
                self.output.take(data)
        except BlockingIOError:
            return

    def _write_log(self, offset: int, data: bytes) -> None:
        if self.prepared is not None and not self.is_lost:
            self.prepared.folder.write_log(offset, data)

    def _write_rows(self, first: int, rows: list[dict[str, Any]]) -> Segment:
        assert self.prepared is not None
        return self.prepared.folder.write_rows(first, rows)

    def _note(self, text: str) -> None:
        if text and not self.lease.note:
            log.warning("%s %s", shown(self.fence.unit), text)
        self.lease.note = text

    def _trim_rows(self, seq: int) -> None:
        try:
            self.calls.tail_trim(self.fence, seq=seq)
        except NoContact:
            return  # a row that stays in the tail is merged by its fence and number

    # --- the end ---

    def _sweep(self) -> None:
        """Removes what is left of the tree; then, in the storage thread, waits until its devices are free of it."""
        pids = self.holdings.processes(self.process.pid)
        self.process.sweep()
        if pids:
            self.jobs.submit(lambda: self.holdings.await_devices(pids), self._on_devices)

    def _on_devices(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("%s: could not see whether its devices are free", shown(self.fence.unit), exc_info=error)

    def _settle(self, until: Callable[[], bool]) -> bool:
        """Goes on renewing until a condition holds: True. False when nobody waits for it any more: the attempt is lost;
        or its storage does not answer, and it was cancelled or its worker stops.
        """
        while not until():
            if self.is_lost or (self.lease.note and (self.is_cancelled or self.is_leaving)):
                return False
            due = (self.lease.renew_at, self.talk.outbox.retry_at, self.rows.flush_at)
            timeout = max(0.0, min(at for at in due if at is not None) - time.monotonic())
            select.select([self.jobs.fd, self.nudges.fileno()], [], [], timeout)
            nudged = attention.drain(self.nudges)
            self.is_leaving = self.is_leaving or b"p" in nudged
            if nudged:
                self._on_wanted(self.lease.renew())
            self.jobs.collect()
            self._on_time()
        return True

    def _close(self) -> None:
        self._settle(lambda: self.jobs.is_idle and len(self.talk.outbox) == 0)
        if self.is_lost:
            return
        if self.refusal is not None:
            self._hand_back(self.refusal, delay_ms=HANDBACK_DELAY_MS)
        elif self.prepared is None:  # stopped before it could begin
            if self.talk.stop_reason == "cancelled":
                self._finish(CANCELLED)
            else:
                self._hand_back("its worker stopped")
        elif self.prepared.adopted is not None:
            self._adopt(self.prepared)
        else:
            self._decide(self.prepared)

    def _decide(self, prepared: Prepared) -> None:
        assert self.exit is not None
        ending = Ending(
            exit=self.exit,
            said=self.talk.said,
            stop_reason=self.talk.stop_reason,
            metric=prepared.step.metric,
            has_metric=self.rows.has_metric,
            metric_names=tuple(self.rows.names),
            over_limit=self.holdings.over_limit,
        )
        decision = decide(ending, Budget(prepared.step.policy.max_failures, self.claimed.fails))
        if prepared.missing is not None and self.talk.stop_reason is None:
            decision = hopeless(prepared.missing)
        self.output.finish()
        self.rows.flush()
        self._settle(lambda: self.jobs.is_idle and self.rows.is_drained)
        is_written = self._write_outcome(prepared, decision)
        if self.is_lost:
            return
        if not is_written and self.is_cancelled:
            self._finish(CANCELLED)
        elif not is_written:
            self._hand_back("its worker stopped before the storage took its outcome")
        elif decision.outcome == "preempted":
            self._hand_back(decision.reason, is_counted=True)
        else:
            self._finish(decision)
        if self.rows.written_seq:
            self._trim_rows(self.rows.written_seq)

    def _write_outcome(self, prepared: Prepared, decision: Decision) -> bool:
        """The record is the decision: it is tried until it is written, or nobody waits for it any more (False)."""
        output = (self.talk.said or {}).get("output") if decision.to == "completed" else None
        is_written: list[bool] = []

        def write() -> None:
            prepared.folder.write_outcome(
                status=decision.to,
                cause=decision.cause,
                reason=decision.reason,
                last=self.rows.last,
                best=self.rows.best(prepared.step.mode),
                counts={
                    "rows": self.rows.count,
                    "attempt": self.claimed.attempt,
                    "fails": self.claimed.fails + decision.fails_up,
                },
                segments=self.rows.segments,
                output=output,
                server_ms=self.lease.now_ms(),
                started_ms=self.claimed.now_ms,
            )

        def then(_: Any, error: BaseException | None) -> None:
            if error is None:
                is_written.append(True)
                self._note("")
                return
            self._note(f"has ended and waits to write its outcome: {error}")
            if not (self.is_lost or self.is_cancelled or self.is_leaving):
                self.jobs.submit(lambda: time.sleep(1), lambda _result, _error: self.jobs.submit(write, then))

        self.jobs.submit(write, then)
        self._settle(lambda: bool(is_written))
        return bool(is_written)

    def _finish(self, decision: Decision) -> None:
        last = "" if self.rows.last is None else json.dumps(self.rows.last, separators=(",", ":"))
        cause = Cause.of(decision.cause).headline() if decision.cause is not None else ""
        said = cause.removeprefix(f"{decision.outcome}: ")
        text = "" if said in ("", decision.outcome, decision.reason) else f": {said}"
        why = "" if decision.reason in (decision.outcome, "error") else f" ({decision.reason})"
        log.info("%s %s%s%s", shown(self.fence.unit), decision.outcome, why, text)
        _publish(
            lambda: self.calls.trial_finish(
                self.fence,
                to=decision.to,
                reason=decision.reason,
                cause=decision.cause,
                outcome=decision.outcome,
                fails_up=decision.fails_up,
                delay_ms=0,
                last=last,
            )
        )

    def _hand_back(self, reason: str, *, delay_ms: int = 0, is_counted: bool = False) -> None:
        log.info("%s goes back to pending: %s", shown(self.fence.unit), reason)
        _publish(lambda: self.calls.trial_handback(self.fence, reason=reason, delay_ms=delay_ms, counted=is_counted))

    def _adopt(self, prepared: Prepared) -> None:
        """An earlier attempt decided the trial and died before it could publish that: it is published now; no user code
        runs."""
        outcome = prepared.adopted
        assert outcome is not None
        last = "" if outcome.last is None else json.dumps(encode(outcome.last, "last"), separators=(",", ":"))
        _publish(
            lambda: self.calls.trial_finish(
                self.fence,
                to=outcome.status,
                reason=outcome.reason or "finished",
                cause=outcome.cause,
                outcome=outcome.status,
                fails_up=0,
                delay_ms=0,
                last=last,
            )
        )


def _publish(call: Callable[[], Reply]) -> None:
    """Says it until the server has answered: every such script takes a repeat as one."""
    while True:
        try:
            reply = call()
        except NoContact:
            time.sleep(PUBLISH_RETRY_S)
            continue
        if reply.word == "LOST":
            log.warning("an attempt that ended is no longer ours: a later one adopts what it wrote")
        return
