"""The Lua scripts, one operation per file: loading, and what a header says.

A script names the shared parts that it stands on (`-- include: base tokens`); they are put before it. The transition
table is written once, in `flowctl.dsl.states`, and inserted here, so that Lua refuses whatever the table does not
list. Keys are computed inside the scripts from one prefix: a Redis Cluster is not supported.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from flowctl.dsl.states import RUN_SOURCES, STEP_SOURCES, TRIAL_SOURCES

_HERE = files("flowctl.broker.scripts")


@dataclass(frozen=True)
class Header:
    """What the comment block on top of a script declares."""

    summary: str
    uses: tuple[str, ...]
    args: tuple[str, ...]
    returns: tuple[str, ...]
    include: tuple[str, ...]


def names() -> list[str]:
    """All operations, sorted."""
    return sorted(entry.name.removesuffix(".lua") for entry in _HERE.iterdir() if entry.name.endswith(".lua"))


@cache
def body(name: str) -> str:
    """The file as it is written."""
    return (_HERE / f"{name}.lua").read_text("utf-8")


@cache
def header(name: str) -> Header:
    """The declared contract of one operation."""
    lines = [line[3:] for line in body(name).splitlines() if line.startswith("-- ")]
    fields = dict(line.split(": ", 1) for line in lines if re.match(r"(uses|args|returns|include): ", line))

    def words(key: str) -> tuple[str, ...]:
        return tuple(fields.get(key, "").split())

    replies = tuple(part.split()[0] for part in fields.get("returns", "").split(" | ") if part)
    return Header(summary=lines[0], uses=words("uses"), args=words("args"), returns=replies, include=words("include"))


@cache
def text(name: str) -> str:
    """The script as the server gets it: included parts first, the transition table inserted."""
    tables: dict[str, Any] = {"run": RUN_SOURCES, "step": STEP_SOURCES, "trial": TRIAL_SOURCES}
    table = json.dumps(
        {entity: {str(to): sorted(map(str, before)) for to, before in rows.items()} for entity, rows in tables.items()},
        sort_keys=True,
    )
    parts = [(_HERE / "include" / f"{part}.lua").read_text("utf-8") for part in header(name).include]
    return "\n".join([*parts, body(name)]).replace("@@TRANSITIONS@@", table)
