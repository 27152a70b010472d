"""Tokens and demand as the bodies of JSON documents; the shapes are pinned by render/schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowctl.broker.cluster_view import ClusterView
from flowctl.broker.demand import Demand, DemandView
from flowctl.broker.reason import LabelOf
from flowctl.broker.token_view import TokenHolder, TokenRow, pool_tokens, totals, worker_tokens
from flowctl.render.amounts import amount, amounts


def resources_body(
    cluster: ClusterView, ages: Mapping[str, int], label_of: LabelOf, violations: Sequence[str] | None
) -> dict[str, Any]:
    """Every token with its holders. `ages`: unit → ms since its lease was renewed. `violations` None: not asked for."""
    rows = {worker.boot: worker_tokens(cluster, worker) for worker in cluster.workers}
    every = [row for tokens in rows.values() for row in tokens]
    return {
        "at_ms": cluster.at_ms,
        "workers": [
            {
                "worker": worker.worker,
                "boot": worker.boot,
                "host": worker.host,
                "state": worker.state if worker.has_contact(cluster.at_ms) else "lost contact",
                "tokens": [_row(row, ages, label_of) for row in rows[worker.boot]],
            }
            for worker in cluster.workers
        ],
        "pools": pool_bodies(cluster, ages, label_of),
        "totals": {
            name: {"capacity": amount(name, capacity), "used": amount(name, used), "free": amount(name, free)}
            for name, (capacity, used, free) in totals(every).items()
        },
        "reservation": _reservation(cluster, label_of),
        "violations": None if violations is None else list(violations),
    }


def pool_bodies(cluster: ClusterView, ages: Mapping[str, int], label_of: LabelOf) -> list[dict[str, Any]]:
    """The pools; one that was removed and is still in use has `set` false."""
    bodies = []
    for row in pool_tokens(cluster):
        body = _row(row, ages, label_of)
        del body["device"]
        bodies.append({**body, "set": row.name in cluster.set_pools, "draining": row.used > row.capacity})
    return bodies


def demand_body(view: DemandView) -> dict[str, Any]:
    """What is pending by what it asks for."""
    return {
        "at_ms": view.cluster.at_ms,
        "pending": sum(each.count for each in view.demands),
        "delayed": view.delayed,
        "demand": [_demand(each) for each in view.demands],
    }


def _demand(each: Demand) -> dict[str, Any]:
    return {
        "count": each.count,
        "bundles": [{"needs": amounts(bundle.need), "labels": list(bundle.labels)} for bundle in each.shape.bundles],
        "strategy": each.shape.request.strategy,
        "python": each.shape.python,
        "runs": dict(sorted(each.runs.items())),
        "possible": each.possible,
        "kind": each.finding.kind,
        "text": each.finding.text,
        "cure": each.finding.cure,
        "waiting_since_ms": each.since_ms,
    }


def _row(row: TokenRow, ages: Mapping[str, int], label_of: LabelOf) -> dict[str, Any]:
    return {
        "name": row.name,
        "device": row.device,
        "capacity": amount(row.name, row.capacity),
        "used": amount(row.name, row.used),
        "free": amount(row.name, row.free),
        "reserved": amount(row.name, row.kept),
        "holders": [_holder(row.name, holder, ages, label_of) for holder in row.holders],
    }


def _holder(name: str, holder: TokenHolder, ages: Mapping[str, int], label_of: LabelOf) -> dict[str, Any]:
    age = ages.get(holder.unit)
    return {
        "trial": label_of(holder.unit),
        "epoch": holder.epoch,
        "bundle": holder.bundle,
        "amount": amount(name, holder.units),
        "since_ms": holder.since_ms,
        "orphan": holder.is_orphan,
        "lease_age_s": None if age is None or holder.is_orphan else age / 1000,
    }


def _reservation(cluster: ClusterView, label_of: LabelOf) -> dict[str, Any] | None:
    kept = cluster.reservation
    if kept is None:
        return None
    names = {worker.boot: worker.worker for worker in cluster.workers}
    return {
        "trial": label_of(kept.unit),
        "since_ms": kept.since_ms,
        "workers": {names.get(boot, boot): amounts(vector) for boot, vector in sorted(kept.holds.items())},
        "pools": amounts(kept.pools),
    }
