"""Read-only snapshots of workers: what each offers, what is booked there, and when it was last heard of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

LOST_CONTACT_MS = 3_000
"""A boot whose last beat is older than this has lost contact; its trials are still its own until their leases end."""


@dataclass(frozen=True)
class Held:
    """One allocation row: the tokens that one attempt (or what is left of it) holds on a boot."""

    unit: str
    epoch: int
    tokens: Mapping[str, int]
    state: str
    since_ms: int | None

    @property
    def is_orphan(self) -> bool:
        return self.state == "orphan"


@dataclass(frozen=True)
class WorkerView:
    """One boot of a worker. Units of `offer` and `used`: memory in MiB, everything else in 1/10,000."""

    worker: str
    boot: str
    host: str
    machine: str
    pid: int | None
    state: str
    is_accepting: bool
    python: str
    keys: tuple[str, ...]
    version: str
    started_ms: int | None
    last_ms: int
    offer: Mapping[str, int]
    used: Mapping[str, int]
    held: tuple[Held, ...]
    fields: Mapping[str, str]

    def free(self, dimension: str) -> int:
        return self.offer.get(dimension, 0) - self.used.get(dimension, 0)

    @property
    def detected(self) -> dict[str, int]:
        """What it found on its machine. Workers there share it: what one offers, others can offer once it leaves."""
        return _tokens(json.loads(self.fields.get("detected") or "{}"))

    def has_contact(self, at_ms: int) -> bool:
        return at_ms - self.last_ms <= LOST_CONTACT_MS

    def is_live(self, at_ms: int) -> bool:
        """Up, accepting and heard of lately: new work can be placed here."""
        return self.state == "up" and self.is_accepting and self.has_contact(at_ms)

    @property
    def only_run(self) -> str | None:
        """The one run that this worker takes, for a worker that `flowctl run` started."""
        return self.fields.get("only") or None


def load_workers(client: Any) -> list[WorkerView]:
    """All boots that are not gone, by worker name."""
    beats = cast(list[tuple[str, float]], client.zrange("fc:boots", 0, -1, withscores=True))
    pipe = client.pipeline(transaction=False)
    for boot, _ in beats:
        pipe.hgetall(f"fc:boot:{boot}")
        pipe.hgetall(f"fc:offer:{boot}")
        pipe.hgetall(f"fc:used:{boot}")
        pipe.hgetall(f"fc:alloc:{boot}")
    rows = pipe.execute() if beats else []
    found = [_worker(boot, int(beat), *rows[4 * i : 4 * i + 4]) for i, (boot, beat) in enumerate(beats) if rows[4 * i]]
    return sorted((each for each in found if each.state != "gone"), key=lambda each: (each.worker, each.boot))


def _worker(
    boot: str,
    beat_ms: int,
    fields: Mapping[str, str],
    offer: Mapping[str, str],
    used: Mapping[str, str],
    alloc: Mapping[str, str],
) -> WorkerView:
    keys = json.loads(fields.get("keys") or "[]")
    pid = fields.get("pid") or ""
    return WorkerView(
        worker=fields.get("worker") or boot,
        boot=boot,
        host=fields.get("host", ""),
        machine=fields.get("machine", ""),
        pid=int(pid) if pid.isdigit() else None,
        state=fields.get("state", "up"),
        is_accepting=fields.get("accepting", "1") in ("1", "true"),
        python=fields.get("python", ""),
        keys=tuple(keys) if isinstance(keys, list) else (),
        version=fields.get("version", ""),
        started_ms=int(fields["started_ms"]) if fields.get("started_ms") else None,
        last_ms=beat_ms or int(fields.get("last_ms") or 0),
        offer=_tokens(offer),
        used=_tokens(used),
        held=tuple(_held(name, json.loads(row)) for name, row in sorted(alloc.items())),
        fields=fields,
    )


def _held(name: str, row: Mapping[str, Any]) -> Held:
    unit, _, epoch = name.rpartition("@")
    tokens = row.get("v") or {}
    return Held(
        unit=unit,
        epoch=int(epoch or 0),
        tokens={dim: int(units) for dim, units in tokens.items()},
        state=str(row.get("s", "held")),
        since_ms=int(row["ms"]) if row.get("ms") else None,
    )


def _tokens(row: Mapping[str, Any]) -> dict[str, int]:
    return {dim: int(float(units)) for dim, units in row.items()}
