"""What a trial's folder says: attempts, checkpoints, rows, log, and how it ended.

Making a reader touches nothing; each question lists the folder anew. What is damaged is passed over and noted in
`warnings`; it never makes another record unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flowctl.dsl.names import check_step_name
from flowctl.storage import chain, restore, trial_files
from flowctl.storage.errors import DamagedRecord, NotFound
from flowctl.storage.log_pieces import joined
from flowctl.storage.manifest import Manifest, ManifestRef
from flowctl.storage.records import Damage, decode_record
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.segment import Row, Segment, clean_row, decode_rows, digest_of
from flowctl.storage.trial_files import Fence, TrialFile
from flowctl.storage.trial_records import Claim, Outcome

T = TypeVar("T")


class TrialReader:
    """Reads the folder of trial or stage (`step`, `index`)."""

    def __init__(self, run_folder: RunFolder, step: str, index: int) -> None:
        self.run_folder = run_folder
        self.step = check_step_name(step)
        self.index = index
        self.path = trial_files.trial_folder(step, index)
        self.warnings: list[Damage] = []
        self.folder = run_folder.folder.child(self.path)

    # ---- records

    def files(self) -> list[TrialFile]:
        """All files of the folder whose names say what they are, by kind, fence and number."""
        found = (trial_files.parse(name) for name in self.folder.list())
        return sorted((one for one in found if one), key=lambda one: (one.kind, one.fence, one.number or 0))

    def claims(self) -> list[Claim]:
        """The claims that can be read, oldest first."""
        return self._claims(self.files())

    def outcomes(self) -> list[Outcome]:
        """The outcomes that can be read, by epoch."""
        return self._outcomes(self.files())

    def manifests(self) -> list[Manifest]:
        """The manifests that can be read, by epoch and number; whether all their files are there is not checked."""
        return self._manifests(self.files())

    def highest_epoch(self) -> int:
        """The highest epoch that any file names, readable or not; 0 if there is none."""
        return max((one.fence.epoch for one in self.files()), default=0)

    def final_outcome(self) -> Outcome | None:
        """The outcome that ends the trial, if one counts: no later claim exists, or the next one names it."""
        files = self.files()
        return chain.final_outcome(self._claims(files), self._outcomes(files))

    # ---- checkpoints

    def chain(self, *, strict: bool = False) -> ManifestRef | None:
        """The newest checkpoint on the chain whose manifest holds and whose files are there in full length.

        That is the newest manifest of the newest attempt, else its base, else what came before, each damaged one with
        a warning. With `strict`, raises `DamagedRecord` if there are some and all of them are damaged.
        """
        return next(self._intact(strict=strict), (None, None))[0]

    def restore(self, ref: ManifestRef, local_dir: str | Path) -> Path:
        """Make `local_dir` from a checkpoint, verified while it is copied: all of it, or nothing.

        The folder must be absent or empty. Raises `DamagedRecord` or `NotFound` if the checkpoint is not as it was.
        """
        return restore.restore(self.folder, self.load_manifest(ref), Path(local_dir))

    def restore_newest(self, local_dir: str | Path) -> ManifestRef | None:
        """Make `local_dir` from the newest checkpoint on the chain that is intact to the last byte, and say which.

        None, and no folder, if there is none. This, done before the claim is written, is the claim's base.
        """
        for ref, manifest in self._intact(strict=False):
            try:
                restore.restore(self.folder, manifest, Path(local_dir))
            except (DamagedRecord, NotFound) as error:
                self._warn(ref.name, str(error))
            else:
                return ref
        return None

    def load_manifest(self, ref: ManifestRef) -> Manifest:
        """The manifest `ref`, verified. Raises `NotFound`, `DamagedRecord`."""
        file = trial_files.parse(ref.name)
        assert file is not None
        return self._manifest(file)

    # ---- rows and log

    def rows(self, tail: Iterable[Mapping[str, Any]] = ()) -> list[Row]:
        """The rows that count, along the chain: each `training_iteration` once, in order.

        `tail` are rows that the broker still holds; each has `epoch` and `nonce` beside the keys of a stored row, and
        may stand on storage as well.
        """
        files = self.files()
        claims, outcomes = self._claims(files), self._outcomes(files)
        rows = [row for row in map(self._tail_row, tail) if row is not None]
        rows += self._stored_rows(files, self._signed_segments(files, outcomes))
        rows += self._manifest_rows(files, {(row["epoch"], row["nonce"], row["seq"]) for row in rows})
        first: dict[Fence, int] = {}
        for row in rows:
            fence = Fence(row["epoch"], row["nonce"])
            first[fence] = min(row["training_iteration"], first.get(fence, row["training_iteration"]))
        known = {one.fence for one in files if one.kind != "log"} | set(first)
        final = chain.final_outcome(claims, outcomes)
        return chain.merge(chain.links(claims, known, final.fence if final else None, first), rows)

    def log(self, attempt: int | None = None, *, start: int = 0) -> bytes:
        """What an attempt printed, from byte `start` on; without a number, the newest attempt that has a log.

        Pieces that are lost leave a line that says how much.
        """
        files = [one for one in self.files() if one.kind in ("log", "claim")]
        fence = self._log_fence(files, attempt)
        return joined(self.folder, (one for one in files if one.fence == fence and one.kind == "log"), start=start)

    # ---- inside

    def _claims(self, files: Iterable[TrialFile]) -> list[Claim]:
        return chain.in_order(self._good(files, "claim", self._claim))

    def _outcomes(self, files: Iterable[TrialFile]) -> list[Outcome]:
        return self._good(files, "outcome", self._outcome)

    def _manifests(self, files: Iterable[TrialFile]) -> list[Manifest]:
        return self._good(files, "manifest", self._manifest)

    def _good(self, files: Iterable[TrialFile], kind: str, load: Callable[[TrialFile], T]) -> list[T]:
        good = []
        for one in files:
            if one.kind == kind:
                try:
                    good.append(load(one))
                except (DamagedRecord, NotFound) as error:
                    self._warn(one.name, str(error))
        return good

    def _record(self, file: TrialFile) -> dict[str, Any]:
        run = self.run_folder
        expect = {"step": self.step, "index": self.index, "epoch": file.fence.epoch, "nonce": file.fence.nonce}
        if file.kind == "manifest":
            expect["seq"] = file.number
        place = f"{self.folder.url}/{file.name}"
        data = self.folder.read(file.name)
        return decode_record(data, keyring=run.keyring, kind=file.kind, run=run.run, path=place, expect=expect)

    def _claim(self, file: TrialFile) -> Claim:
        return Claim.from_json(self._record(file), path=file.name)

    def _outcome(self, file: TrialFile) -> Outcome:
        return Outcome.from_json(self._record(file), path=file.name)

    def _manifest(self, file: TrialFile) -> Manifest:
        return Manifest.from_json(self._record(file), path=file.name)

    def _intact(self, *, strict: bool) -> Iterator[tuple[ManifestRef, Manifest]]:
        files = self.files()
        claims, outcomes = self._claims(files), self._outcomes(files)
        final = chain.final_outcome(claims, outcomes)
        known = {one.fence for one in files if one.kind != "log"}
        found = damaged = 0
        for link in chain.links(claims, known, final.fence if final else None, {}):
            mine = (one for one in files if one.kind == "manifest" and one.fence == link.fence)
            for file in sorted(mine, key=lambda one: one.number or 0, reverse=True):
                try:
                    manifest = self._manifest(file)
                    if link.through is not None and manifest.ref.iteration > link.through:
                        continue
                    restore.check_present(self.folder, manifest)
                except (DamagedRecord, NotFound) as error:
                    damaged += 1
                    self._warn(file.name, f"{error}; the checkpoint before it is used")
                else:
                    found += 1
                    yield manifest.ref, manifest
        if strict and damaged and not found:
            raise DamagedRecord("every checkpoint is damaged", place=self.folder.url, cure="see the warnings")

    def _signed_segments(self, files: list[TrialFile], outcomes: list[Outcome]) -> dict[str, Segment]:
        """The segments that outcomes name and, of attempts without one, their newest manifest."""
        ended = {one.fence for one in outcomes}
        newest = {one.fence: one for one in files if one.kind == "manifest" and one.fence not in ended}
        lists = [one.segments for one in outcomes] + [one.segments for one in self._manifests(newest.values())]
        return {segment.path: segment for segments in lists for segment in segments}

    def _stored_rows(self, files: Iterable[TrialFile], signed: Mapping[str, Segment]) -> list[Row]:
        rows: list[Row] = []
        for file in files:
            if file.kind != "rows":
                continue
            try:
                data = self.folder.read(file.name)
            except NotFound as error:
                self._warn(file.name, str(error))
                continue
            segment = signed.get(file.name)
            if segment is not None and (len(data) != segment.size or digest_of(data) != segment.digest):
                self._warn(file.name, "the rows are not what was written")
                continue
            good, bad = decode_rows(data, file.fence)
            if bad:
                self._warn(file.name, f"{bad} rows cannot be read")
            rows += good
        return rows

    def _manifest_rows(self, files: Iterable[TrialFile], there: set[tuple[int, str, int]]) -> list[Row]:
        """Rows that only their checkpoint's manifest holds: the guardian died before it could report them."""
        lacking = [one for one in files if one.kind == "manifest" and (*one.fence, one.number) not in there]
        rows = []
        for manifest in self._manifests(lacking):
            row = None if manifest.row is None else clean_row(manifest.row, manifest.ref.fence)
            if row is not None:
                rows.append(row)
        return rows

    def _tail_row(self, row: Mapping[str, Any]) -> Row | None:
        try:
            fence = trial_files.check_fence(int(row["epoch"]), str(row["nonce"]))
        except (KeyError, TypeError, ValueError) as error:
            self._warn("the broker's tail", f"a row without its fence ({error})")
            return None
        good = clean_row(row, fence)
        if good is None:
            self._warn("the broker's tail", "a row cannot be read")
        return good

    def _log_fence(self, files: list[TrialFile], attempt: int | None) -> Fence | None:
        with_log = {one.fence for one in files if one.kind == "log"}
        if attempt is None and len(with_log) <= 1:
            return next(iter(with_log), None)
        ordered = self._claims(files)
        if attempt is not None:
            return next((one.fence for one in reversed(ordered) if one.attempt == attempt), None)
        return next((one.fence for one in reversed(ordered) if one.fence in with_log), max(with_log))

    def _warn(self, name: str, reason: str) -> None:
        damage = Damage(f"{self.path}/{name}", reason)
        if damage not in self.warnings:
            self.warnings.append(damage)
