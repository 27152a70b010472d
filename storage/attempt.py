"""What one attempt of a trial or stage writes: its claim, rows, checkpoints, log, and its outcome.

Only the guardian that holds the attempt's fence writes here, and every file's name carries that fence. A trial that
reports nothing costs two files: the claim and the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowctl.dsl.names import check_step_name
from flowctl.storage import snapshot
from flowctl.storage.errors import AlreadyExists, CheckpointError
from flowctl.storage.manifest import Manifest, ManifestFile, ManifestRef
from flowctl.storage.records import encode_record, strict
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.segment import Segment, decode_rows, digest_of, encode_rows
from flowctl.storage.trial_files import OBJECTS, Fence, check_fence, name_of, trial_folder


class AttemptFolder:
    """The files of the attempt (`epoch`, `nonce`) of unit (`step`, `index`). Making one touches nothing."""

    def __init__(self, run_folder: RunFolder, step: str, index: int, epoch: int, nonce: str) -> None:
        self.run_folder = run_folder
        self.step = check_step_name(step)
        self.index = index
        self.fence = check_fence(epoch, nonce)
        self.path = trial_folder(step, index)
        self._folder = run_folder.folder.child(self.path)

    def write_claim(
        self,
        *,
        attempt: int,
        worker: str,
        boot: str,
        server_ms: int,
        base: ManifestRef | None,
        outcomes_seen: Iterable[tuple[int, str]],
        inputs: Any = None,
    ) -> None:
        """Say that this attempt runs from `base`, and which earlier outcomes (fences) it saw; nothing runs before.

        May be written again by the same guardian, for example with another base when the first proved damaged.
        """
        self._write_record(
            "claim",
            {
                "attempt": attempt,
                "worker": worker,
                "boot": boot,
                "server_ms": server_ms,
                "base": base.to_json() if base else None,
                "outcomes_seen": [{"epoch": epoch, "nonce": nonce} for epoch, nonce in outcomes_seen],
                "inputs": strict(inputs, "inputs"),
            },
        )

    def write_rows(self, first_seq: int, rows: Sequence[Mapping[str, Any]]) -> Segment:
        """Write rows as a segment whose first row has `seq` = `first_seq`.

        An existing segment is never changed: rows that it holds already are left out, and what is beyond them becomes
        a segment of its own, which is then the one returned.
        """
        if not rows or rows[0]["seq"] != first_seq:
            raise ValueError(f"rows must start with seq {first_seq}")
        name = name_of("rows", self.fence, first_seq)
        data = encode_rows(rows)
        try:
            self._folder.write(name, data, exclusive=True)
        except AlreadyExists:
            there = self._folder.read(name)
            if there != data:
                kept, _ = decode_rows(there, self.fence)
                last = max((row["seq"] for row in kept), default=first_seq)
                beyond = [row for row in rows if row["seq"] > last]
                if beyond:
                    return self.write_rows(beyond[0]["seq"], beyond)
                return Segment(name, len(there), digest_of(there), first_seq, len(kept))
        return Segment(name, len(data), digest_of(data), first_seq, len(rows))

    def commit_checkpoint(
        self,
        local_dir: str | Path,
        *,
        seq: int,
        metrics: Mapping[str, Any],
        iteration: int,
        server_ms: int,
        segments: Sequence[Segment],
        row: Mapping[str, Any] | None = None,
    ) -> ManifestRef:
        """Copy a local folder and, when all of it is safe, write its manifest; only then is there a checkpoint.

        The folder must not change meanwhile. Raises `CheckpointError` for what is wrong with the folder.
        """
        taken = snapshot.take(local_dir)
        objects = f"{self.path}/{OBJECTS}"
        files = [self._put(one, objects) for one in taken.files]
        if files:
            self.run_folder.folder.sync(objects)
        ref = ManifestRef(self.fence.epoch, self.fence.nonce, seq, iteration)
        plain = strict(dict(metrics), "metrics")
        whole = None if row is None else strict(dict(row), "row")
        manifest = Manifest(ref, plain, server_ms, tuple(files), taken.folders, tuple(segments), whole)
        self._write_record("manifest", manifest.to_json(), number=seq)
        return ref

    def write_outcome(
        self,
        *,
        status: str,
        cause: Mapping[str, Any] | None,
        reason: str | None,
        last: Mapping[str, Any] | None,
        best: Mapping[str, Any] | None,
        counts: Mapping[str, Any],
        segments: Sequence[Segment],
        output: Any,
        server_ms: int,
        started_ms: int | None,
    ) -> None:
        """Write how the attempt ended. A status of `FINAL` decides the trial; the broker only publishes it."""
        self._write_record(
            "outcome",
            {
                "status": status,
                "cause": strict(dict(cause), "cause") if cause is not None else None,
                "reason": reason,
                "last": strict(dict(last), "last") if last is not None else None,
                "best": strict(dict(best), "best") if best is not None else None,
                "counts": strict(dict(counts), "counts"),
                "segments": [one.to_json() for one in segments],
                "output": strict(output, "output"),
                "server_ms": server_ms,
                "started_ms": started_ms,
            },
        )

    def write_log(self, offset: int, data: bytes) -> None:
        """Write a piece of what the trial printed, from byte `offset` on. Survives any process, not a power cut."""
        self._folder.write(name_of("log", self.fence, offset), data, durable=False)

    def _write_record(self, kind: str, fields: Mapping[str, Any], *, number: int | None = None) -> None:
        where = {"step": self.step, "index": self.index, **fence_fields(self.fence)}
        run = self.run_folder
        data = encode_record(run.keyring, kind=kind, run=run.run, fields={**where, **fields})
        self._folder.write(name_of(kind, self.fence, number), data)

    def _put(self, one: snapshot.SnapshotFile, objects: str) -> ManifestFile:
        try:
            name, size = self.run_folder.folder.put_object(one.local, objects)
        except OSError as error:
            raise CheckpointError(f"the file cannot be copied ({error})", place=str(one.local)) from error
        return ManifestFile(one.path, size, f"sha256:{name}", name, one.executable)


def fence_fields(fence: Fence) -> dict[str, Any]:
    """The fence as the fields of a record."""
    return {"epoch": fence.epoch, "nonce": fence.nonce}
