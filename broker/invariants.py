"""What is true of the server's data between any two scripts, recomputed from the rows. Reads only; for tests, chaos
and `doctor`.

It reads key after key: call it while nothing else writes, or take a finding as one that may be in motion.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from flowctl.broker.invariant_data import ACTIVE, Data, read_data
from flowctl.broker.invariant_tokens import gangs, offers, rows, sums
from flowctl.dsl.states import RUN_ENDED, STEP_ENDED, TRIAL_ENDED, StepState, TrialState

OPEN = (StepState.READY, StepState.RUNNING)


def violations(client: Any) -> list[str]:
    """One sentence per broken invariant; empty when all hold."""
    data = read_data(client)
    checks = (offers, sums, rows, gangs, _counters, _pending, _buckets, _active, _ranking, _runs)
    return [sentence for check in checks for sentence in check(client, data)]


def _counters(_: Any, data: Data) -> Iterator[str]:
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


def _pending(_: Any, data: Data) -> Iterator[str]:
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


def _buckets(client: Any, data: Data) -> Iterator[str]:
    """fc:buckets lists exactly the buckets from which may be placed."""
    listed = set(client.zrange("fc:buckets", 0, -1))
    expected = set()
    for name, members in data.buckets.items():
        run, step, _ = name.split(":")
        if data.steps.get((run, step), {}).get("state") in OPEN:
            expected.add(name)
        for unit in sorted(members - data.units.keys()):
            yield f"bucket {name} holds {unit}, which does not exist"
    by_shape: set[str] = set()
    for shape in client.zrange("fc:waiting", 0, -1):
        by_shape.update(client.zrange(f"fc:waiting:{shape}", 0, -1))
    if by_shape != listed:
        yield f"fc:waiting and fc:buckets differ in {sorted(by_shape ^ listed)}"
    for name in sorted(listed - expected):
        yield f"fc:buckets lists {name}, which is empty or may not run"
    for name in sorted(expected - listed):
        yield f"fc:buckets lacks {name}"


def _active(client: Any, data: Data) -> Iterator[str]:
    """fc:active and fc:deadlines name exactly the placed and running units; running ones have a nonce."""
    for run in data.runs:
        said = set(client.smembers(f"fc:active:{run}"))
        true = {unit.id for unit in data.units.values() if unit.run == run and unit.state in ACTIVE}
        if said != true:
            yield f"fc:active:{run} differs from the placed and running units in {sorted(said ^ true)}"
    true = {unit.id for unit in data.units.values() if unit.state in ACTIVE}
    deadlines = {name for name in data.deadlines if "@" not in name}  # hosts have their own
    if deadlines != true:
        yield f"fc:deadlines differs from the placed and running units in {sorted(deadlines ^ true)}"
    for unit in data.units.values():
        if unit.state not in TRIAL_ENDED and (unit.state == TrialState.RUNNING) != ("nonce" in unit.fields):
            yield f"unit {unit.id} is {unit.state} and its nonce is {unit.fields.get('nonce')}"
        if unit.state in ACTIVE and unit.fields.get("boot") not in data.boots:
            yield f"unit {unit.id} is {unit.state} on {unit.fields.get('boot')}, which is not known"


def _ranking(client: Any, data: Data) -> Iterator[str]:
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


def _runs(client: Any, data: Data) -> Iterator[str]:
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


def _held_by_ended(run: str, data: Data) -> Iterator[str]:
    for boot, named in data.rows.items():
        for name, row in named.items():
            if name.startswith(f"{run}:") and row["s"] == "held":
                yield f"run {run} has ended and holds {name} on {boot}"
    for unit in data.units.values():
        if unit.run == run and unit.state in ACTIVE:
            yield f"run {run} has ended and {unit.id} is {unit.state}"
