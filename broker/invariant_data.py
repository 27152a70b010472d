"""One look at everything that the invariants speak about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.states import STEP_ENDED, TrialState

ACTIVE = (TrialState.PLACED, TrialState.RUNNING)


@dataclass
class Unit:
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
class Data:
    """One look at everything."""

    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    steps: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    boots: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    buckets: dict[str, set[str]] = field(default_factory=dict)
    delayed: set[str] = field(default_factory=set)
    deadlines: set[str] = field(default_factory=set)


def read_data(client: Any) -> Data:
    """Reads runs, units, boots, rows and buckets, key after key."""
    data = Data()
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
        data.units[unit] = Unit(unit, run, step, fields, is_over and fields.get("state") == TrialState.PENDING)
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


def _hashes(client: Any, names: Sequence[str]) -> Iterator[dict[str, str]]:
    for start in range(0, len(names), 1000):
        pipe = client.pipeline(transaction=False)
        for name in names[start : start + 1000]:
            pipe.hgetall(name)
        yield from pipe.execute()
