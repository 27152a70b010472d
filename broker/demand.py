"""What is pending by what it asks for, over all runs: for people who plan capacity, and for autoscalers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from flowctl.broker.cluster_view import ClusterView, load_cluster
from flowctl.broker.reason import Finding
from flowctl.broker.reasons import Gathering
from flowctl.broker.shape_view import Shape, load_shapes
from flowctl.broker.view import RunView, load_runs

NOW, LATER, NEVER = "now", "later", "never"
_ORDER = (NOW, LATER, NEVER)


@dataclass(frozen=True)
class Demand:
    """Pending trials that ask for the same. `runs`: how many of each run; `since_ms`: the longest waiting of those that
    are next. `finding` is that of the run for which it looks best.
    """

    shape: Shape
    count: int
    runs: Mapping[str, int]
    finding: Finding
    since_ms: int | None

    @property
    def possible(self) -> str:
        """now: room is free; later: when something ends or a limit is raised, or a worker gives back what it took of
        its machine; never: no live worker could.
        """
        return _possible(self.finding)


@dataclass(frozen=True)
class DemandView:
    """All demand at one look, the largest first. `delayed` trials wait for an instant and are not part of it."""

    cluster: ClusterView
    demands: tuple[Demand, ...]
    delayed: int


@dataclass
class _Sum:
    shape: Shape
    runs: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    since: list[int] = field(default_factory=list)


def load_demand(client: Any, *, gone_ms: int | None = None) -> DemandView:
    """Reads all open buckets; costs buckets × workers, whatever is pending in them."""
    cluster = load_cluster(client, gone_ms=gone_ms)
    names = [tuple(name.split(":")) for name in cast(list[str], client.zrange("fc:buckets", 0, -1))]
    runs = {run.run: run for run in load_runs(client, sorted({name[0] for name in names}))}
    shapes = load_shapes(client, sorted({name[2] for name in names}))
    found: dict[Any, Finding] = {}
    gatherings = {name: Gathering(client, run, cluster, shared=found) for name, run in runs.items()}
    sums: dict[str, _Sum] = {}
    for (run, step, shape_id), (size, since) in zip(names, _sizes(client, names), strict=True):
        if size and run in runs and shape_id in shapes:
            mine = sums.setdefault(shape_id, _Sum(shapes[shape_id]))
            _add(mine, runs[run], step, shape_id, size, since, gatherings[run])
    demands = [_demand(each) for each in sums.values() if each.findings]
    demands.sort(key=lambda each: (-each.count, each.since_ms or 0))
    return DemandView(cluster, tuple(demands), int(client.zcard("fc:delayed")))


def _sizes(client: Any, names: Sequence[tuple[str, ...]]) -> list[tuple[int, int | None]]:
    """Per bucket how many wait in it, and since when the first of them does."""
    pipe = client.pipeline(transaction=False)
    for name in names:
        key = f"fc:bucket:{':'.join(name)}"
        pipe.zcard(key)
        pipe.zrange(key, 0, 0)
    rows = pipe.execute() if names else []
    heads = [row[0] if row else None for row in rows[1::2]]
    for head in heads:
        pipe.hget(f"fc:unit:{head}", "since_ms")
    told = pipe.execute() if heads else []
    return [(int(size), int(since) if since else None) for size, since in zip(rows[::2], told, strict=True)]


def _add(
    mine: _Sum, run: RunView, step_name: str, shape_id: str, size: int, since: int | None, gathering: Gathering
) -> None:
    step = run.step(step_name)
    if step is None or run.wanted == "cancel":
        return
    mine.runs[run.run] += size
    mine.findings.append(gathering.of_shape(step, shape_id, mine.shape))
    if since is not None:
        mine.since.append(since)


def _demand(each: _Sum) -> Demand:
    best = min(each.findings, key=lambda found: _ORDER.index(_possible(found)))
    return Demand(each.shape, each.runs.total(), dict(each.runs), best, min(each.since, default=None))


def _possible(found: Finding) -> str:
    return NEVER if found.never else NOW if found.kind == "placing" else LATER
