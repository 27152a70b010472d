"""`--set [STEP.]keyword[.key]=value`: other keywords for one compilation, and nothing new.

A keyword that was declared with a dictionary may be addressed by key, at any depth; a key must be there already, so
that a slip is an error and not a setting without effect. Without STEP the only experiment is meant, else the only
stage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.leaf import Leaf
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.parameters import read_value
from flowctl.dsl.plan import EXPERIMENT
from flowctl.dsl.resources import BUILT_IN
from flowctl.dsl.space import Choice, Grid

_RANGE = re.compile(r"\s*(grid|choice|q?(log)?(uniform|randint)|q?lograndint|q?randn)\s*\(")


def apply_overrides(leaves: Mapping[str, Leaf], overrides: Mapping[str, str]) -> dict[str, Leaf]:
    """The leaves by step name, with the overrides applied. Raises `DeclarationError`, whose place is the override."""
    changed = dict(leaves)
    for path, text in overrides.items():
        place = f"--set {path}={text}"
        step, keyword, keys = _address(path, changed, place)
        leaf = changed[step]
        if isinstance(text, str) and _RANGE.match(text):
            what = "a range cannot be set on the command line"
            raise DeclarationError(what, place=place, cure="set one value, or change the script")
        value = read_value(text) if isinstance(text, str) else text
        if keys:
            value = _replaced(leaf.keywords[keyword], keys, value, keyword, place)
        try:
            changed[step] = type(leaf)(leaf.function, {**leaf.keywords, keyword: value}, name=leaf.name)
        except DeclarationError as error:
            raise type(error)(error.what, place=place, cure=error.cure) from error
    return changed


def _address(path: str, leaves: Mapping[str, Leaf], place: str) -> tuple[str, str, list[str]]:
    first, *rest = path.split(".")
    if first in leaves and rest and rest[0] in leaves[first].defaults:
        return first, rest[0], rest[1:]
    known = {keyword for leaf in leaves.values() for keyword in leaf.defaults}
    if first in leaves:
        what = f"{first!r} is a step; what of it" if not rest else f"the step {first!r} has no keyword {rest[0]!r}"
        cure = did_you_mean(rest[0] if rest else "", leaves[first].defaults, kind="keywords")
        raise DeclarationError(what, place=place, cure=cure)
    if first not in known:
        what = f"there is no keyword {first!r}"
        if any(first in _parameters(leaf) for leaf in leaves.values()):
            raise DeclarationError(what, place=place, cure=f"write --set param_space.{first}=…")
        raise DeclarationError(what, place=place, cure=did_you_mean(first, [*known, *leaves], kind="keywords"))
    step = _only_step(leaves, first, place)
    if first not in leaves[step].defaults:
        cure = did_you_mean(first, leaves[step].defaults, kind="keywords")
        raise DeclarationError(f"the step {step!r} has no keyword {first!r}", place=place, cure=cure)
    return step, first, rest


def _parameters(leaf: Leaf) -> Mapping[str, Any]:
    space = leaf.keywords.get("param_space")
    return space if isinstance(space, Mapping) else {}


def _only_step(leaves: Mapping[str, Leaf], keyword: str, place: str) -> str:
    experiments = [name for name, leaf in leaves.items() if leaf.kind == EXPERIMENT]
    candidates = experiments or list(leaves)
    if len(candidates) == 1:
        return candidates[0]
    what = f"more than one step has {keyword!r}"
    raise DeclarationError(what, place=place, cure=f"write --set {candidates[0]}.{keyword}=…")


def _replaced(container: Any, keys: Sequence[str], value: Any, path: str, place: str) -> Any:
    """A copy of `container` in which the entry at `keys` is `value`."""
    if container is None and path == "stop":
        return {".".join(keys): value}
    if isinstance(container, Mapping):
        for length in range(len(keys), 0, -1):
            key, rest = ".".join(keys[:length]), keys[length:]
            if key in container or (path == "resources" and key in BUILT_IN and not rest):
                inner = _replaced(container[key], rest, value, f"{path}.{key}", place) if rest else value
                return {**container, key: inner}
        names = [key for key in container if isinstance(key, str)]
        cure = did_you_mean(keys[0], names, kind=f"keys of {path}")
        raise DeclarationError(f"{path} has no key {keys[0]!r}", place=place, cure=cure)
    if type(container) in (list, tuple):
        entries, number = list(container), keys[0]
        if not number.isdecimal() or int(number) >= len(entries):
            cure = f"{path} has entries 0 to {len(entries) - 1}"
            raise DeclarationError(f"{path} has no entry {number!r}", place=place, cure=cure)
        rest = keys[1:]
        entry = entries[int(number)]
        entries[int(number)] = _replaced(entry, rest, value, f"{path}.{number}", place) if rest else value
        return entries
    kind = type(container).__name__.lower() if isinstance(container, (Grid, Choice)) else "value without keys"
    raise DeclarationError(f"{path} is a {kind}", place=place, cure=f"replace it whole: --set {path}=…")


def parse_assignments(texts: Sequence[str], *, option: str) -> dict[str, str]:
    """`NAME=VALUE` texts of a command line as a dictionary. Raises `DeclarationError` for what is not one."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise DeclarationError(f"{text!r} is not NAME=VALUE", place=option, cure=f"write {option} num_samples=3")
        if name.strip() in found:
            raise DeclarationError(f"{name.strip()!r} is given twice", place=option)
        found[name.strip()] = value
    return found
