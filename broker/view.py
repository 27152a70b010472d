"""Read-only snapshots of runs, steps, trials and attempts as Redis holds them now.

Nothing here writes, ticks or decides. Every reader is pipelined: one or two round trips whatever the number of trials.
A snapshot is not one instant: counts and trials are read within milliseconds of each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from flowctl.broker.cause import Cause
from flowctl.dsl.jsonvalue import decode
from flowctl.dsl.names import parse_unit
from flowctl.dsl.states import RUN_ENDED, STEP_ENDED, TRIAL_ENDED

COUNTED = ("pending", "placed", "running", "completed", "failed", "cancelled")
_CHUNK = 1000
_UNIT_FIELDS = (
    "state",
    "shape",
    "epoch",
    "nonce",
    "boot",
    "worker",
    "fails",
    "losses",
    "attempts",
    "since_ms",
    "first_started_ms",
    "started_ms",
    "ended_ms",
    "not_before_ms",
    "wanted",
    "reason",
    "cause",
    "rows",
    "iteration",
    "last",
    "best",
    "best_iteration",
    "best_metrics",
    "best_checkpoint",
    "checkpoint",
)


@dataclass(frozen=True)
class StepView:
    """One step of a run; `total` counts its units, also those not yet expanded."""

    run: str
    name: str
    kind: str
    state: str
    total: int
    expanded: int
    after: tuple[str, ...]
    metric: str | None
    mode: str | None
    max_failures: int
    max_worker_losses: int | None
    counts: Mapping[str, int]
    reason: str | None
    started_ms: int | None
    ended_ms: int | None

    @property
    def is_experiment(self) -> bool:
        return self.kind == "experiment"


@dataclass(frozen=True)
class RunView:
    """One run with its steps in plan order."""

    run: str
    name: str
    state: str
    wanted: str
    reason: str | None
    location: str
    key_id: str
    python: str
    flow: str | None
    created_ms: int
    ended_ms: int | None
    steps: tuple[StepView, ...]

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED

    @property
    def experiments(self) -> tuple[StepView, ...]:
        return tuple(step for step in self.steps if step.is_experiment)

    def step(self, name: str) -> StepView | None:
        return next((step for step in self.steps if step.name == name), None)

    def counts(self) -> dict[str, int]:
        """Units per state over all steps, plus their `total`."""
        sums = {state: sum(step.counts[state] for step in self.steps) for state in COUNTED}
        return {**sums, "total": sum(step.total for step in self.steps)}

    def label(self, step: str, index: int) -> str:
        """How a person names a unit: RUN/7 in the only experiment, RUN/step/7 in one of several, RUN/step a stage."""
        only = self.experiments
        known = self.step(step)
        if known is not None and not known.is_experiment and not step.isdigit():
            return f"{self.run}/{step}"
        if len(only) == 1 and only[0].name == step:
            return f"{self.run}/{index}"
        return f"{self.run}/{step}/{index}"


@dataclass(frozen=True)
class UnitView:
    """One trial (or the one unit of a stage) as it stands.

    `first_started_ms` is the claim of the first attempt, `started_ms` that of the newest. `best_checkpoint` is the
    checkpoint of the best report, `checkpoint` the latest; both as {"epoch", "nonce", "seq", "iteration"}.
    """

    run: str
    step: str
    index: int
    state: str
    shape: str | None
    epoch: int
    nonce: str | None
    boot: str | None
    worker: str | None
    fails: int
    losses: int
    attempts: int
    since_ms: int | None
    first_started_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    not_before_ms: int | None
    wanted: str
    reason: str | None
    cause: Cause | None
    rows: int
    iteration: int
    last: Mapping[str, Any]
    best: float | None
    best_iteration: int | None
    best_metrics: Mapping[str, Any]
    best_checkpoint: Mapping[str, Any] | None
    checkpoint: Mapping[str, Any] | None

    @property
    def unit(self) -> str:
        return f"{self.run}:{self.step}:{self.index}"

    @property
    def is_active(self) -> bool:
        return self.state in ("placed", "running")

    @property
    def ended(self) -> bool:
        return self.state in TRIAL_ENDED


@dataclass(frozen=True)
class AttemptView:
    """One execution of a unit; `outcome` is None while it runs."""

    attempt: int
    epoch: int
    nonce: str | None
    boot: str | None
    worker: str | None
    started_ms: int | None
    ended_ms: int | None
    outcome: str | None
    cause: Cause | None


def now_ms(client: Any) -> int:
    """The server's clock, which every instant in a snapshot is read by."""
    seconds, micros = cast(tuple[int, int], client.time())
    return seconds * 1000 + micros // 1000


def newest_run(client: Any) -> str | None:
    """The id of the run submitted last."""
    newest = cast(list[str], client.zrevrange("fc:runs", 0, 0))
    return newest[0] if newest else None


def count_runs(client: Any) -> int:
    """How many runs the server knows."""
    return int(client.zcard("fc:runs"))


def load_run(client: Any, run: str) -> RunView | None:
    """One run with its steps; None if the server knows no such run."""
    found = load_runs(client, [run])
    return found[0] if found else None


def load_runs(client: Any, runs: Sequence[str] | None = None, *, limit: int | None = None) -> list[RunView]:
    """These runs, or the newest `limit` (None: all), newest first; ids that the server does not know are left out."""
    wanted = list(runs) if runs is not None else cast(list[str], client.zrevrange("fc:runs", 0, (limit or 0) - 1))
    pipe = client.pipeline(transaction=False)
    for run in wanted:
        pipe.hgetall(f"fc:run:{run}")
        pipe.lrange(f"fc:steps:{run}", 0, -1)
    heads = pipe.execute() if wanted else []

    known = [(run, heads[2 * i], heads[2 * i + 1]) for i, run in enumerate(wanted) if heads[2 * i]]
    steps = _load_steps(client, [(run, step) for run, _, names in known for step in names])
    return [
        _run(run, fields, [steps[run, name] for name in names if (run, name) in steps]) for run, fields, names in known
    ]


def load_units(client: Any, step: StepView, indexes: Iterable[int]) -> list[UnitView]:
    """These units of one step in the order asked for; one that is not expanded yet reads as pending.

    A step that ends early ends its pending units by counter alone; they read as cancelled, with the step's reason.
    """
    units = load_named(client, [(step.run, step.name, index) for index in indexes])
    if step.state not in STEP_ENDED:
        return units
    reason = step.reason or step.state
    return [
        replace(unit, state="cancelled", reason=reason, ended_ms=step.ended_ms) if unit.state == "pending" else unit
        for unit in units
    ]


def load_named(client: Any, names: Sequence[tuple[str, str, int]]) -> list[UnitView]:
    """Units by (run, step, index), in the order asked for."""
    found: list[UnitView] = []
    for start in range(0, len(names), _CHUNK):
        chunk = names[start : start + _CHUNK]
        pipe = client.pipeline(transaction=False)
        for run, step, index in chunk:
            pipe.hmget(f"fc:unit:{run}:{step}:{index}", _UNIT_FIELDS)
        found += [_unit(*name, values) for name, values in zip(chunk, pipe.execute(), strict=True)]
    return found


def active_units(client: Any, run: str, *, limit: int = 200) -> list[UnitView]:
    """Units that are placed or running, by step and number; at most `limit` of them."""
    names = sorted(parse_unit(unit) for unit in cast(set[str], client.smembers(f"fc:active:{run}")))
    return load_named(client, names[:limit])


def failed_units(client: Any, run: str, *, limit: int = 200) -> list[UnitView]:
    """Units that failed for good, the earliest first; at most `limit` of them."""
    names = [parse_unit(unit) for unit in cast(list[str], client.zrange(f"fc:failed:{run}", 0, limit - 1))]
    return load_named(client, names)


def best_unit(client: Any, step: StepView) -> UnitView | None:
    """The trial with the best finite value among those that did not fail; equal values go to the lowest number."""
    if step.mode not in ("max", "min"):
        return None
    key = f"fc:rank:{step.run}:{step.name}"
    top = cast(list[tuple[str, float]], client.zrange(key, 0, 0, desc=step.mode == "max", withscores=True))
    if not top:
        return None
    value = top[0][1]
    ties = cast(list[str], client.zrangebyscore(key, value, value))
    return (
        load_named(client, [min((parse_unit(unit) for unit in ties), key=lambda unit: unit.index)])[0] if ties else None
    )


def load_attempts(client: Any, unit: UnitView) -> list[AttemptView]:
    """The attempts of one unit, the first one first (the last 50), with the one that runs now at the end."""
    lines = cast(list[str], client.lrange(f"fc:attempts:{unit.unit}", 0, -1))
    ended = [_attempt(json.loads(line)) for line in lines]
    if unit.state != "running":
        return ended
    running = AttemptView(
        attempt=unit.attempts,
        epoch=unit.epoch,
        nonce=unit.nonce,
        boot=unit.boot,
        worker=unit.worker,
        started_ms=unit.started_ms,
        ended_ms=None,
        outcome=None,
        cause=None,
    )
    return [*(attempt for attempt in ended if attempt.epoch != unit.epoch), running]


def load_tails(client: Any, names: Sequence[tuple[str, str, int]]) -> list[list[dict[str, Any]]]:
    """Per unit the reported rows that storage does not hold for certain yet, as stored."""
    tails: list[list[dict[str, Any]]] = []
    for start in range(0, len(names), _CHUNK):
        pipe = client.pipeline(transaction=False)
        for run, step, index in names[start : start + _CHUNK]:
            pipe.lrange(f"fc:tail:{run}:{step}:{index}", 0, -1)
        tails += [[json.loads(line) for line in lines] for lines in pipe.execute()]
    return tails


def _load_steps(client: Any, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], StepView]:
    pipe = client.pipeline(transaction=False)
    for run, step in names:
        pipe.hgetall(f"fc:step:{run}:{step}")
    rows = pipe.execute() if names else []
    return {name: _step(*name, fields) for name, fields in zip(names, rows, strict=True) if fields}


def _run(run: str, fields: Mapping[str, str], steps: Sequence[StepView]) -> RunView:
    return RunView(
        run=run,
        name=fields.get("name") or run,
        state=fields.get("state", "submitted"),
        wanted=fields.get("wanted") or "run",
        reason=fields.get("reason") or None,
        location=fields.get("location", ""),
        key_id=fields.get("key_id", ""),
        python=fields.get("python", ""),
        flow=fields.get("flow") or None,
        created_ms=int(fields.get("created_ms") or 0),
        ended_ms=_int(fields.get("ended_ms")),
        steps=tuple(steps),
    )


def _step(run: str, name: str, fields: Mapping[str, str]) -> StepView:
    total = int(fields.get("total") or 0)
    counts = {state: int(fields.get(state) or 0) for state in COUNTED}
    state = fields.get("state", "waiting")
    if state in ("waiting", "ready", "running"):  # what is not expanded yet is pending all the same
        counts["pending"] += max(0, total - sum(counts.values()))
    return StepView(
        run=run,
        name=name,
        kind=fields.get("kind", "stage"),
        state=state,
        total=total,
        expanded=int(fields.get("expanded") or 0),
        after=_names(fields.get("after")),
        metric=fields.get("metric") or None,
        mode=fields.get("mode") or None,
        max_failures=int(fields.get("max_failures") or 0),
        max_worker_losses=_limit(fields.get("max_worker_losses")),
        counts=counts,
        reason=fields.get("reason") or None,
        started_ms=_int(fields.get("started_ms")),
        ended_ms=_int(fields.get("ended_ms")),
    )


def _unit(run: str, step: str, index: int, values: Sequence[str | None]) -> UnitView:
    got = dict(zip(_UNIT_FIELDS, values, strict=True))
    return UnitView(
        run=run,
        step=step,
        index=index,
        state=got["state"] or "pending",
        shape=got["shape"],
        epoch=int(got["epoch"] or 0),
        nonce=got["nonce"] or None,
        boot=got["boot"] or None,
        worker=got["worker"] or None,
        fails=int(got["fails"] or 0),
        losses=int(got["losses"] or 0),
        attempts=int(got["attempts"] or 0),
        since_ms=_int(got["since_ms"]),
        first_started_ms=_int(got["first_started_ms"]),
        started_ms=_int(got["started_ms"]),
        ended_ms=_int(got["ended_ms"]),
        not_before_ms=_int(got["not_before_ms"]),
        wanted=got["wanted"] or "run",
        reason=got["reason"] or None,
        cause=Cause.parse(got["cause"]),
        rows=int(got["rows"] or 0),
        iteration=int(got["iteration"] or 0),
        last=_metrics(got["last"]),
        best=_finite(got["best"]),
        best_iteration=_int(got["best_iteration"]),
        best_metrics=_metrics(got["best_metrics"]),
        best_checkpoint=_object(got["best_checkpoint"]),
        checkpoint=_object(got["checkpoint"]),
    )


def _attempt(data: Mapping[str, Any]) -> AttemptView:
    cause = data.get("cause")
    return AttemptView(
        attempt=int(data.get("attempt") or 0),
        epoch=int(data.get("epoch") or 0),
        nonce=data.get("nonce") or None,
        boot=data.get("boot") or None,
        worker=data.get("worker") or None,
        started_ms=_int(data.get("started_ms")),
        ended_ms=_int(data.get("ended_ms")),
        outcome=data.get("outcome") or None,
        cause=Cause.of(cause) if cause else None,
    )


def _metrics(text: str | None) -> Mapping[str, Any]:
    return cast(dict[str, Any], decode(json.loads(text))) if text else {}


def _object(text: str | None) -> Mapping[str, Any] | None:
    return cast(dict[str, Any], json.loads(text)) if text else None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text and text != "{}" else ()  # Lua writes an empty list as {}


def _limit(text: str | None) -> int | None:
    return None if text == "none" else int(text or 0)


def _finite(text: str | None) -> float | None:
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


def _int(value: Any) -> int | None:
    return int(float(value)) if value not in (None, "") else None
