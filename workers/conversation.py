"""What a trial says and is told: reports, checkpoints, its last word. Its reports go on to the server from here.

A report with a checkpoint goes in this order: files, manifest, server, answer. So a checkpoint that a trial was told of
is safe, and a metric that it was told of is in the results.
"""

import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowctl.broker.calls import Reply
from flowctl.dsl.jsonvalue import encode
from flowctl.storage.attempt import AttemptFolder
from flowctl.storage.errors import StorageError
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.channel import Frame, FrameReader, pack
from flowctl.workers.grant import Grant
from flowctl.workers.hosting import Hosting
from flowctl.workers.jobs import Jobs
from flowctl.workers.lease import Lease
from flowctl.workers.outbox import Outbox, Report
from flowctl.workers.preparation import PATIENCE_S, Claimed, Prepared
from flowctl.workers.rows import RowLog

SEND_S = 30.0
_text_of = json.JSONEncoder(separators=(",", ":")).encode
log = logging.getLogger("flowctl")


class Conversation:
    """With one trial process. `said` is its last word; `stop_reason` why it was told to end, or decided to."""

    def __init__(
        self,
        channel: socket.socket,
        *,
        jobs: Jobs,
        lease: Lease,
        claimed: Claimed,
        grant: Grant,
        rows: RowLog,
        folder: Path,
        on_wanted: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._jobs = jobs
        self._lease = lease
        self._claimed = claimed
        self._grant = grant
        self._rows = rows
        self._folder = folder
        self._on_wanted = on_wanted
        self._frames = FrameReader()
        self._seq = 0
        self._newest: ManifestRef | None = None
        self._prepared: Prepared | None = None
        self._hosting: Hosting | None = None
        self.outbox = Outbox()
        self.said: dict[str, Any] | None = None
        self.stop_reason: str | None = None

    def begin(self, prepared: Prepared, *, worker: str) -> None:
        """Tells the waiting interpreter what to run."""
        self._prepared = prepared
        self._hosting = Hosting(self._jobs, self._lease, prepared.folder, self._send)
        step = prepared.step
        self._send(
            {
                "kind": step.kind,
                "payload": str(prepared.payload),
                "config": encode(dict(prepared.config), "config"),
                "inputs": prepared.inputs,
                "keyword_inputs": prepared.keyword_inputs,
                "stop": dict(step.stop) if step.stop else None,
                "metric": step.metric,
                "iteration": prepared.base.iteration if prepared.base else 0,
                "time_before_s": prepared.time_before_s,
                "context": {
                    "run": prepared.folder.run_folder.run,
                    "step": step.name,
                    "trial": prepared.folder.index,
                    "attempt": self._claimed.attempt,
                    "worker": worker,
                    "seed": step.seed,
                    **self._grant.context,
                },
                "bundles": [bundle.to_json() for bundle in self._claimed.bundles],
                "devices": self._grant.session,
            }
        )

    def read(self) -> bool:
        """Takes what the trial said. False at the end of the stream. Raises ValueError if it is not our protocol."""
        while True:
            try:
                data = self._channel.recv(1 << 20)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            for frame in self._frames.feed(data):
                self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.get("t")
        if kind == "report":
            self._on_report(frame)
        elif kind == "get_checkpoint":
            self._jobs.submit(self._own_checkpoint, self._answer_path)
        elif kind == "fetch":
            self._jobs.submit(lambda: self._foreign_checkpoint(frame["ref"]), self._answer_path)
        elif str(kind).startswith("host_") and self._hosting is not None:
            self._hosting.on_frame(frame)
        elif kind == "stopping":
            self.stop_reason = self.stop_reason or str(frame["reason"])
        elif kind == "end":
            self.said = frame
            if frame.get("output_checkpoint"):
                self._commit_output(frame)
            self._on_wanted("END")

    # --- reports ---

    def _on_report(self, frame: Frame) -> None:
        self._seq += 1
        fence = self._lease.fence
        row = {
            "epoch": fence.epoch,
            "nonce": fence.nonce,
            "seq": self._seq,
            "training_iteration": int(frame["training_iteration"]),
            "attempt": self._claimed.attempt,
            "time_total_s": frame["time_total_s"],
            "timestamp": frame["timestamp"],
            "metrics": frame["metrics"],
        }
        if frame["checkpoint"] is None:
            self._put_report(row, None)
            return

        def then(ref: ManifestRef | None, error: BaseException | None) -> None:
            if ref is None:
                self._send({"error": f"the checkpoint could not be saved: {error}"})
            else:
                self._newest = ref
                self._put_report(row, ref)

        self._commit(frame["checkpoint"], row=row, then=then)

    def _put_report(self, row: dict[str, Any], ref: ManifestRef | None) -> None:
        assert self._prepared is not None
        value = self._rows.add(row, metric=self._prepared.step.metric)
        last = _text_of(row["metrics"])
        text = f'{_text_of({name: part for name, part in row.items() if name != "metrics"})[:-1]},"metrics":{last}}}'
        checkpoint = None if ref is None else ref.to_json()

        def send() -> Reply:
            return self._lease.broker.calls.trial_report(
                self._lease.fence,
                seq=row["seq"],
                row=text,
                last=last,
                iteration=row["training_iteration"],
                value=value,
                checkpoint=checkpoint,
            )

        def answer(reply: Reply | None) -> None:
            if reply is not None and reply.word != "CONTINUE":
                self._on_wanted(reply.word)
            self._send({"stop": self.stop_reason} if self.stop_reason else {})

        def sent(reply: Reply) -> None:
            if reply.word != "LOST":
                self._rows.sent(row["seq"])

        self.outbox.put(Report(send, answer, sent))

    # --- checkpoints ---

    def _own_checkpoint(self) -> Path | None:
        assert self._prepared is not None
        if self._newest is None:
            return self._prepared.base_folder
        return self._restored(self._prepared.reader, self._newest)

    def _foreign_checkpoint(self, ref: Mapping[str, Any]) -> Path:
        assert self._prepared is not None
        reader = TrialReader(self._prepared.folder.run_folder, str(ref["step"]), int(ref["index"]))
        return self._restored(reader, ManifestRef.from_json(ref["manifest"]))

    def _restored(self, reader: TrialReader, ref: ManifestRef) -> Path:
        target = self._folder / f"checkpoint-{reader.step}-{reader.index}-{ref.epoch}-{ref.nonce}-{ref.seq}"
        return target if target.exists() else Path(reader.restore(ref, target))

    def _answer_path(self, path: Path | None, error: BaseException | None) -> None:
        self._send({"error": str(error)} if error is not None else {"path": None if path is None else str(path)})

    def _commit_output(self, frame: Frame) -> None:
        self._seq += 1

        def then(ref: ManifestRef | None, error: BaseException | None) -> None:
            if ref is None:
                text = f"the returned checkpoint could not be saved: {error}"
                cause = {"kind": "exception", "type": type(error).__name__, "text": text}
                self.said = {"t": "end", "status": "failed", "cause": cause}
            else:
                frame["output"] = {"$manifest": ref.to_json()}

        self._commit(frame["output_checkpoint"], row=None, then=then)

    def _commit(
        self,
        path: str,
        *,
        row: Mapping[str, Any] | None,
        then: Callable[[ManifestRef | None, BaseException | None], None],
    ) -> None:
        """`row` is the report's; None for a stage's output, which counts as a report of its own."""
        seq, segments = self._seq, tuple(self._rows.segments)

        def commit() -> ManifestRef:
            assert self._prepared is not None
            folder = self._prepared.folder
            return self._patiently(lambda: put(folder))

        def put(folder: AttemptFolder) -> ManifestRef:
            return folder.commit_checkpoint(
                path,
                seq=seq,
                metrics={} if row is None else row["metrics"],
                iteration=seq if row is None else row["training_iteration"],
                server_ms=self._lease.now_ms(),
                segments=segments,
                row=row,
            )

        self._jobs.submit(commit, then)

    def _patiently(self, work: Callable[[], ManifestRef]) -> ManifestRef:
        """Storage that is full or away for a while is waited for, up to PATIENCE_S, unless the trial is to end."""
        deadline, delay_s = time.monotonic() + PATIENCE_S, 0.25
        while True:
            try:
                ref = work()
            except StorageError as error:
                if time.monotonic() > deadline or self.stop_reason is not None:
                    raise
                if not self._lease.note:
                    log.warning("%s waits for its storage: %s", self._lease.fence.unit, error)
                self._lease.note = f"waits for its storage: {error}"
                time.sleep(delay_s)
                delay_s = min(2 * delay_s, 5.0)
            else:
                self._lease.note = ""
                return ref

    def _send(self, frame: Frame) -> None:
        """To the trial. That it has gone meanwhile is no error: its end is noticed elsewhere."""
        data = pack(frame)
        with contextlib.suppress(OSError):
            data = data[self._channel.send(data) :]
        if not data:
            return
        with contextlib.suppress(OSError):
            self._channel.settimeout(SEND_S)
            self._channel.sendall(data)
        self._channel.setblocking(False)
