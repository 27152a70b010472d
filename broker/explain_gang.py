"""Why the bundles of a placement group find no room together: which one, by which strategy, on how many machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.explain_room import busy, problem
from flowctl.broker.reason import Finding, LabelOf, as_path, for_ms
from flowctl.broker.room_view import free_of, lacking_on, lacks, nearest, reach, without_pools
from flowctl.broker.seating import Room, unseated
from flowctl.broker.shape_view import Shape, has_labels
from flowctl.broker.worker_view import WorkerView
from flowctl.dsl.resources import Bundle, Request, format_resources

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
    left = unseated(bundles, shape.request.strategy, [Room(each, dict(each.offer)) for each in workers], has_labels)
    if not left:
        return None
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
    first = left[0]
    able = [each for each in workers if has_labels(each, bundles[first]) and not lacks(bundles[first].need, each.offer)]
    alone = busy(shape, able, cluster, bucket=bucket, bundle=first, label_of=label_of)
    if alone.kind == "placing":
        near = nearest(bundles[first].need, {each.boot: free_of(each) for each in able}, able)
        told = f"{len(bundles) - len(left)} of {len(bundles)} find room at once ({strategy})"
        text = f"{_name(shape, first)} does not fit beside the others: {told}"
        need = bundles[first].need
        return Finding("gang", text, lacking=lacking_on(near, need, need), nearest=near.worker)
    own = "; workers are kept for it" if kept is not None and kept.bucket == bucket else ""
    return replace(alone, kind="gang", text=f"{_name(shape, first)}: {alone.text}{own}")


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
    return f"bundle {i + 1} of {len(shape.bundles)} ({format_resources(shape.bundles[i].need)})"


def _local(shape: Shape, cluster: ClusterView) -> list[Bundle]:
    return [replace(bundle, need=without_pools(bundle.need, cluster)) for bundle in shape.bundles]


def _alone(workers: Sequence[WorkerView]) -> list[Room]:
    """One worker per machine with all that it could offer alone."""
    first: dict[str, WorkerView] = {}
    for each in workers:
        first.setdefault(each.machine or each.boot, each)
    return [Room(each, reach(each)) for each in first.values()]
