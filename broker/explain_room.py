"""Why one bundle finds no room: on workers that could never hold it, or on those that are full now."""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.reason import Finding, LabelOf, as_path, for_ms, held_text, holders_of
from flowctl.broker.room_view import (
    WHOLE,
    free_of,
    lacking_on,
    lacks,
    measure,
    most_lacking,
    nearest,
    reach,
    without_pools,
)
from flowctl.broker.shape_view import GIB, Shape, has_labels, show_apart, show_tokens
from flowctl.broker.worker_view import DEVICE, GPU, WorkerView
from flowctl.dsl.labels import show_labels
from flowctl.dsl.resources import BUILT_IN, SLOT, format_amount

_SHARED = {"cpu": "cores", "gpu": "GPUs"}
LARGER = "ask for less, or start a worker on a larger machine"


def problem(
    shape: Shape, workers: Sequence[WorkerView], everyone: Sequence[WorkerView], cluster: ClusterView
) -> Finding | None:
    """Why none of these workers could hold the first bundle if it were idle; None if one could.

    `workers` have its Python and its key, `everyone` are those that accept.
    """
    bundle = shape.bundles[0]
    need = without_pools(bundle.need, cluster)
    labelled = [worker for worker in workers if has_labels(worker, bundle)]
    if not labelled:
        wanted = [each for each in bundle.labels if not each.startswith("!")]
        option = f"flowctl worker --labels {','.join(wanted)}" if wanted else "flowctl worker without it"
        text = f"no accepting worker has the labels it wants ({show_labels(bundle.labels)})"
        return Finding("labels", text, f"start one that has: {option}", never=True)
    if any(not lacks(need, worker.offer) for worker in labelled):
        return None
    reaches = {worker.boot: reach(worker) for worker in labelled}
    later = [worker for worker in labelled if not lacks(need, reaches[worker.boot])]
    if later:
        return _shared(need, later, cluster)
    near = nearest(need, reaches, labelled)
    lacking = lacks(need, reaches[near.boot])
    details = lacking_on(near, need, lacking)
    unheard = [dim for dim in sorted(lacking) if not any(measure(dim, vector, need) for vector in reaches.values())]
    if unheard:
        boots = {worker.boot for worker in labelled}
        others = [worker for worker in everyone if worker.boot not in boots]
        text = ", ".join(
            f"{'no live worker offers ' if i == 0 else 'nor '}{dim} (asked {show_tokens(dim, need[dim])})"
            for i, dim in enumerate(unheard)
        )
        text += _elsewhere(unheard[0], need, others, shape)
        return Finding("impossible", text, _start(unheard[0], need, cluster), True, details, near.worker)
    dim = most_lacking(need, lacking)
    now, most = measure(dim, near.offer, need), measure(dim, reaches[near.boot], need)
    asked, offers, alone = show_apart(dim, need[dim], now, most)
    has = f"offers {alone}" if most == now else f"offers {offers} now, and at most {alone} alone on its machine"
    text = f"needs {dim} {asked}; the nearest worker, {near.worker}, {has}"
    return Finding("impossible", text, _start(dim, need, cluster, may_share=False), True, details, near.worker)


def busy(
    shape: Shape,
    able: Sequence[WorkerView],
    cluster: ClusterView,
    *,
    bucket: str | None = None,
    bundle: int = 0,
    label_of: LabelOf = as_path,
) -> Finding:
    """What a bundle waits for on workers that could hold it if they were idle."""
    need = without_pools(shape.bundles[bundle].need, cluster)
    left = {worker.boot: free_of(worker, cluster.kept_on(worker, but=bucket)) for worker in able}
    if any(not lacks(need, vector) for vector in left.values()):
        return Finding("placing", "about to be placed")
    plain = {worker.boot: free_of(worker) for worker in able}
    kept = cluster.reservation
    roomy = [worker for worker in able if not lacks(need, plain[worker.boot])]
    if roomy and kept is not None:
        since = for_ms(cluster.at_ms - kept.since_ms)
        text = f"{roomy[0].worker} has enough free, but keeps it for {label_of(kept.unit)}, for {since} now"
        return Finding("reserved", text, lacking=lacking_on(roomy[0], need, need), nearest=roomy[0].worker)
    near = nearest(need, plain, able)
    lacking = lacks(need, plain[near.boot])
    dim = most_lacking(need, lacking)
    rows = ((near, row) for row in near.held)
    holders = holders_of(rows, dim, at_ms=cluster.at_ms, gone_ms=cluster.gone_ms)
    orphaned = sum(each.units for each in holders if each.is_orphan)
    told = held_text(holders, at_ms=cluster.at_ms, label_of=label_of)
    own = (
        f"; {near.worker} is kept for it"
        if cluster.kept_on(near) and kept is not None and kept.bucket == bucket
        else ""
    )
    kind = "device" if dim == GPU and any(each.startswith(DEVICE) for each in near.offer) else "busy"
    text = _devices(near, need) if kind == "device" else _amounts(near, dim, need)
    if orphaned >= lacking[dim]:
        kind = "orphan"
        holders = tuple(each for each in holders if each.is_orphan)
        told = held_text(holders, at_ms=cluster.at_ms, label_of=label_of)
    return Finding(
        kind, text + own + told, lacking=lacking_on(near, need, lacking), nearest=near.worker, holders=holders
    )


def _amounts(worker: WorkerView, dim: str, need: dict[str, int]) -> str:
    asked, free, offered = show_apart(dim, need[dim], max(0, worker.free(dim)), worker.offer[dim])
    return f"waits for {dim}: needs {asked}, {worker.worker} has {free} of {offered} free"


def _devices(worker: WorkerView, need: dict[str, int]) -> str:
    free = [worker.free(dim) for dim in worker.offer if dim.startswith(DEVICE) and worker.offer[dim]]
    if need[GPU] <= WHOLE:
        asked, most = show_tokens(GPU, need[GPU]), show_tokens(GPU, max(0, *free))
        return f"needs one GPU with {asked} free; the freest has {most} (on {worker.worker})"
    whole = sum(units >= WHOLE for units in free)
    return f"needs {need[GPU] // WHOLE} whole GPUs; {worker.worker} has {whole} of {len(free)} wholly free"


def _elsewhere(dim: str, need: dict[str, int], others: Sequence[WorkerView], shape: Shape) -> str:
    """Where it is offered all the same, and why that does not help."""
    has = next((worker for worker in others if measure(dim, worker.offer, need)), None)
    if has is None:
        return ""
    if shape.python and has.python != shape.python:
        why = f"runs Python {has.python}"
    elif shape.key and shape.key not in has.keys:
        why = "does not hold the run's key"
    else:
        why = f"is not labelled {show_labels(shape.bundles[0].labels)}"
    return f" that may take it; {has.worker} does, but {why}"


def _start(dim: str, need: dict[str, int], cluster: ClusterView, *, may_share: bool = True) -> str:
    units = need[dim]
    known = [measure(dim, each.detected, need) for each in cluster.workers if measure(dim, each.detected, need)]
    if known and units > max(known):
        return LARGER
    if dim == GPU:
        units = -(-units // WHOLE) * WHOLE  # a worker offers whole devices
    amount = format_amount(dim, units)
    if dim == SLOT:
        return "start one with more: flowctl worker --slots N"
    cure = f"start one that does: flowctl worker --resources {dim}={amount}"
    return cure if dim in BUILT_IN or not may_share else f"{cure}, or one for all: flowctl pool set {dim}={amount}"


def _shared(need: dict[str, int], workers: Sequence[WorkerView], cluster: ClusterView) -> Finding:
    """Why workers that could offer enough do not: others of their machine offer it until they leave."""
    near = nearest(need, {worker.boot: worker.offer for worker in workers}, workers)
    lacking = lacks(need, near.offer)
    dim = most_lacking(need, lacking)
    holders = [
        each
        for each in cluster.workers
        if each.boot != near.boot and each.machine == near.machine and measure(dim, each.offer, need) > 0
    ]
    if not holders:
        return Finding("placing", "about to be placed")
    named = [f"{each.worker} (run {each.only_run})" if each.only_run else each.worker for each in holders[:3]]
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    what = _SHARED.get(dim, dim)
    text = (
        f"the {what} of {near.worker}'s machine {'are' if dim in _SHARED else 'is'} offered by "
        f"{'worker' if len(holders) == 1 else 'workers'} {', '.join(named)}{more}"
    )
    if any(each.only_run for each in holders):
        text += "; waits for them" if dim in _SHARED else "; waits for it"
        return Finding("shared", text, lacking=lacking_on(near, need, lacking), nearest=near.worker)
    text += f", which leaves {near.worker} too little"
    cure = _split(dim, need, near, [near, *holders])
    return Finding("shared", text, cure, lacking=lacking_on(near, need, lacking), nearest=near.worker)


def _split(dim: str, need: dict[str, int], near: WorkerView, workers: Sequence[WorkerView]) -> str:
    """How workers of one machine, none of which ends by itself, are to share it so that the request fits."""
    names = ", ".join(sorted(each.worker for each in workers[:4]))
    whole = WHOLE if dim != "memory" else GIB
    part = measure(dim, reach(near), need) // len(workers)
    if dim == GPU:
        part = sum(each.startswith(DEVICE) for each in near.detected) * WHOLE // len(workers)
    part = max(whole, part // whole * whole) if part >= whole else part
    if need[dim] <= part:
        return f"restart them ({names}) with a part each: flowctl worker --resources …,{dim}={format_amount(dim, part)}"
    rest = ", ".join(sorted(each.worker for each in workers[1:4]))
    return f"stop {rest}, or start it again with less: flowctl worker --resources …,{dim}=N"
