"""What `flowctl resources`, `pool list` and `demand` print."""

from __future__ import annotations

from collections.abc import Mapping

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.demand import DemandView
from flowctl.broker.reason import LabelOf, out_of_service, restore_cure
from flowctl.broker.shape_view import show_shape, show_tokens
from flowctl.broker.token_view import TokenHolder, TokenRow, pool_tokens, worker_tokens
from flowctl.broker.worker_view import WorkerView
from flowctl.render.clock import span, span_ms
from flowctl.render.table import cut, table

MAX_HOLDERS = 3
HEAD = ("worker", "token", "capacity", "used", "free", "held by")


def resources_text(cluster: ClusterView, ages: Mapping[str, int], label_of: LabelOf) -> str:
    """One row per token of each worker and per pool, then who is out of service and what is reserved.

    What a worker offers nothing of is left out.
    """
    rows = []
    for worker in cluster.workers:
        offered = [row for row in worker_tokens(cluster, worker) if row.capacity or row.used]
        rows += [
            [worker.worker if i == 0 else "", *_cells(row, cluster, ages, label_of, worker)]
            for i, row in enumerate(offered)
        ]
        if not offered:
            rows.append([worker.worker, "nothing", "", "", "", ""])
    parts = [table(HEAD, rows)] if rows else ["no worker is up; start one: flowctl worker"]
    if cluster.pools:
        parts.append(pools_text(cluster, ages, label_of))
    parts += [
        f"{out_of_service(worker, at_ms=cluster.at_ms, label_of=label_of)}; {restore_cure(worker)}"
        for worker in cluster.workers
        if worker.is_quarantined
    ]
    kept = cluster.reservation
    if kept is not None:
        names = {worker.boot: worker.worker for worker in cluster.workers}
        where = ", ".join(sorted(names.get(boot, boot) for boot in kept.holds))
        since = span_ms(kept.since_ms, cluster.at_ms)
        parts.append(f"kept for {label_of(kept.unit)} for {since}, which waited longest: tokens of {where}")
    return "\n\n".join(parts)


def pools_text(cluster: ClusterView, ages: Mapping[str, int], label_of: LabelOf) -> str:
    """One row per pool."""
    rows = []
    for row in pool_tokens(cluster):
        cells = _cells(row, cluster, ages, label_of, None)
        if row.used > row.capacity:
            cells[-1] = f"{'drains' if row.name in cluster.set_pools else 'removed, drains'}: {cells[-1]}"
        rows.append(cells)
    return table(["pool", *HEAD[2:]], rows)


def demand_text(view: DemandView) -> str:
    """One row per request: how many, of which runs, whether possible, since when, and what keeps it waiting."""
    rows = [
        [
            str(each.count),
            cut(show_shape(each.shape), 60),
            each.possible,
            span_ms(each.since_ms, view.cluster.at_ms),
            cut(", ".join(f"{run} {count}" for run, count in sorted(each.runs.items())), 40),
            each.finding.text + (f"; {each.finding.cure}" if each.finding.cure else ""),
        ]
        for each in view.demands
    ]
    lines = [table(["trials", "each needs", "possible", "waiting", "runs", "why"], rows)] if rows else ["nothing waits"]
    if view.delayed:
        lines.append(f"{view.delayed} more wait for an instant, such as before a retry")
    return "\n".join(lines)


def _cells(
    row: TokenRow, cluster: ClusterView, ages: Mapping[str, int], label_of: LabelOf, worker: WorkerView | None
) -> list[str]:
    held = [_holder(row.name, each, cluster.at_ms, ages, label_of) for each in row.holders[:MAX_HOLDERS]]
    more = f" and {len(row.holders) - MAX_HOLDERS} more" if len(row.holders) > MAX_HOLDERS else ""
    kept = ""
    if row.kept and cluster.reservation is not None:
        once = " once it is free" if row.kept > row.free else ""
        kept = f" ({show_tokens(row.name, row.kept)} kept for {label_of(cluster.reservation.unit)}{once})"
    return [
        _name(row, worker),
        show_tokens(row.name, row.capacity),
        show_tokens(row.name, row.used),
        show_tokens(row.name, row.free) + kept,
        ", ".join(held) + more,
    ]


def _name(row: TokenRow, worker: WorkerView | None) -> str:
    if row.device is None:
        return row.name
    seen = next((each.visible for each in worker.devices if each.id == row.device), "") if worker else ""
    return f"{row.name} {seen} {row.device}" if seen and seen != row.device else f"{row.name} {row.device}"


def _holder(name: str, holder: TokenHolder, at_ms: int, ages: Mapping[str, int], label_of: LabelOf) -> str:
    text = f"{label_of(holder.unit)}: {show_tokens(name, holder.units)} for {span_ms(holder.since_ms, at_ms)}"
    if holder.is_orphan:
        return f"{text} (orphan: its end is not confirmed)"
    age = ages.get(holder.unit)
    return f"{text} (lease {span(age / 1000)} old)" if age is not None else f"{text} (not claimed yet)"
