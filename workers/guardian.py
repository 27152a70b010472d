"""The guardian: the pool process that owns one attempt. It claims, prepares, starts the trial process, watches it, and publishes its end.

One loop in one thread speaks to the server and to the trial; storage work runs beside it in order. Whatever the loop waits for, the lease is
renewed. Invariant: the outcome record is written only when the whole tree of the trial is gone, and published only when it is written.
"""

import json
import logging
import os
import secrets
import select
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from flowctl.broker.calls import Fence, Reply
from flowctl.broker.contact import NoContact
from flowctl.broker.store import Broker
from flowctl.dsl.errors import FlowctlError
from flowctl.storage.errors import StorageUnreachable
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.segment import Segment
from flowctl.storage.signing import Keyring
from flowctl.workers import attention, units
from flowctl.workers.channel import Frame, FrameReader, pack
from flowctl.workers.decision import Budget, Decision, Ending, decide
from flowctl.workers.identity import Identity
from flowctl.workers.jobs import Jobs
from flowctl.workers.outbox import Outbox, Report
from flowctl.workers.output import Output
from flowctl.workers.preparation import Claimed, Prepared, prepare
from flowctl.workers.process import Exit, TrialProcess
from flowctl.workers.rows import RowLog

STOP_GRACE_S = 10.0
log = logging.getLogger("flowctl")


class Guardian:
    """One attempt, from claim to finish. `run` returns when there is nothing more to do for it here."""

    def __init__(self, *, unit: str, epoch: int, identity: Identity, broker: Broker, keyring: Keyring, home: Path) -> None:
        self.fence = Fence(unit, epoch, secrets.token_hex(8))
        self.identity = identity
        self.broker = broker
        self.keyring = keyring
        self.home = home
        self.jobs = Jobs()
        self.outbox = Outbox()
        self.frames = FrameReader()
        self.said: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self.is_lost = False
        self.exit: Exit | None = None
        self.prepared: Prepared | None = None
        self.refusal: str | None = None
        self.kill_at: float | None = None
        self.renew_at = 0.0
        self.seq = 0
        self.checkpoint: ManifestRef | None = None

    # --- life ---

    def run(self) -> None:
        """Claims and carries the attempt; returns at once if it is not ours to run."""
        with units.taken(self.identity.units, unit=self.fence.unit, epoch=self.fence.epoch, nonce=self.fence.nonce):
            claimed = self._claim()
            if claimed is None:
                return
            folder = self.identity.folder / f"{self.identity.boot}-{self.fence.nonce}"
            folder.mkdir(mode=0o700)
            try:
                self._carry(claimed, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _claim(self) -> Claimed | None:
        deadline = time.monotonic() + self.broker.calls.times.dispatch_ms / 1000
        while True:
            try:
                reply = self.broker.calls.trial_claim(self.fence, boot=self.identity.boot)
                break
            except NoContact:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.2)
        if reply.word != "OK":
            log.info("not ours: %s epoch %s (%s)", self.fence.unit, self.fence.epoch, " ".join((reply.word, *reply.rest)))
            return None
        value = reply.value
        self._clock = (int(value["now_ms"]), time.monotonic())
        return Claimed(
            fence=self.fence, attempt=value["attempt"], fails=value["fails"], now_ms=value["now_ms"], location=value["location"],
            token=value["token"], is_first=self.fence.epoch == 1 and value["attempt"] == 1,
        )  # fmt: skip

    def _carry(self, claimed: Claimed, folder: Path) -> None:
        self.claimed = claimed
        self.folder = folder
        work = folder / "work"
        work.mkdir()
        ours, theirs = socket.socketpair()
        nudges = attention.listen(self.identity.boot, self.fence.unit)
        mark = f"{self.identity.boot}/{self.fence.unit}/{self.fence.epoch}/{self.fence.nonce}"
        process = TrialProcess.start(channel_fd=theirs.fileno(), folder=work, mark=mark, env=os.environ)
        theirs.close()
        ours.setblocking(False)
        self.process, self.channel = process, ours
        self.output = Output(self.jobs, self._write_log)
        self.rows = RowLog(self.jobs, write=self._write_rows, trim=self._trim_rows)
        self.renew_at = time.monotonic() + self._period_s
        self.jobs.submit(
            lambda: prepare(claimed, broker=self.broker, keyring=self.keyring, cache=self.home / "cache" / "payload", worker=self.identity.worker,
                            boot=self.identity.boot, is_wanted=lambda: not self.is_lost),
            self._on_prepared,
        )  # fmt: skip
        try:
            self._watch(nudges)
            process.sweep()
            self._drain_output()
            if not self.is_lost:
                self._close(nudges)
        finally:
            process.kill()
            process.close()
            ours.close()
            nudges.close()
            self._idle()
            self.jobs.close()

    @property
    def _period_s(self) -> float:
        return self.broker.calls.times.lease_ms / 4000

    def _now_ms(self) -> int:
        """The server's time, from its last answer and this process' steady clock."""
        return self._clock[0] + int((time.monotonic() - self._clock[1]) * 1000)

    # --- the loop ---

    def _watch(self, nudges: socket.socket) -> None:
        """Until the trial process has ended and all that it said is answered."""
        poll = select.poll()
        for fd in (self.process.pidfd, self.process.output_fd, self.channel.fileno(), nudges.fileno(), self.jobs.fd):
            poll.register(fd, select.POLLIN)
        while self.exit is None:
            ready = dict(poll.poll(self._timeout_ms()))
            if self.jobs.fd in ready:
                self.jobs.collect()
            if self.process.output_fd in ready and not self._read_output():
                poll.unregister(self.process.output_fd)
            if self.channel.fileno() in ready and not self._read_channel():
                poll.unregister(self.channel.fileno())
            if nudges.fileno() in ready:
                self._on_nudge(attention.drain(nudges))
            if self.process.pidfd in ready:
                self._read_channel()
                self.exit = self.process.wait()
            self._on_time()

    def _timeout_ms(self) -> int:
        times = [self.renew_at, self.kill_at, self.outbox.retry_at, self.rows.flush_at, self.output.flush_at]
        return max(0, int((min(at for at in times if at is not None) - time.monotonic()) * 1000) + 1)

    def _on_time(self) -> None:
        now = time.monotonic()
        if now >= self.renew_at:
            self._renew()
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.process.kill()
        self.outbox.pump()
        self.rows.flush_due(now)
        self.output.flush_due(now)

    def _on_nudge(self, what: bytes) -> None:
        if b"p" in what:
            self._stop("preempted")
        self._renew()

    def _renew(self) -> None:
        if self.is_lost:
            self.renew_at = time.monotonic() + self._period_s
            return
        try:
            reply = self.broker.calls.trial_renew(self.fence)
        except NoContact:
            self.renew_at = time.monotonic() + min(1.0, self._period_s)
            return
        self.renew_at = time.monotonic() + self._period_s
        if reply.word == "LOST":
            self._lose()
        else:
            self._clock = (int(reply.rest[0]), time.monotonic())
            if reply.word == "CANCEL":
                self._stop("cancelled")

    def _lose(self) -> None:
        """Another attempt has the unit, or it has ended: what runs here must not go on, and nothing more is written."""
        log.warning("lost %s epoch %s: stopping it", self.fence.unit, self.fence.epoch)
        self.is_lost = True
        self.process.kill()

    def _stop(self, reason: str) -> None:
        """Asks the trial to end; the first reason stands, except that a cancel outweighs a preemption."""
        if self.stop_reason is None or (reason == "cancelled" and self.stop_reason == "preempted"):
            self.stop_reason = reason
        if self.kill_at is None and self.exit is None:
            if self.prepared is None:
                self.process.kill()
            else:
                self.kill_at = time.monotonic() + STOP_GRACE_S
                self.process.terminate()

    # --- preparation ---

    def _on_prepared(self, prepared: Prepared | None, error: BaseException | None) -> None:
        if error is not None or prepared is None:
            if error is not None and not isinstance(error, FlowctlError | OSError | NoContact):
                log.error("could not prepare %s", self.fence.unit, exc_info=error)
            where = f"worker {self.identity.worker} cannot see {self.claimed.location}: " if isinstance(error, StorageUnreachable) else ""
            self.refusal = where + str(error)
            self.process.kill()
            return
        self.prepared = prepared
        if prepared.adopted is not None or self.stop_reason is not None or self.is_lost:
            self.process.kill()
            return
        step = prepared.step
        self._send({
            "kind": step.kind, "payload": str(prepared.payload), "config": _encoded(prepared.config),
            "inputs": prepared.inputs, "keyword_inputs": prepared.keyword_inputs, "stop": dict(step.stop) if step.stop else None,
            "metric": step.metric, "iteration": prepared.base.iteration if prepared.base else 0, "time_before_s": prepared.time_before_s,
            "context": {
                "run": prepared.folder.run_folder.run, "step": step.name, "trial": prepared.folder.index, "attempt": self.claimed.attempt,
                "worker": self.identity.worker, "seed": step.seed,
                "resources": {name: n if name == "memory" else n / 10_000 for name, n in step.resources.items() if name != "slot"},
            },
        })  # fmt: skip

    # --- the trial's words ---

    def _read_channel(self) -> bool:
        """Takes what the trial said. False at the end of the stream."""
        while True:
            try:
                data = self.channel.recv(1 << 20)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                frames = self.frames.feed(data)
            except ValueError:
                log.warning("%s broke the protocol of its channel: stopping it", self.fence.unit)
                self.process.kill()
                return False
            for frame in frames:
                self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.get("t")
        if kind == "report":
            self._on_report(frame)
        elif kind == "get_checkpoint":
            self.jobs.submit(self._newest_checkpoint, self._answer_path)
        elif kind == "fetch":
            self.jobs.submit(lambda: self._fetch(frame["ref"]), self._answer_path)
        elif kind == "stopping":
            self.stop_reason = self.stop_reason or str(frame["reason"])
        elif kind == "end":
            self.said = frame
            if frame.get("output_checkpoint"):
                self._commit_output(frame)
            if self.kill_at is None:
                self.kill_at = time.monotonic() + STOP_GRACE_S

    def _on_report(self, frame: Frame) -> None:
        self.seq += 1
        seq, path = self.seq, frame["checkpoint"]
        if path is None:
            self._put_report(seq, frame, None)
            return
        iteration, metrics, segments = int(frame["training_iteration"]), frame["metrics"], self.rows.segments

        def commit() -> ManifestRef:
            assert self.prepared is not None
            return self.prepared.folder.commit_checkpoint(
                path, seq=seq, metrics=metrics, iteration=iteration, server_ms=self._now_ms(), segments=tuple(segments)
            )

        def then(ref: ManifestRef | None, error: BaseException | None) -> None:
            if error is not None or ref is None:
                self._send({"error": f"the checkpoint could not be saved: {error}"})
            else:
                self.checkpoint = ref
                self._put_report(seq, frame, ref)

        self.jobs.submit(commit, then)

    def _put_report(self, seq: int, frame: Frame, ref: ManifestRef | None) -> None:
        row = {
            "epoch": self.fence.epoch, "nonce": self.fence.nonce, "seq": seq, "training_iteration": frame["training_iteration"],
            "attempt": self.claimed.attempt, "time_total_s": frame["time_total_s"], "timestamp": frame["timestamp"], "metrics": frame["metrics"],
        }  # fmt: skip
        assert self.prepared is not None
        value = self.rows.add(row, metric=self.prepared.step.metric)
        text, last = json.dumps(row, separators=(",", ":")), json.dumps(frame["metrics"], separators=(",", ":"))
        checkpoint = None if ref is None else ref.to_json()

        def send() -> Reply:
            return self.broker.calls.trial_report(
                self.fence, seq=seq, row=text, last=last, iteration=int(frame["training_iteration"]), value=value, checkpoint=checkpoint
            )

        def answer(reply: Reply | None) -> None:
            if reply is not None and reply.word == "LOST":
                self._lose()
            elif reply is not None and reply.word == "CANCEL":
                self._stop("cancelled")
            else:
                self.rows.sent(seq)
            self._send({"stop": self.stop_reason} if self.stop_reason else {})

        self.outbox.put(Report(send, answer))

    def _newest_checkpoint(self) -> Path | None:
        assert self.prepared is not None
        if self.checkpoint is not None:
            return self._restored(self.prepared.reader, self.checkpoint)
        if self.prepared.base is None:
            return None
        return self._restored(self.prepared.reader, self.prepared.base)

    def _fetch(self, ref: dict[str, Any]) -> Path:
        from flowctl.storage.trial_reader import TrialReader

        assert self.prepared is not None
        reader = TrialReader(self.prepared.folder.run_folder, str(ref["step"]), int(ref["index"]))
        return self._restored(reader, ManifestRef.from_json(ref["manifest"]))

    def _restored(self, reader: Any, ref: ManifestRef) -> Path:
        target = self.folder / f"checkpoint-{reader.step}-{reader.index}-{ref.epoch}-{ref.nonce}-{ref.seq}"
        return target if target.exists() else Path(reader.restore(ref, target))

    def _answer_path(self, path: Path | None, error: BaseException | None) -> None:
        self._send({"error": str(error)} if error is not None else {"path": None if path is None else str(path)})

    def _commit_output(self, frame: Frame) -> None:
        self.seq += 1
        seq = self.seq

        def commit() -> ManifestRef:
            assert self.prepared is not None
            return self.prepared.folder.commit_checkpoint(
                frame["output_checkpoint"], seq=seq, metrics={}, iteration=seq, server_ms=self._now_ms(), segments=()
            )

        def then(ref: ManifestRef | None, error: BaseException | None) -> None:
            if error is not None or ref is None:
                cause = {"kind": "exception", "type": type(error).__name__, "text": f"the returned checkpoint could not be saved: {error}"}
                self.said = {"t": "end", "status": "failed", "cause": cause}
            else:
                frame["output"] = {"$manifest": ref.to_json()}

        self.jobs.submit(commit, then)

    def _send(self, frame: Frame) -> None:
        """To the trial. A trial that has gone meanwhile is no error."""
        try:
            self.channel.setblocking(True)
            self.channel.settimeout(30)
            self.channel.sendall(pack(frame))
        except OSError:
            return
        finally:
            self.channel.setblocking(False)

    # --- output, rows, log ---

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

    def _trim_rows(self, seq: int) -> None:
        try:
            self.broker.calls.tail_trim(self.fence, seq=seq)
        except NoContact:
            return  # a row that stays in the tail is merged by its fence and number

    # --- the end ---

    def _idle(self) -> None:
        while not self.jobs.is_idle:
            select.select([self.jobs.fd], [], [], 1.0)
            self.jobs.collect()

    def _settle(self, nudges: socket.socket, *, until: Any) -> None:
        """Goes on renewing until a condition holds: storage work done, reports sent."""
        while not until() and not self.is_lost:
            times = [at for at in (self.renew_at, self.outbox.retry_at, self.rows.flush_at) if at is not None]
            select.select([self.jobs.fd, nudges.fileno()], [], [], max(0.0, min(times) - time.monotonic()))
            attention.drain(nudges)
            self.jobs.collect()
            if time.monotonic() >= self.renew_at:
                self._renew()
            self.outbox.pump()
            self.rows.flush_due(time.monotonic())

    def _close(self, nudges: socket.socket) -> None:
        self._settle(nudges, until=lambda: self.jobs.is_idle and len(self.outbox) == 0)
        if self.is_lost:
            return
        if self.refusal is not None:
            self._publish(lambda: self.broker.calls.trial_handback(self.fence, reason=self.refusal or "", delay_ms=5000))
            return
        if self.prepared is None:  # stopped before it could begin
            if self.stop_reason == "cancelled":
                self._publish_decision(Decision("cancelled", "cancelled", "cancelled", {"kind": "cancelled", "text": "cancelled"}))
            else:
                self._publish(lambda: self.broker.calls.trial_handback(self.fence, reason="its worker stopped"))
            return
        if self.prepared.adopted is not None:
            self._adopt(self.prepared)
            return
        assert self.exit is not None
        ending = Ending(
            exit=self.exit, said=self.said, stop_reason=self.stop_reason, metric=self.prepared.step.metric, has_metric=self.rows.has_metric,
            metric_names=tuple(self.rows.names),
        )  # fmt: skip
        decision = decide(ending, Budget(self.prepared.step.policy.max_failures, self.claimed.fails))
        self.output.finish()
        self.rows.flush()
        self._settle(nudges, until=lambda: self.jobs.is_idle and self.rows.is_drained)
        if self.is_lost:
            return
        self._write_outcome(decision, nudges)
        self._publish_decision(decision)
        if self.rows.written_seq:
            self._trim_rows(self.rows.written_seq)

    def _write_outcome(self, decision: Decision, nudges: socket.socket) -> None:
        """The record is the decision: it is tried until it is written or the attempt is lost."""
        prepared = self.prepared
        assert prepared is not None
        said = self.said or {}
        output = said.get("output") if decision.to == "completed" else None

        def write() -> None:
            prepared.folder.write_outcome(
                status=decision.to, cause=decision.cause, reason=decision.reason, last=self.rows.last, best=self.rows.best(prepared.step.mode),
                counts={"rows": self.rows.count, "attempt": self.claimed.attempt, "fails": self.claimed.fails + decision.fails_up},
                segments=self.rows.segments, output=output, server_ms=self._now_ms(), started_ms=self.claimed.now_ms,
            )  # fmt: skip

        state = {"done": False}

        def then(_: Any, error: BaseException | None) -> None:
            if error is None:
                state["done"] = True
            else:
                log.warning("the outcome of %s could not be written, trying again: %s", self.fence.unit, error)
                self.jobs.submit(lambda: time.sleep(1), lambda _result, _error: self.jobs.submit(write, then))

        self.jobs.submit(write, then)
        self._settle(nudges, until=lambda: state["done"])

    def _publish_decision(self, decision: Decision) -> None:
        if self.is_lost:
            return
        if decision.outcome == "preempted":
            self._publish(lambda: self.broker.calls.trial_handback(self.fence, reason=decision.reason, counted=True))
            return
        last = json.dumps(self.rows.last_plain) if self.rows.last_plain is not None else ""
        self._publish(
            lambda: self.broker.calls.trial_finish(
                self.fence, to=decision.to, reason=decision.reason, cause=decision.cause, outcome=decision.outcome, fails_up=decision.fails_up,
                delay_ms=0, last=last,
            )
        )  # fmt: skip

    def _adopt(self, prepared: Prepared) -> None:
        """An earlier attempt decided the trial and died before it could publish that: it is published now, no user code runs."""
        outcome = prepared.adopted
        assert outcome is not None
        last = "" if outcome.last is None else json.dumps(_encoded(outcome.last))
        self._publish(
            lambda: self.broker.calls.trial_finish(
                self.fence, to=outcome.status, reason=outcome.reason or "finished", cause=outcome.cause, outcome=outcome.status, fails_up=0,
                delay_ms=0, last=last,
            )
        )  # fmt: skip

    def _publish(self, call: Any) -> None:
        """Says it until the server has answered: every such script takes a repeat as one."""
        while True:
            try:
                reply = call()
            except NoContact:
                time.sleep(0.5)
                continue
            if reply.word == "LOST":
                log.warning("%s epoch %s is no longer ours: its outcome counts only if a later attempt adopts it", self.fence.unit, self.fence.epoch)
            return


def _encoded(value: Any) -> Any:
    from flowctl.dsl.jsonvalue import encode

    return encode(dict(value), "config")
