"""Every key that flowctl has in a server: its type, which script or process it belongs to, and how long it lives.

A key that stands in no row here is a leak, as is one that has outlived its run or its boot; `unowned` finds both.
`<run>`, `<step>`, `<index>`, `<shape>`, `<boot>` are the variable parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast


class Lifetime(Enum):
    """What ends a key."""

    PERMANENT = "permanent"
    RUN = "with its run"
    BOOT = "with its boot"
    TTL = "by itself"


@dataclass(frozen=True)
class Key:
    """One pattern. `kind` is the server's word for the type; `owner` names the noun whose scripts write it."""

    pattern: str
    kind: str
    owner: str
    lifetime: Lifetime
    about: str


KEYS = (
    Key("fc:schema", "string", "store", Lifetime.PERMANENT, "major number of this layout"),
    Key("fc:store", "string", "store", Lifetime.PERMANENT, "id of this store, drawn once"),
    Key("fc:beats", "string", "worker", Lifetime.PERMANENT, "counter of beats: a smaller one means a rewind"),
    Key("fc:seq", "string", "run", Lifetime.PERMANENT, "number of the newest run: order of submission"),
    Key("fc:tick", "hash", "tick", Lifetime.PERMANENT, "last tick, end of the grace, last full pass, its cursor"),
    Key("fc:shapes", "hash", "run", Lifetime.PERMANENT, "shape → its bundles, Python version and signing key"),
    Key("fc:name:<run>", "string", "run", Lifetime.TTL, "reservation of a name: the token of its holder"),
    Key("fc:runs", "zset", "run", Lifetime.PERMANENT, "run → created_ms"),
    Key("fc:run:<run>", "hash", "run", Lifetime.RUN, "the run's record"),
    Key("fc:steps:<run>", "list", "run", Lifetime.RUN, "names of its steps in the plan's order"),
    Key("fc:step:<run>:<step>", "hash", "run", Lifetime.RUN, "a step's record with the counts of its units' states"),
    Key("fc:stepshapes:<run>:<step>", "set", "run", Lifetime.RUN, "shapes of a step's units"),
    Key("fc:dependents:<run>:<step>", "set", "run", Lifetime.RUN, "steps that wait for this one"),
    Key("fc:expanding", "zset", "run", Lifetime.PERMANENT, "step whose units are not all made → when anyone may go on"),
    Key("fc:unit:<run>:<step>:<index>", "hash", "trial", Lifetime.RUN, "a unit's record"),
    Key("fc:attempts:<run>:<step>:<index>", "list", "trial", Lifetime.RUN, "its last 50 ended attempts, as JSON"),
    Key("fc:tail:<run>:<step>:<index>", "list", "trial", Lifetime.RUN, "reported rows that storage may not have yet"),
    Key("fc:hosts:<run>:<step>:<index>", "hash", "host", Lifetime.RUN, "bundle → what it hosts for a running attempt"),
    Key("fc:leftovers", "set", "trial", Lifetime.PERMANENT, "units whose tail waits for another to write it"),
    Key("fc:active:<run>", "set", "trial", Lifetime.RUN, "units placed or running"),
    Key("fc:failed:<run>", "zset", "trial", Lifetime.RUN, "unit → when it failed for good"),
    Key("fc:rank:<run>:<step>", "zset", "trial", Lifetime.RUN, "unit running or completed → its best value"),
    Key("fc:deadlines", "zset", "trial", Lifetime.PERMANENT, "placed: dispatch deadline; running: end of the lease"),
    Key("fc:delayed", "zset", "trial", Lifetime.PERMANENT, "pending unit → not before"),
    Key("fc:bucket:<run>:<step>:<shape>", "zset", "place", Lifetime.RUN, "pending unit → index"),
    Key("fc:buckets", "zset", "place", Lifetime.PERMANENT, "non-empty bucket of a step that may run → order"),
    Key("fc:waiting", "zset", "place", Lifetime.PERMANENT, "shape of some such bucket → order"),
    Key("fc:waiting:<shape>", "zset", "place", Lifetime.PERMANENT, "such buckets of one shape → order"),
    Key("fc:repairs", "zset", "place", Lifetime.PERMANENT, "lost bundle of a running attempt → order of its step"),
    Key("fc:boots", "zset", "worker", Lifetime.PERMANENT, "boot → last beat"),
    Key("fc:workers", "hash", "worker", Lifetime.PERMANENT, "worker's name → its boot"),
    Key("fc:boot:<boot>", "hash", "worker", Lifetime.BOOT, "a boot's record; for a day after it is gone"),
    Key("fc:offer:<boot>", "hash", "worker", Lifetime.BOOT, "dimension → units offered"),
    Key("fc:used:<boot>", "hash", "token", Lifetime.BOOT, "dimension → units booked: the sum of the rows"),
    Key("fc:alloc:<boot>", "hash", "token", Lifetime.BOOT, "unit@epoch → what it holds: the truth of tokens"),
    Key("fc:freed", "set", "token", Lifetime.PERMANENT, "boots whose row in fc:free changed since the last full pass"),
    Key("fc:free", "hash", "token", Lifetime.PERMANENT, "boot → what placement needs to know of it, as JSON"),
    Key("fc:total", "hash", "token", Lifetime.PERMANENT, "dimension → units offered by all boots; devices as gpu"),
    Key("fc:shares", "hash", "token", Lifetime.PERMANENT, "run → what its rows cost, in billionths of the cluster"),
    Key("fc:pools", "hash", "token", Lifetime.PERMANENT, "cluster-wide pool → its units"),
    Key("fc:poolused", "hash", "token", Lifetime.PERMANENT, "pool → units booked: the sum of the rows"),
    Key("fc:weights", "hash", "place", Lifetime.PERMANENT, "run that has not ended → weight, if it is not 1"),
    Key("fc:limits", "hash", "place", Lifetime.PERMANENT, "run, or run:step, that has not ended → most units at once"),
    Key("fc:reserve", "string", "place", Lifetime.PERMANENT, "the request that boots are kept for, as JSON"),
    Key("fc:timeouts", "zset", "trial", Lifetime.PERMANENT, "pending unit of a step with a limit to that → until when"),
    Key("fc:attention:<boot>", "set", "worker", Lifetime.BOOT, "units and runs that its guardians should ask about"),
    Key("fc:events:<run>", "stream", "journal", Lifetime.RUN, "transitions and orders, trimmed behind the journal"),
    Key("fc:journals", "set", "journal", Lifetime.PERMANENT, "runs with events that storage does not have"),
    Key("fc:journal:<run>", "hash", "journal", Lifetime.RUN, "who drains a run's events, and how far they stand"),
    Key("fcq.<boot>", "list", "kombu", Lifetime.BOOT, "messages for one boot; the placing script pushes them"),
    Key("fc:unacked", "hash", "kombu", Lifetime.PERMANENT, "messages that workers took and have not acknowledged"),
    Key("fc:unacked_index", "zset", "kombu", Lifetime.PERMANENT, "their tags"),
    Key("fc:unacked_mutex", "string", "kombu", Lifetime.TTL, "who looks for messages to give back"),
    Key("_kombu.binding.fcq.<boot>", "set", "kombu", Lifetime.BOOT, "a queue's binding"),
    Key("_kombu.binding_permanent.fcq.<boot>", "set", "kombu", Lifetime.BOOT, "a queue's binding"),
    Key("_kombu.binding_deadlines", "zset", "kombu", Lifetime.PERMANENT, "bindings that end"),
    Key("_kombu.binding.celeryev", "set", "kombu", Lifetime.PERMANENT, "monitors, with `flowctl worker --events`"),
    Key("_kombu.binding.celery.pidbox", "set", "kombu", Lifetime.PERMANENT, "remote control, with --events"),
    Key("_kombu.binding.reply.celery.pidbox", "set", "kombu", Lifetime.PERMANENT, "its answers, with --events"),
)
"""The whole layout, strings only; a Redis Cluster is not supported (scripts compute keys)."""

_PARTS = {
    "run": r"(?P<run>[A-Za-z0-9._-]{1,80})",
    "step": r"[A-Za-z0-9_-]{1,60}",
    "index": r"\d+",
    "shape": r"[A-Za-z0-9._-]+",
    "boot": r"(?P<boot>[A-Za-z0-9._-]+)",
}
_ROWS = tuple(
    (re.compile(re.sub(r"<(\w+)>", lambda part: _PARTS[part[1]], re.escape(key.pattern))), key) for key in KEYS
)


def owner_of(name: str) -> Key | None:
    """The row that a key belongs to."""
    return next((key for pattern, key in _ROWS if pattern.fullmatch(name)), None)


def unowned(client: Any) -> list[str]:
    """Sentences about keys that nobody owns, that have another type than they should, or that outlived what they
    belong to. Reads only; for tests and `doctor`: it walks all keys.
    """
    runs = set(cast(list[str], client.zrange("fc:runs", 0, -1)))
    boots = set(cast(list[str], client.zrange("fc:boots", 0, -1)))
    found = []
    names = sorted(set(client.scan_iter(count=1000)))
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.type(name).pttl(name)
    answers = pipe.execute()
    for name, kind, ttl_ms in zip(names, answers[::2], answers[1::2], strict=True):
        match, key = next(
            ((match, key) for pattern, key in _ROWS if (match := pattern.fullmatch(name))),
            (None, None),
        )
        if key is None or match is None:
            found.append(f"{name}: no owner")
        elif kind not in (key.kind, "none"):
            found.append(f"{name}: a {kind}, should be a {key.kind}")
        elif kind != "none" and not _may_live(match.groupdict(), key.lifetime, runs, boots, ttl_ms):
            found.append(f"{name}: should have ended {key.lifetime.value}")
    return found


def _may_live(parts: dict[str, str], lifetime: Lifetime, runs: set[str], boots: set[str], ttl_ms: int) -> bool:
    if lifetime is Lifetime.PERMANENT or ttl_ms >= 0:
        return True
    if lifetime is Lifetime.TTL:
        return False
    return parts["run"] in runs if lifetime is Lifetime.RUN else parts["boot"] in boots
