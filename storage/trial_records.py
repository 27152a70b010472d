"""How an attempt began and how it ended, as read from its signed records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowctl.dsl.jsonvalue import decode
from flowctl.storage.errors import DamagedRecord
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.segment import Segment
from flowctl.storage.trial_files import Fence

FINAL = frozenset({"completed", "failed", "cancelled"})
"""The statuses of an outcome that end a trial; any other (`pending`: to be retried, `paused`) ends the attempt only."""


@dataclass(frozen=True)
class Claim:
    """An attempt as it began."""

    fence: Fence
    attempt: int
    worker: str
    boot: str
    server_ms: int
    base: ManifestRef | None
    outcomes_seen: tuple[Fence, ...]
    inputs: Any

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, path: str) -> Claim:
        """The claim of a verified record. Raises `DamagedRecord`."""
        try:
            return cls(
                fence=_fence(value),
                attempt=int(value["attempt"]),
                worker=str(value["worker"]),
                boot=str(value["boot"]),
                server_ms=int(value["server_ms"]),
                base=ManifestRef.from_json(value["base"]) if value["base"] is not None else None,
                outcomes_seen=tuple(_fence(one) for one in value["outcomes_seen"]),
                inputs=decode(value.get("inputs")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedRecord(f"the claim lacks or garbles {error}", place=path) from error


@dataclass(frozen=True)
class Outcome:
    """An attempt as it ended; `last`, `best` and `output` hold special floats as floats."""

    fence: Fence
    status: str
    cause: dict[str, Any] | None
    reason: str | None
    last: dict[str, Any] | None
    best: dict[str, Any] | None
    counts: dict[str, Any]
    segments: tuple[Segment, ...]
    output: Any
    server_ms: int
    started_ms: int | None

    @property
    def is_final(self) -> bool:
        """Whether it ends the trial, if it counts."""
        return self.status in FINAL

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, path: str) -> Outcome:
        """The outcome of a verified record. Raises `DamagedRecord`."""
        try:
            return cls(
                fence=_fence(value),
                status=str(value["status"]),
                cause=decode(value["cause"]),
                reason=value["reason"],
                last=decode(value["last"]),
                best=decode(value["best"]),
                counts=decode(value["counts"]),
                segments=tuple(Segment.from_json(one) for one in value["segments"]),
                output=decode(value["output"]),
                server_ms=int(value["server_ms"]),
                started_ms=value["started_ms"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedRecord(f"the outcome lacks or garbles {error}", place=path) from error


def _fence(value: Mapping[str, Any]) -> Fence:
    return Fence(int(value["epoch"]), str(value["nonce"]))
