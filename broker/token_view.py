"""Every token as one row: where it is, how many there are, who holds them, since when, how old the lease is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.worker_view import DEVICE, GPU, Held, WorkerView


@dataclass(frozen=True)
class TokenHolder:
    """One bundle of an attempt that holds some of a token."""

    unit: str
    epoch: int
    bundle: int
    units: int
    since_ms: int | None
    is_orphan: bool


@dataclass(frozen=True)
class TokenRow:
    """A dimension of a worker, one device of it, or a pool. Exact units; `kept` is reserved, be it free yet or not."""

    name: str
    device: str | None
    capacity: int
    used: int
    kept: int
    holders: tuple[TokenHolder, ...]

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.used)


def worker_tokens(cluster: ClusterView, worker: WorkerView) -> list[TokenRow]:
    """The tokens of a worker: cpu, memory, then by name, devices in its own order, slots last."""
    kept = cluster.kept_on(worker)
    order = {f"{DEVICE}{device.id}": i for i, device in enumerate(worker.devices)}
    dims = sorted(
        {*worker.offer, *(dim for row in worker.held for dim in row.tokens)},
        key=lambda dim: (dim == "slot", dim not in ("cpu", "memory"), order.get(dim, len(order)), dim),
    )
    return [
        TokenRow(
            name=GPU if dim.startswith(DEVICE) else dim,
            device=dim.removeprefix(DEVICE) if dim.startswith(DEVICE) else None,
            capacity=worker.offer.get(dim, 0),
            used=worker.used.get(dim, 0),
            kept=kept.get(dim, 0),
            holders=_holders((row, row.tokens.get(dim, 0)) for row in worker.held),
        )
        for dim in dims
    ]


def pool_tokens(cluster: ClusterView) -> list[TokenRow]:
    """The cluster-wide pools by name; one that was removed and is still in use has no capacity."""
    kept = cluster.reservation.pools if cluster.reservation else {}
    return [
        TokenRow(
            name=pool.name,
            device=None,
            capacity=pool.units,
            used=pool.used,
            kept=kept.get(pool.name, 0),
            holders=_holders((row, row.pools.get(pool.name, 0)) for _, row in cluster.held()),
        )
        for pool in cluster.pools.values()
    ]


def lease_ages(client: Any, cluster: ClusterView, *, lease_ms: int) -> dict[str, int]:
    """Unit → ms since its lease was last renewed, for those that hold one (placed ones were not claimed yet).

    `lease_ms` is the length of a lease, which is set alike everywhere.
    """
    units = sorted({row.unit for _, row in cluster.held() if not row.is_orphan})
    pipe = client.pipeline(transaction=False)
    for unit in units:
        pipe.hget(f"fc:unit:{unit}", "state")
        pipe.zscore("fc:deadlines", unit)
    rows = pipe.execute() if units else []
    found = zip(units, rows[::2], rows[1::2], strict=True)
    return {
        unit: max(0, lease_ms - (int(deadline) - cluster.at_ms))
        for unit, state, deadline in found
        if state == "running" and deadline is not None
    }


def _holders(rows: Iterable[tuple[Held, int]]) -> tuple[TokenHolder, ...]:
    found = [
        TokenHolder(row.unit, row.epoch, row.bundle, units, row.since_ms, row.is_orphan) for row, units in rows if units
    ]
    return tuple(sorted(found, key=lambda each: (-each.units, each.since_ms or 0, each.unit, each.bundle)))


def totals(rows: Sequence[TokenRow]) -> dict[str, tuple[int, int, int]]:
    """Per name: capacity, used, free; devices together as gpu."""
    sums: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        capacity, used, free = sums.get(row.name, (0, 0, 0))
        sums[row.name] = (capacity + row.capacity, used + row.used, free + row.free)
    return dict(sorted(sums.items()))
