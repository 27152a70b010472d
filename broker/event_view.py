"""Following a run's events: what changed, in order, as values. Reports are not events (they are in the results)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from flowctl.broker.cause import Cause
from flowctl.dsl.names import parse_unit


@dataclass(frozen=True)
class Event:
    """One event. `kind`: run, step, trial, wanted, or a later one; `fields` holds everything as stored."""

    id: str
    at_ms: int
    kind: str
    step: str | None
    index: int | None
    source: str
    to: str
    reason: str
    cause: Cause | None
    fields: Mapping[str, str]


def last_event(client: Any, run: str) -> str:
    """The id after which new events will come; `0-0` for a stream that never held one."""
    newest = client.xrevrange(f"fc:events:{run}", count=1)
    return str(newest[0][0]) if newest else "0-0"


def read_events(client: Any, run: str, after: str, *, block_ms: int | None, limit: int = 500) -> list[Event]:
    """The events after an id, waiting at most `block_ms` for the first one (None: not at all); empty if none came."""
    answer = client.xread({f"fc:events:{run}": after}, count=limit, block=block_ms)
    if not answer:
        return []
    streams = answer.items() if isinstance(answer, dict) else answer
    return [_event(event_id, fields) for _, entries in streams for event_id, fields in _entries(entries)]


def _entries(entries: Any) -> list[tuple[str, Mapping[str, str]]]:
    flat = entries[0] if entries and isinstance(entries[0], list) else entries  # RESP3 answers with one more list
    return cast(list[tuple[str, Mapping[str, str]]], flat)


def _event(event_id: str, fields: Mapping[str, str]) -> Event:
    unit = parse_unit(fields["unit"]) if fields.get("unit") else None
    cause = fields.get("cause")
    return Event(
        id=event_id,
        at_ms=int(fields.get("at") or 0),
        kind=fields.get("kind", ""),
        step=unit.step if unit else fields.get("step") or None,
        index=unit.index if unit else None,
        source=fields.get("from", ""),
        to=fields.get("to") or fields.get("wanted", ""),
        reason=fields.get("reason", ""),
        cause=Cause.of(json.loads(cause)) if cause else None,
        fields=fields,
    )
