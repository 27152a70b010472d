"""Read-only snapshots of workers: what each offers, what is booked there, and when it was last heard of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from flowctl.dsl.states import BootState

GPU = "gpu"
DEVICE = "gpu:"
LOST_CONTACT_MS = 3_000
"""A boot whose last beat is older than this has lost contact; its trials are still its own until their leases end."""


@dataclass(frozen=True)
class Held:
    """One allocation row: the tokens that one bundle of an attempt (or what is left of it) holds on a boot.

    `tokens` names devices as gpu:ID. `pools` are the cluster-wide tokens of all its bundles; its bundle 0 has them.
    """

    unit: str
    epoch: int
    bundle: int
    tokens: Mapping[str, int]
    pools: Mapping[str, int]
    state: str
    since_ms: int | None

    @property
    def is_orphan(self) -> bool:
        return self.state == "orphan"


@dataclass(frozen=True)
class Device:
    """A GPU of a worker. `visible`: how its operator names it (an index or a uuid); logical ones have no memory."""

    id: str
    name: str
    memory_mib: int
    visible: str


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

    @cached_property
    def detected(self) -> dict[str, int]:
        """What it found on its machine. Workers there share it: what one offers, others can offer once it leaves."""
        return _tokens(json.loads(self.fields.get("detected") or "{}"))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(json.loads(self.fields.get("labels") or "[]"))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Its GPUs in its own order, also those that another worker of the machine offers now."""
        rows = json.loads(self.fields.get("devices") or "[]")
        return tuple(
            Device(
                str(row["id"]), str(row.get("name", "")), int(row.get("memory_mib") or 0), str(row.get("visible", ""))
            )
            for row in rows
        )

    @property
    def gpu_limit(self) -> int | None:
        """So many of the devices that it detected it offers at most; None: all."""
        text = self.fields.get("gpu_limit")
        return int(text) if text else None

    @property
    def is_quarantined(self) -> bool:
        return self.state == BootState.QUARANTINED

    @property
    def reason(self) -> str | None:
        """Why it is out of service."""
        return self.fields.get("reason") or None

    @property
    def quarantined_ms(self) -> int | None:
        """Since when it is out of service."""
        text = self.fields.get("quarantined_ms")
        return int(float(text)) if text and self.is_quarantined else None

    def has_contact(self, at_ms: int) -> bool:
        return at_ms - self.last_ms <= LOST_CONTACT_MS

    def is_live(self, at_ms: int) -> bool:
        """Up, accepting and heard of lately: new work can be placed here."""
        return self.state == "up" and self.is_accepting and self.has_contact(at_ms)

    @property
    def only_run(self) -> str | None:
        """The one run that this worker takes, for a worker that `flowctl run` started."""
        return self.fields.get("only") or None


def as_gpu(vector: Mapping[str, int]) -> dict[str, int]:
    """A vector as it is asked for: devices summed up as gpu."""
    total: dict[str, int] = {}
    for dim, units in vector.items():
        name = GPU if dim.startswith(DEVICE) else dim
        total[name] = total.get(name, 0) + units
    return total


def load_workers(client: Any) -> list[WorkerView]:
    """All boots that are not gone, by worker name."""
    beats = load_beats(client)
    pipe = client.pipeline(transaction=False)
    ask_workers(pipe, beats)
    return workers_of(beats, pipe.execute() if beats else [])


def load_beats(client: Any) -> list[tuple[str, float]]:
    """Every known boot with its last beat."""
    return cast(list[tuple[str, float]], client.zrange("fc:boots", 0, -1, withscores=True))


def ask_workers(pipe: Any, beats: Sequence[tuple[str, float]]) -> None:
    """Adds to a pipeline what `workers_of` reads: four answers per boot."""
    for boot, _ in beats:
        for noun in ("boot", "offer", "used", "alloc"):
            pipe.hgetall(f"fc:{noun}:{boot}")


def workers_of(beats: Sequence[tuple[str, float]], rows: Sequence[Any]) -> list[WorkerView]:
    """The workers from the answers; boots that are gone are left out."""
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
    unit, _, rest = name.rpartition("@")
    epoch, _, bundle = rest.partition("#")
    return Held(
        unit=unit,
        epoch=int(epoch or 0),
        bundle=int(bundle or 0),
        tokens=_tokens(row.get("v") or {}),
        pools=_tokens(row.get("p") or {}),
        state=str(row.get("s", "held")),
        since_ms=int(row["ms"]) if row.get("ms") else None,
    )


def _tokens(row: Mapping[str, Any]) -> dict[str, int]:
    return {dim: int(float(units)) for dim, units in row.items()}
