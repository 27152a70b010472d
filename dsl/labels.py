"""Labels: what a worker says of itself (`spot`, `zone=a`), and what a request wants of a worker (also `!spot`: not so).

A label is a word, or a word, `=` and a value. It is a fact and not an amount: nothing of it is used up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.jsonvalue import kind_of

NOT = "!"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=[A-Za-z0-9._/:-]{1,63})?")
_CURE = 'write ["spot", "zone=a", "!slow"] or {"zone": "a"}'


def is_label(text: object) -> bool:
    """Whether this can be a label of a worker."""
    return isinstance(text, str) and _LABEL.fullmatch(text) is not None


def parse_labels(value: object, *, place: str) -> tuple[str, ...]:
    """What is wanted of a worker, sorted, each once; None is nothing.

    Read are a list of labels, a dictionary (`{"zone": "a", "spot": True, "slow": False}`), and text as on a command
    line (`spot,zone=a`). Raises `DeclarationError` for what is no label, and where one is wanted and not wanted.
    """
    wanted = sorted(set(_texts(value, place)))
    for label in wanted:
        if not is_label(label.removeprefix(NOT)):
            raise DeclarationError(f"{label!r} is not a label", place=place, cure=_CURE)
        if NOT + label in wanted:
            raise DeclarationError(f"{label!r} is wanted and not wanted", place=place, cure="leave one of them out")
    return tuple(wanted)


def show_labels(labels: Iterable[str]) -> str:
    """Labels as a person reads them: `spot, zone=a, not slow`."""
    ordered = sorted(labels, key=lambda label: (label.startswith(NOT), label))
    return ", ".join(f"not {label[1:]}" if label.startswith(NOT) else label for label in ordered)


def _texts(value: object, place: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")] if value.strip() else []
    if isinstance(value, Mapping):
        return [_pair(name, each, place) for name, each in value.items()]
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a list of labels", place=place, cure=_CURE)
    for each in value:
        if not isinstance(each, str):
            raise DeclarationError(f"{each!r} ({kind_of(each)}) is not a label", place=place, cure=_CURE)
    return [str(each) for each in value]


def _pair(name: object, value: object, place: str) -> str:
    if isinstance(name, str) and isinstance(value, bool):
        return name if value else f"{NOT}{name}"
    if isinstance(name, str) and not name.startswith(NOT) and isinstance(value, str):
        return f"{name}={value}"
    raise DeclarationError(f"{name!r}: {value!r} is not a label", place=place, cure='write {"zone": "a"}')
