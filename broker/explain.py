"""What stands between one request and the workers that are there: a pure function of one look at the cluster.

It looks from the outside in: is any worker there, heard of, accepting; could any of them ever meet the request; is a
limit or a pool used up; is enough free now. It explains and decides nothing: placement does not read it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.explain_gang import gang_busy, gang_problem
from flowctl.broker.explain_room import busy, problem
from flowctl.broker.reason import (
    Finding,
    LabelOf,
    Lacking,
    as_path,
    for_ms,
    held_text,
    pool_holders,
    restore_cure,
    why_out,
)
from flowctl.broker.room_view import lacks, without_pools
from flowctl.broker.shape_view import Shape, has_labels, show_tokens
from flowctl.broker.worker_view import WorkerView

START = "start one: flowctl worker"


def explain(
    shape: Shape,
    cluster: ClusterView,
    *,
    run: str,
    bucket: str | None = None,
    full: Finding | None = None,
    avoid: Collection[str] = (),
    label_of: LabelOf = as_path,
) -> Finding:
    """The first thing that keeps a request of a run waiting.

    `bucket` is its run:step:shape, `full` a limit that its run or step has reached, `avoid` the workers on which the
    trial has failed.
    """
    there = [worker for worker in cluster.workers if worker.only_run in (None, run)]
    live = [worker for worker in there if worker.is_live(cluster.at_ms)]
    if not live:
        return _nobody(there, at_ms=cluster.at_ms, label_of=label_of)
    found = _pool_too_small(shape, cluster) or _problem(shape, live, cluster)
    if found is not None:
        return (_set_aside(shape, there, live, cluster, label_of) if found.never else None) or found
    if full is not None:
        return full
    waits = _pool_in_use(shape, cluster, bucket, label_of)
    if waits is not None:
        return waits
    if shape.is_gang:
        return gang_busy(shape, live, cluster, bucket=bucket, label_of=label_of)
    able = [worker for worker in live if is_able(worker, shape, cluster)]
    others = [worker for worker in able if worker.worker not in avoid]
    now = busy(shape, able, cluster, bucket=bucket, label_of=label_of)
    if now.kind != "placing" or not others or len(others) == len(able):
        return now
    later = busy(shape, others, cluster, bucket=bucket, label_of=label_of)
    if later.kind == "placing":
        return later
    failed = ", ".join(sorted({worker.worker for worker in able if worker.worker in avoid}))
    text = f"failed on {failed}, so another worker is waited for: {later.text}"
    return Finding("avoided", text, lacking=later.lacking, nearest=later.nearest, holders=later.holders)


def _problem(shape: Shape, workers: Sequence[WorkerView], cluster: ClusterView) -> Finding | None:
    """Why none of these workers could meet the request now, even idle; None if they could."""
    same_python = [worker for worker in workers if not shape.python or worker.python == shape.python]
    if not same_python:
        runs = ", ".join(f"{worker.worker} runs {worker.python}" for worker in workers[:3])
        text = f"needs a worker on Python {shape.python}; {runs}"
        return Finding("python", text, f"start a worker with Python {shape.python}", never=True)
    trusted = [worker for worker in same_python if not shape.key or shape.key in worker.keys]
    if not trusted:
        cure = "give the worker the key: the line that flowctl up --listen prints, or FLOWCTL_SECRET_KEY"
        return Finding("key", f"no worker holds the key {shape.key} that signed this run", cure, never=True)
    return (gang_problem if shape.is_gang else problem)(shape, trusted, workers, cluster)


def is_able(worker: WorkerView, shape: Shape, cluster: ClusterView) -> bool:
    """Whether a worker could take one of a request's bundles if it were idle."""
    is_known = (not shape.python or worker.python == shape.python) and (not shape.key or shape.key in worker.keys)
    return is_known and any(
        has_labels(worker, bundle) and not lacks(without_pools(bundle.need, cluster), worker.offer)
        for bundle in shape.bundles
    )


def _nobody(there: Sequence[WorkerView], *, at_ms: int, label_of: LabelOf) -> Finding:
    """No worker takes anything: none is there, none was heard of, or all are out of service."""
    if not there:
        return Finding("no_worker", "no worker is up", START)
    heard = [worker for worker in there if worker.has_contact(at_ms)]
    if not heard:
        last = max(there, key=lambda worker: worker.last_ms)
        return Finding("lost_contact", f"lost contact with {last.worker}", "start another: flowctl worker")
    starting = [worker for worker in heard if worker.state == "up"]
    if starting:
        has = "has" if len(starting) == 1 else "have"
        return Finding("not_accepting", f"{_names(starting)} {has} not begun to take work")
    quarantined = [worker for worker in heard if worker.is_quarantined]
    if quarantined:
        return _quarantined(quarantined, at_ms=at_ms, label_of=label_of)
    return Finding("not_accepting", f"{_names(heard)} {'is' if len(heard) == 1 else 'are'} draining")


def _set_aside(
    shape: Shape,
    there: Sequence[WorkerView],
    live: Sequence[WorkerView],
    cluster: ClusterView,
    label_of: LabelOf,
) -> Finding | None:
    """A worker that would do, and takes no work just now: then the request is not impossible."""
    aside = [worker for worker in there if worker.state in ("up", "quarantined") and not worker.is_live(cluster.at_ms)]
    for worker in aside:
        if _problem(shape, [*live, worker], cluster) is not None:
            continue
        if not worker.has_contact(cluster.at_ms):
            return Finding("lost_contact", f"lost contact with {worker.worker}, which could take it")
        if worker.is_quarantined:
            return _quarantined([worker], at_ms=cluster.at_ms, label_of=label_of)
        return Finding("not_accepting", f"{worker.worker}, which could take it, has not begun to take work")
    return None


def _quarantined(workers: Sequence[WorkerView], *, at_ms: int, label_of: LabelOf) -> Finding:
    first = workers[0]
    since = f" for {for_ms(at_ms - first.quarantined_ms)}" if first.quarantined_ms is not None else ""
    text = f"{_names(workers)} {'is' if len(workers) == 1 else 'are'} out of service{since}{why_out(first, label_of)}"
    return Finding("quarantined", text, restore_cure(first), nearest=first.worker)


def _pool_asks(shape: Shape, cluster: ClusterView) -> dict[str, int]:
    asks: dict[str, int] = {}
    for bundle in shape.bundles:
        for dim, units in bundle.need.items():
            if dim in cluster.set_pools:
                asks[dim] = asks.get(dim, 0) + units
    return asks


def _pool_too_small(shape: Shape, cluster: ClusterView) -> Finding | None:
    for name, asked in _pool_asks(shape, cluster).items():
        pool = cluster.pools[name]
        if asked > pool.units:
            shown = show_tokens(name, asked)
            text = f"needs {name} {shown}; the pool {name} has {show_tokens(name, pool.units)} in all"
            lacking = {name: Lacking(asked, pool.units, pool.free)}
            return Finding("pool", text, f"flowctl pool set {name}={shown}", never=True, lacking=lacking)
    return None


def _pool_in_use(shape: Shape, cluster: ClusterView, bucket: str | None, label_of: LabelOf) -> Finding | None:
    kept = cluster.reservation
    for name, asked in _pool_asks(shape, cluster).items():
        pool = cluster.pools[name]
        held = kept.pools.get(name, 0) if kept is not None and kept.bucket != bucket else 0
        if asked <= pool.units - pool.used - held:
            continue
        lacking = {name: Lacking(asked, pool.units, pool.free)}
        of = f"{show_tokens(name, pool.free)} of {show_tokens(name, pool.units)} free"
        text = f"waits for the pool {name}: needs {show_tokens(name, asked)}, {of}"
        if kept is not None and held and asked <= pool.units - pool.used:
            since = for_ms(cluster.at_ms - kept.since_ms)
            return Finding("reserved", f"{text}, kept for {label_of(kept.unit)} for {since}", lacking=lacking)
        if pool.is_draining:
            text += f", {show_tokens(name, pool.used)} still in use"
        holders = pool_holders(cluster.held(), name, at_ms=cluster.at_ms, gone_ms=cluster.gone_ms)
        orphans = tuple(each for each in holders if each.is_orphan)
        is_left = sum(each.units for each in orphans) >= asked - (pool.units - pool.used - held)
        shown = orphans if is_left else holders
        text += held_text(shown, at_ms=cluster.at_ms, label_of=label_of)
        return Finding("orphan" if is_left else "pool", text, lacking=lacking, holders=shown)
    return None


def _names(workers: Sequence[WorkerView]) -> str:
    names = [worker.worker for worker in workers]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
