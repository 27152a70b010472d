"""Manifests: the list of a checkpoint's files, written last. No manifest, no checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowctl.dsl.jsonvalue import decode
from flowctl.storage.errors import DamagedRecord
from flowctl.storage.segment import Segment
from flowctl.storage.trial_files import Fence, check_fence, name_of

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ManifestRef:
    """Which checkpoint of a trial: its attempt's fence, its number `seq`, and the `training_iteration` it stands at."""

    epoch: int
    nonce: str
    seq: int
    iteration: int

    @property
    def fence(self) -> Fence:
        return Fence(self.epoch, self.nonce)

    @property
    def name(self) -> str:
        """The name of its file in the trial's folder."""
        return name_of("manifest", check_fence(self.epoch, self.nonce), self.seq)

    def to_json(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "nonce": self.nonce, "seq": self.seq, "iteration": self.iteration}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ManifestRef:
        return cls(int(value["epoch"]), str(value["nonce"]), int(value["seq"]), int(value["iteration"]))


@dataclass(frozen=True)
class ManifestFile:
    """A file of a checkpoint: `path` in it, bytes, `sha256:…`, the name of its object, and whether it may be run."""

    path: str
    size: int
    digest: str
    object: str
    executable: bool = False

    def to_json(self) -> dict[str, Any]:
        value = {"path": self.path, "size": self.size, "digest": self.digest, "object": self.object}
        return {**value, "executable": True} if self.executable else value


@dataclass(frozen=True)
class Manifest:
    """A checkpoint: its files and empty folders, the metrics of its report, and the segments written before it.

    `row` is that report's whole row (None for a stage's output): a guardian that dies between manifest and report loses
    nothing.
    """

    ref: ManifestRef
    metrics: dict[str, Any]
    server_ms: int
    files: tuple[ManifestFile, ...]
    folders: tuple[str, ...]
    segments: tuple[Segment, ...]
    row: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.ref.to_json(),
            "server_ms": self.server_ms,
            "metrics": self.metrics,
            "size": self.size,
            "files": [one.to_json() for one in self.files],
            "folders": list(self.folders),
            "segments": [one.to_json() for one in self.segments],
            "row": self.row,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, path: str) -> Manifest:
        """The manifest of a verified record. Raises `DamagedRecord`, also for a path that leads out of the folder."""
        try:
            files = tuple(_file(one) for one in value["files"])
            folders = tuple(_inner(one) for one in value["folders"])
            segments = tuple(Segment.from_json(one) for one in value["segments"])
            ref = ManifestRef.from_json(value)
            row = value.get("row")
            return cls(ref, decode(value["metrics"]), int(value["server_ms"]), files, folders, segments, row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedRecord(f"the manifest lacks or garbles {error}", place=path) from error


def _file(value: Mapping[str, Any]) -> ManifestFile:
    name = str(value["object"])
    if not _HEX.fullmatch(name) or value["digest"] != f"sha256:{name}":
        raise ValueError(f"the object {name!r}")
    return ManifestFile(_inner(value["path"]), int(value["size"]), value["digest"], name, bool(value.get("executable")))


def _inner(path: Any) -> str:
    if not isinstance(path, str) or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"the path {path!r}")
    return path
