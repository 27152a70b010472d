"""What is true of the server's data between any two scripts, recomputed from the rows. Reads only; for tests, chaos
and `doctor`.

It reads key after key: call it while nothing else writes, or take a finding as one that may be in motion.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.states import RUN_ENDED, STEP_ENDED, TRIAL_ENDED, StepState, TrialState

ACTIVE = (TrialState.PLACED, TrialState.RUNNING)
OPEN = (StepState.READY, StepState.RUNNING)


@dataclass
class _Unit:
    id: str
    run: str
    step: str
    fields: Mapping[str, str]
    is_dropped: bool
    """Pending, but cancelled with its step or run by counter alone."""

    @property
    def state(self) -> str:
        return self.fields.get("state", "")


@dataclass
class _Data:
    """One look at everything."""

    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    steps: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    units: dict[str, _Unit] = field(default_factory=dict)
    boots: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    buckets: dict[str, set[str]] = field(default_factory=dict)
    delayed: set[str] = field(default_factory=set)
    deadlines: set[str] = field(default_factory=set)


def violations(client: Any) -> list[str]:
    """One sentence per broken invariant; empty when all hold."""
    data = _read(client)
    checks = (_tokens, _rows, _counters, _pending, _buckets, _active, _ranking, _runs)
    return [sentence for check in checks for sentence in check(client, data)]


def _read(client: Any) -> _Data:
    data = _Data()
    for run in client.zrange("fc:runs", 0, -1):
        data.runs[run] = client.hgetall(f"fc:run:{run}")
        for step in client.lrange(f"fc:steps:{run}", 0, -1):
            data.steps[run, step] = client.hgetall(f"fc:step:{run}:{step}")
    names = list(client.scan_iter(match="fc:unit:*", count=1000))
    for key, fields in zip(names, _hashes(client, names), strict=True):
        unit = key.removeprefix("fc:unit:")
        run, step, _ = unit.split(":")
        is_over = (
            data.steps.get((run, step), {}).get("state") in STEP_ENDED
            or data.runs.get(run, {}).get("wanted") == "cancel"
        )
        data.units[unit] = _Unit(unit, run, step, fields, is_over and fields.get("state") == TrialState.PENDING)
    for boot in client.zrange("fc:boots", 0, -1):
        data.boots[boot] = client.hgetall(f"fc:boot:{boot}")
        rows = client.hgetall(f"fc:alloc:{boot}")
        data.rows[boot] = {name: json.loads(row) for name, row in rows.items()}
    data.shapes = {name: json.loads(text) for name, text in client.hgetall("fc:shapes").items()}
    for key in client.scan_iter(match="fc:bucket:*", count=1000):
        data.buckets[key.removeprefix("fc:bucket:")] = set(client.zrange(key, 0, -1))
    data.delayed = set(client.zrange("fc:delayed", 0, -1))
    data.deadlines = set(client.zrange("fc:deadlines", 0, -1))
    return data


def _tokens(client: Any, data: _Data) -> Iterator[str]:
    """Cached sums equal their rows; nothing is booked beyond the offer; fc:free says the same."""
    free = {boot: json.loads(text) for boot, text in client.hgetall("fc:free").items()}
    for boot, record in data.boots.items():
        offer = _numbers(client.hgetall(f"fc:offer:{boot}"))
        used = {dim: n for dim, n in _numbers(client.hgetall(f"fc:used:{boot}")).items() if n}
        total: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for row in data.rows[boot].values():
            total.update(row["v"])
            if row["s"] == "held":
                held.update(row["v"])
        if used != {dim: n for dim, n in total.items() if n}:
            yield f"boot {boot}: fc:used says {used}, its rows sum to {dict(total)}"
        # orphans may exceed the offer: they are what really runs there, whatever was offered since
        for dim, n in sorted(held.items()):
            if n > offer.get(dim, 0):
                yield f"boot {boot}: {n} of {dim} are held, {offer.get(dim, 0)} are offered"
        if boot not in free:
            yield f"boot {boot}: no row in fc:free"
            continue
        left = {dim: n - total.get(dim, 0) for dim, n in offer.items()}
        if free[boot]["f"] != left and (left or free[boot]["f"]):
            yield f"boot {boot}: fc:free says {free[boot]['f']}, offer minus used is {left}"
        accepting = int(record.get("state") == "up" and record.get("accepting") == "1")
        if free[boot]["a"] != accepting:
            yield f"boot {boot}: fc:free says accepting {free[boot]['a']}, its record says {accepting}"
    for boot in sorted(free.keys() - data.boots.keys()):
        yield f"boot {boot}: a row in fc:free, but it is not known"


def _rows(_: Any, data: _Data) -> Iterator[str]:
    """A placed or running unit holds exactly its shape on its boot at its epoch; every held row belongs to one."""
    held: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for boot, rows in data.rows.items():
        for name, row in rows.items():
            unit_id, _, epoch = name.rpartition("@")
            unit = data.units.get(unit_id)
            is_its = (
                unit is not None
                and unit.state in ACTIVE
                and unit.fields.get("boot") == boot
                and unit.fields.get("epoch") == epoch
            )
            if row["s"] == "held":
                held.setdefault(unit_id, []).append((boot, row))
                if not is_its:
                    yield f"row {name} on {boot} is held, but no placed or running unit has it"
            elif is_its:
                yield f"row {name} on {boot} is an orphan, but its unit is {unit.state if unit else ''} with it"
    for unit in data.units.values():
        if unit.state not in ACTIVE:
            continue
        mine = [row for boot, row in held.get(unit.id, []) if boot == unit.fields.get("boot")]
        if len(held.get(unit.id, [])) != 1 or len(mine) != 1:
            boots = [boot for boot, _ in held.get(unit.id, [])]
            yield f"unit {unit.id} is {unit.state} on {unit.fields.get('boot')}, held rows are on {boots}"
        elif mine[0]["v"] != data.shapes.get(unit.fields["shape"], {}).get("need"):
            yield f"unit {unit.id} holds {mine[0]['v']}, which is not its shape"


def _counters(_: Any, data: _Data) -> Iterator[str]:
    """A step's counters equal the states of its units; dropped ones, and those never made, count as cancelled."""
    counts: dict[tuple[str, str], Counter[str]] = {name: Counter() for name in data.steps}
    made: Counter[tuple[str, str]] = Counter()
    for unit in data.units.values():
        if (unit.run, unit.step) not in counts:
            yield f"unit {unit.id} belongs to no step"
            continue
        made[unit.run, unit.step] += 1
        counts[unit.run, unit.step]["cancelled" if unit.is_dropped else unit.state] += 1
    for (run, step), record in data.steps.items():
        name = f"step {run}:{step}"
        total, expanded = int(record["total"]), int(record["expanded"])
        is_dropped = record["state"] in STEP_ENDED or data.runs[run].get("wanted") == "cancel"
        expected = counts[run, step]
        if is_dropped:
            expected["cancelled"] += total - made[run, step]
        elif made[run, step] != expanded:
            yield f"{name}: expanded says {expanded}, {made[run, step]} units exist"
        for state in TrialState:
            if int(record.get(state, 0)) != expected[state]:
                yield f"{name}: counts {record.get(state, 0)} {state}, its units say {expected[state]}"


def _pending(_: Any, data: _Data) -> Iterator[str]:
    """A pending unit waits in exactly one place: its bucket, or among the delayed."""
    for unit in data.units.values():
        bucket = f"{unit.run}:{unit.step}:{unit.fields.get('shape')}"
        places = [name for name, members in data.buckets.items() if unit.id in members]
        is_delayed = unit.id in data.delayed
        if unit.state != TrialState.PENDING:
            if places:
                yield f"unit {unit.id} is {unit.state}, but in bucket {places[0]}"
            if is_delayed:
                yield f"unit {unit.id} is {unit.state}, but delayed"
        elif unit.is_dropped:
            if places:
                yield f"unit {unit.id} was cancelled with its step or run, but is in bucket {places[0]}"
        elif places != [bucket] and not (is_delayed and not places):
            yield f"unit {unit.id} is pending, but in buckets {places}"
        elif places and is_delayed:
            yield f"unit {unit.id} is in its bucket and delayed"
    for unit_id in sorted(data.delayed - data.units.keys()):
        yield f"fc:delayed names {unit_id}, which does not exist"


def _buckets(client: Any, data: _Data) -> Iterator[str]:
    """fc:buckets lists exactly the buckets from which may be placed."""
    listed = set(client.zrange("fc:buckets", 0, -1))
    expected = set()
    for name, members in data.buckets.items():
        run, step, _ = name.split(":")
        if data.steps.get((run, step), {}).get("state") in OPEN:
            expected.add(name)
        for unit in sorted(members - data.units.keys()):
            yield f"bucket {name} holds {unit}, which does not exist"
    for name in sorted(listed - expected):
        yield f"fc:buckets lists {name}, which is empty or may not run"
    for name in sorted(expected - listed):
        yield f"fc:buckets lacks {name}"


def _active(client: Any, data: _Data) -> Iterator[str]:
    """fc:active and fc:deadlines name exactly the placed and running units; running ones have a nonce."""
    for run in data.runs:
        said = set(client.smembers(f"fc:active:{run}"))
        true = {unit.id for unit in data.units.values() if unit.run == run and unit.state in ACTIVE}
        if said != true:
            yield f"fc:active:{run} differs from the placed and running units in {sorted(said ^ true)}"
    true = {unit.id for unit in data.units.values() if unit.state in ACTIVE}
    if data.deadlines != true:
        yield f"fc:deadlines differs from the placed and running units in {sorted(data.deadlines ^ true)}"
    for unit in data.units.values():
        if unit.state not in TRIAL_ENDED and (unit.state == TrialState.RUNNING) != ("nonce" in unit.fields):
            yield f"unit {unit.id} is {unit.state} and its nonce is {unit.fields.get('nonce')}"
        if unit.state in ACTIVE and unit.fields.get("boot") not in data.boots:
            yield f"unit {unit.id} is {unit.state} on {unit.fields.get('boot')}, which is not known"


def _ranking(client: Any, data: _Data) -> Iterator[str]:
    """Only units that may still be the best are ranked, by their best value; fc:failed names the failed ones."""
    for run, step in data.steps:
        for unit_id, value in client.zrange(f"fc:rank:{run}:{step}", 0, -1, withscores=True):
            unit = data.units.get(unit_id)
            if unit is None or unit.state not in (TrialState.RUNNING, TrialState.COMPLETED):
                yield f"fc:rank:{run}:{step} names {unit_id}, which is {unit.state if unit else 'unknown'}"
            elif float(unit.fields.get("best", "nan")) != value:
                yield f"fc:rank:{run}:{step} ranks {unit_id} by {value}, its best is {unit.fields.get('best')}"
    for run in data.runs:
        said = set(client.zrange(f"fc:failed:{run}", 0, -1))
        true = {unit.id for unit in data.units.values() if unit.run == run and unit.state == TrialState.FAILED}
        if said != true:
            yield f"fc:failed:{run} differs from the failed units in {sorted(said ^ true)}"


def _runs(client: Any, data: _Data) -> Iterator[str]:
    """A run counts its steps rightly, and one that has ended holds nothing."""
    expanding = set(client.zrange("fc:expanding", 0, -1))
    for run, record in data.runs.items():
        steps = {step: fields for (owner, step), fields in data.steps.items() if owner == run}
        states = Counter(fields["state"] for fields in steps.values())
        left = sum(n for state, n in states.items() if state not in STEP_ENDED)
        for name, true in (
            ("steps_left", left),
            ("failed_steps", states[StepState.FAILED] + states[StepState.SKIPPED]),
            ("cancelled_steps", states[StepState.CANCELLED]),
        ):
            if int(record[name]) != true:
                yield f"run {run}: {name} says {record[name]}, its steps say {true}"
        if (left == 0) != (record["state"] in RUN_ENDED):
            yield f"run {run} is {record['state']} with {left} steps left"
        for step, fields in steps.items():
            waits = sum(steps[other]["state"] != StepState.COMPLETED for other in json.loads(fields["after"]))
            if fields["state"] == StepState.WAITING and (waits != int(fields["deps_left"]) or not waits):
                yield f"step {run}:{step} waits for {waits} steps, deps_left says {fields['deps_left']}"
            is_making = fields["state"] not in STEP_ENDED and int(fields["expanded"]) < int(fields["total"])
            if is_making != (f"{run}:{step}" in expanding):
                yield f"step {run}:{step} is {'not ' if is_making else ''}in fc:expanding"
        if record["state"] in RUN_ENDED:
            yield from _held_by_ended(run, data)


def _held_by_ended(run: str, data: _Data) -> Iterator[str]:
    for boot, rows in data.rows.items():
        for name, row in rows.items():
            if name.startswith(f"{run}:") and row["s"] == "held":
                yield f"run {run} has ended and holds {name} on {boot}"
    for unit in data.units.values():
        if unit.run == run and unit.state in ACTIVE:
            yield f"run {run} has ended and {unit.id} is {unit.state}"


def _hashes(client: Any, names: Sequence[str]) -> Iterator[dict[str, str]]:
    for start in range(0, len(names), 1000):
        pipe = client.pipeline(transaction=False)
        for name in names[start : start + 1000]:
            pipe.hgetall(name)
        yield from pipe.execute()


def _numbers(fields: Mapping[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in fields.items()}
