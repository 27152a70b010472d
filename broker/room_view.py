"""How far workers are from a request: vectors as one request sees them, what lacks, who is nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.reason import Lacking
from flowctl.broker.worker_view import DEVICE, GPU, WorkerView

WHOLE = 10_000


def measure(dim: str, vector: Mapping[str, int], need: Mapping[str, int]) -> int:
    """How much of a dimension there is for this request. Of `gpu`: the largest share of one device for a request of up
    to one, else the devices that are whole.
    """
    if dim != GPU:
        return vector.get(dim, 0)
    devices = [units for name, units in vector.items() if name.startswith(DEVICE)]
    if not devices:
        return vector.get(GPU, 0)
    if need.get(GPU, 0) <= WHOLE:
        return max(devices)
    return WHOLE * sum(units >= WHOLE for units in devices)


def reach(worker: WorkerView) -> dict[str, int]:
    """What a worker offers once it is alone on its machine: what was declared, and what of the detected it may."""
    full = {**worker.offer, **{dim: max(units, worker.offer.get(dim, 0)) for dim, units in worker.detected.items()}}
    limit = worker.gpu_limit
    if limit is None:
        return full
    devices = sorted((dim for dim in full if dim.startswith(DEVICE)), key=lambda dim: (-worker.offer.get(dim, 0), dim))
    return {dim: units for dim, units in full.items() if dim not in devices[limit:]}


def free_of(worker: WorkerView, kept: Mapping[str, int] | None = None) -> dict[str, int]:
    """What is free on a worker, less what is kept there for another."""
    return {dim: worker.free(dim) - (kept or {}).get(dim, 0) for dim in worker.offer}


def lacks(need: Mapping[str, int], vector: Mapping[str, int]) -> dict[str, int]:
    """How much of what lacks, by dimension; empty if the request fits."""
    found = {}
    for dim, units in need.items():
        have = measure(dim, vector, need)
        if units > have:
            found[dim] = units - have
    return found


def distance(need: Mapping[str, int], lacking: Mapping[str, int]) -> tuple[int, float]:
    """How far from fitting: dimensions that lack, then the sum of the shares that lack."""
    return len(lacking), sum(units / need[dim] for dim, units in lacking.items())


def most_lacking(need: Mapping[str, int], lacking: Mapping[str, int]) -> str:
    return max(sorted(lacking), key=lambda dim: lacking[dim] / need[dim])


def nearest(
    need: Mapping[str, int], vectors: Mapping[str, Mapping[str, int]], workers: Sequence[WorkerView]
) -> WorkerView:
    """The worker that lacks least by these vectors (by boot), the first by name among equals."""
    return min(workers, key=lambda worker: distance(need, lacks(need, vectors[worker.boot])))


def lacking_on(worker: WorkerView, need: Mapping[str, int], dims: Mapping[str, int]) -> dict[str, Lacking]:
    """What lacks on a worker, as it is told."""
    free = free_of(worker)
    return {
        dim: Lacking(need[dim], measure(dim, worker.offer, need), max(0, measure(dim, free, need)))
        for dim in sorted(dims)
    }


def without_pools(need: Mapping[str, int], cluster: ClusterView) -> dict[str, int]:
    """What workers themselves must have: cluster-wide tokens are no part of it."""
    return {dim: units for dim, units in need.items() if dim not in cluster.set_pools}
