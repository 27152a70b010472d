"""All tokens of the cluster at one instant: what workers and pools have, who holds it, what is kept for whom.

It is read in one transaction: sums and rows agree in every look, under any load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowctl.broker.worker_view import Held, WorkerView, ask_workers, load_beats, workers_of


@dataclass(frozen=True)
class Pool:
    """A cluster-wide token: how many there are, how many are booked. Booked may exceed what there is: it drains."""

    name: str
    units: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.units - self.used)

    @property
    def is_draining(self) -> bool:
        return self.used > self.units


@dataclass(frozen=True)
class Reservation:
    """What is kept for the one request that has waited too long. `bucket` is run:step:shape, `holds` boot → tokens."""

    unit: str
    bucket: str
    since_ms: int
    holds: Mapping[str, Mapping[str, int]]
    pools: Mapping[str, int]


@dataclass(frozen=True)
class ClusterView:
    """One look. `pools` has those that are set, and those removed that are still in use, with no units.

    A worker is given up after `gone_ms` of silence; None: not known to who looks.
    """

    at_ms: int
    workers: tuple[WorkerView, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    set_pools: frozenset[str] = frozenset()
    reservation: Reservation | None = None
    gone_ms: int | None = None

    def held(self) -> Iterator[tuple[WorkerView, Held]]:
        """Every allocation row with the worker that it is on."""
        for worker in self.workers:
            for row in worker.held:
                yield worker, row

    def kept_on(self, worker: WorkerView, *, but: str | None = None) -> Mapping[str, int]:
        """What is kept there for the reservation, unless that is for the bucket `but`."""
        if self.reservation is None or self.reservation.bucket == but:
            return {}
        return self.reservation.holds.get(worker.boot, {})


def load_cluster(client: Any, *, gone_ms: int | None = None) -> ClusterView:
    """Reads everything at once, atomically. Its cost is that of all workers and rows."""
    beats = load_beats(client)
    pipe = client.pipeline(transaction=True)
    pipe.time()
    pipe.hgetall("fc:pools")
    pipe.hgetall("fc:poolused")
    pipe.get("fc:reserve")
    ask_workers(pipe, beats)
    (seconds, micros), sizes, used, reserve, *rows = pipe.execute()
    return ClusterView(
        at_ms=int(seconds) * 1000 + int(micros) // 1000,
        workers=tuple(workers_of(beats, rows)),
        pools=_pools(sizes, used),
        set_pools=frozenset(sizes),
        reservation=_reservation(reserve),
        gone_ms=gone_ms,
    )


def cluster_of(client: Any, workers: Sequence[WorkerView], *, at_ms: int, gone_ms: int | None = None) -> ClusterView:
    """The same for workers that were read before: pools and the reservation are added."""
    pipe = client.pipeline(transaction=False)
    pipe.hgetall("fc:pools")
    pipe.hgetall("fc:poolused")
    pipe.get("fc:reserve")
    sizes, used, reserve = pipe.execute()
    return ClusterView(
        at_ms=at_ms,
        workers=tuple(workers),
        pools=_pools(sizes, used),
        set_pools=frozenset(sizes),
        reservation=_reservation(reserve),
        gone_ms=gone_ms,
    )


def _pools(sizes: Mapping[str, str], used: Mapping[str, str]) -> dict[str, Pool]:
    names = sorted({*sizes, *(name for name, units in used.items() if int(units))})
    return {name: Pool(name, int(sizes.get(name, 0)), int(used.get(name, 0))) for name in names}


def _reservation(text: str | None) -> Reservation | None:
    if not text:
        return None
    data = json.loads(text)
    holds: dict[str, dict[str, int]] = {}
    for part in data["parts"]:
        hold = holds.setdefault(part["boot"], {})
        for dim, units in part["v"].items():
            hold[dim] = hold.get(dim, 0) + int(units)
    pools = {name: int(units) for name, units in dict(data.get("pools") or {}).items()}
    return Reservation(data["unit"], data["name"], int(data["ms"]), holds, pools)
