"""What the Lua scripts touch, pass and return, read from their source: the ground that the headers are held against."""

from __future__ import annotations

import re
from importlib.resources import files

from flowctl.broker import scripts

_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.S | re.M)
_KEY = re.compile(r"'((?:fc:|_kombu\.)[a-z_.]*:?)'")
_COMMENT = re.compile(r"^\s*--.*$", re.M)


def code(name: str) -> str:
    """One operation without its comments."""
    return _COMMENT.sub("", scripts.body(name))


def included(part: str) -> str:
    """One shared part without its comments."""
    source = (files("flowctl.broker.scripts") / "include" / f"{part}.lua").read_text("utf-8")
    return _COMMENT.sub("", source)


def reached(name: str) -> dict[str, str]:
    """The functions of the included parts that a script can get to, by name, with their source."""
    known = {
        match[1]: match[0] for part in scripts.header(name).include for match in _FUNCTION.finditer(included(part))
    }
    found: dict[str, str] = {}
    todo = [code(name)]
    while todo:
        words = set(re.findall(r"\b\w+\b", todo.pop()))
        for function in sorted(words & known.keys() - found.keys()):
            found[function] = known[function]
            todo.append(known[function])
    return found


def keys(name: str) -> set[str]:
    """Patterns of every key that a script can touch, in the words of a header's `uses`."""
    source = "\n".join([code(name), *reached(name).values()])
    found = {_pattern(match) for match in _KEY.findall(source)}
    if re.search(r"'(?:LPUSH|LREM)'", source) or "_kombu.*" in found:
        found.add("fcq.*")  # a boot's queue: its name stands in the boot's record
    return found


def replies(name: str) -> set[str]:
    """First words of every answer that a script gives."""
    return set(re.findall(r"return \{ '([A-Z_]+)'", code(name)))


def arguments(name: str) -> list[int]:
    """Positions of ARGV that a script reads."""
    return sorted({int(position) for position in re.findall(r"ARGV\[(\d+)\]", code(name))})


def _pattern(key: str) -> str:
    if key.startswith("_kombu."):
        return "_kombu.*"
    return f"{key}*" if key.endswith(":") else key
