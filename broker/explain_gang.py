"""Why the bundles of a placement group find no room together: which one, by which strategy, on how many machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.explain_room import busy, problem
from flowctl.broker.reason import Finding, LabelOf, as_path, for_ms, held_text, holders_of
from flowctl.broker.room_view import free_of, lacking_on, lacks, measure, nearest, reach, without_pools
from flowctl.broker.seating import Room, unseated
from flowctl.broker.shape_view import Shape, has_labels
from flowctl.broker.worker_view import WorkerView, as_gpu
from flowctl.dsl.resources import SLOT, Bundle, Request, format_resources

MAX_CULPRITS = 16
MORE = "start more workers: flowctl worker"


def gang_problem(
    shape: Shape, workers: Sequence[WorkerView], everyone: Sequence[WorkerView], cluster: ClusterView
) -> Finding | None:
    """Why these workers could not hold the bundles together even if they were idle; None if they could."""
    for i in range(len(shape.bundles)):
        alone = replace(shape, request=Request((shape.bundles[i],)))
        found = problem(alone, workers, everyone, cluster)
        if found is not None:
            return replace(found, text=f"{_name(shape, i)}: {found.text}")
    bundles = _local(shape, cluster)
    left = unseated(bundles, shape.request.strategy, _offers(workers), has_labels)
    if not left:
        return None
    left = [_culprit(bundles, shape.request.strategy, _offers(workers), left, workers), *left[1:]]
    if not unseated(bundles, shape.request.strategy, _alone(workers), has_labels):
        text = f"{shape.request.strategy} of {len(bundles)} bundles waits for other workers of its machines to leave"
        return Finding("shared", text)
    text, cure = _never(shape, bundles, workers, left)
    need = bundles[left[0]].need
    near = nearest(need, {each.boot: each.offer for each in workers}, workers)
    return Finding("gang", text, cure, True, lacking_on(near, need, need), near.worker)


def gang_busy(
    shape: Shape,
    live: Sequence[WorkerView],
    cluster: ClusterView,
    *,
    bucket: str | None = None,
    label_of: LabelOf = as_path,
) -> Finding:
    """Which bundle finds no room now."""
    workers = [
        each
        for each in live
        if (not shape.python or each.python == shape.python) and (not shape.key or shape.key in each.keys)
    ]
    bundles, strategy = _local(shape, cluster), shape.request.strategy
    rooms = [Room(each, free_of(each, cluster.kept_on(each, but=bucket))) for each in workers]
    left = unseated(bundles, strategy, rooms, has_labels)
    if not left:
        return Finding("placing", "about to be placed")
    kept = cluster.reservation
    if kept is not None and not unseated(
        bundles, strategy, [Room(each, free_of(each)) for each in workers], has_labels
    ):
        since = for_ms(cluster.at_ms - kept.since_ms)
        return Finding("reserved", f"enough is free, but kept for {label_of(kept.unit)}, for {since} now")
    first = _culprit(bundles, strategy, rooms, left, workers)
    able = [each for each in workers if has_labels(each, bundles[first]) and not lacks(bundles[first].need, each.offer)]
    alone = busy(shape, able, cluster, bucket=bucket, bundle=first, label_of=label_of)
    if alone.kind == "placing":
        near = nearest(bundles[first].need, {each.boot: free_of(each) for each in able}, able)
        told = f"{len(bundles) - len(left)} of {len(bundles)} find room at once ({strategy})"
        need = bundles[first].need
        dim = _scarce(bundles, first, workers)
        holders = holders_of(
            ((each, row) for each in workers for row in each.held), dim, at_ms=cluster.at_ms, gone_ms=cluster.gone_ms
        )
        text = f"{_name(shape, first)} does not fit beside the others: {told}"
        text += held_text(holders, at_ms=cluster.at_ms, label_of=label_of)
        details = lacking_on(near, need, need)
        details = {dim: details[dim], **details}  # the holders' amounts are of the first
        return Finding("gang", text, lacking=details, nearest=near.worker, holders=holders)
    own = "; workers are kept for it" if kept is not None and kept.bucket == bucket else ""
    kind = alone.kind if alone.kind == "orphan" else "gang"
    return replace(alone, kind=kind, text=f"{_name(shape, first)}: {alone.text}{own}")


def _never(
    shape: Shape, bundles: Sequence[Bundle], workers: Sequence[WorkerView], left: Sequence[int]
) -> tuple[str, str]:
    strategy, count = shape.request.strategy, len(bundles)
    shown = [format_resources(bundle.need) for bundle in bundles]
    if strategy == "STRICT_SPREAD":
        cure = "start workers on more machines: flowctl worker"
        if len(set(shown)) == 1:
            return f"STRICT_SPREAD needs {count} machines that offer {shown[0]}; {count - len(left)} do", cure
        text = f"STRICT_SPREAD needs a machine for each of {count} bundles; {count - len(left)} of them find one"
        return f"{text}, {_name(shape, left[0])} does not", cure
    if strategy == "STRICT_PACK":
        total: dict[str, int] = {}
        for bundle in bundles:
            for dim, units in bundle.need.items():
                total[dim] = total.get(dim, 0) + units
        text = f"STRICT_PACK needs one machine that holds all of {count} bundles ({format_resources(total)})"
        return (
            f"{text}; the nearest holds {count - len(left)}",
            'use strategy="PACK", or start a worker on a larger one',
        )
    text = f"the live workers hold {count - len(left)} of {count} bundles at once, even idle"
    return f"{text}; {_name(shape, left[0])} finds no room", MORE


def _name(shape: Shape, i: int) -> str:
    """`bundle 1, cpu=1, of 2`: counted from 0, as `bundle.index` does."""
    return f"bundle {i}, {format_resources(shape.bundles[i].need)}, of {len(shape.bundles)}"


def _culprit(
    bundles: Sequence[Bundle], strategy: str, rooms: Sequence[Room], left: Sequence[int], workers: Sequence[WorkerView]
) -> int:
    """The bundle to name where not all find room: one that finds none even alone, else one without which the others do.

    Of several the largest by what the workers offer, then the last: a small one is rarely what is in the way.
    """

    def size(i: int) -> tuple[float, int]:
        need = bundles[i].need
        shares = (units / max(_most(dim, need, workers), 1) for dim, units in need.items())
        return max(shares, default=0.0), i

    alone = [
        i
        for i in left
        if not any(not lacks(bundles[i].need, room.left) and has_labels(room.worker, bundles[i]) for room in rooms)
    ]
    if alone:
        return max(alone, key=size)
    order = sorted(range(len(bundles)), key=size, reverse=True)
    for i in order[:MAX_CULPRITS]:
        if not unseated([bundle for j, bundle in enumerate(bundles) if j != i], strategy, rooms, has_labels):
            return i
    return max(left, key=size)


def _most(dim: str, need: Mapping[str, int], workers: Sequence[WorkerView]) -> int:
    return max((measure(dim, each.offer, need) for each in workers), default=0)


def _scarce(bundles: Sequence[Bundle], first: int, workers: Sequence[WorkerView]) -> str:
    """The dimension of a bundle of which the workers together have least free by what all bundles ask."""
    need = bundles[first].need

    def left(dim: str) -> float:
        asked = sum(bundle.need.get(dim, 0) for bundle in bundles)
        free = sum(max(0, as_gpu(free_of(each)).get(dim, 0)) for each in workers)
        return free / asked

    return min(sorted(need, key=lambda dim: (dim == SLOT, dim)), key=left)


def _offers(workers: Sequence[WorkerView]) -> list[Room]:
    return [Room(each, dict(each.offer)) for each in workers]


def _local(shape: Shape, cluster: ClusterView) -> list[Bundle]:
    return [replace(bundle, need=without_pools(bundle.need, cluster)) for bundle in shape.bundles]


def _alone(workers: Sequence[WorkerView]) -> list[Room]:
    """One worker per machine with all that it could offer alone."""
    first: dict[str, WorkerView] = {}
    for each in workers:
        first.setdefault(each.machine or each.boot, each)
    return [Room(each, reach(each)) for each in first.values()]
