"""Names and ids: which text names a run, a step, a trial, and how a unit's id is read and written.

A run's *name* is any text of 1 to 200 characters; its *id* is safe as a folder name, a key part and a word on a
command line. A unit is one attempt-bearing thing: a trial of an experiment, or a stage (index 0).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple

from flowctl.dsl.errors import DeclarationError, RefusedError

RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")
STEP_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_SLUG_LENGTH = 60

# what other tools call our keywords
_MEANT = {
    "max_retries": "max_failures",
    "retries": "max_failures",
    "space": "param_space",
    "search_space": "param_space",
    "samples": "num_samples",
    "trials": "num_samples",
    "n_trials": "num_samples",
    "max_concurrent": "max_concurrent_trials",
    "direction": "mode",
    "timeout": "timeout_s",
}


class Unit(NamedTuple):
    """The parts of a unit's id; `index` counts from 0."""

    run: str
    step: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here


class TrialReference(NamedTuple):
    """A trial as a person types it: `7`, `RUN/7` or `RUN/step/7`; what is left out is None."""

    run: str | None
    step: str | None
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here


def run_id(name: str) -> str:
    """The id of the run named so: the name itself if it is safe everywhere, else a slug of it and 8 hex digits.

    No id begins like an option or a hidden file, or reads as the number of a trial. Idempotent. Raises
    `RefusedError` for an empty name and one of more than 200 characters.
    """
    if not 1 <= len(name) <= 200:
        what = f"a run's name has 1 to 200 characters, this one has {len(name)}"
        raise RefusedError(what, cure="choose another name")
    if RUN_ID.fullmatch(name) and not name.startswith(("-", ".")) and not name.isdigit():
        return name
    ascii_text = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", ascii_text)[:_SLUG_LENGTH].strip("-.") or "run"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{slug}-{digest[:8]}"


def check_run_id(text: str) -> str:
    """Return `text` if it is a run's id; the check for ids that were read from elsewhere. Raises `RefusedError`."""
    if not RUN_ID.fullmatch(text) or not text.strip("."):
        raise RefusedError(f"{text!r} is not a run's id", cure="an id has 1 to 80 of A-Z a-z 0-9 . _ -")
    return text


def check_step_name(name: str, *, place: str | None = None) -> str:
    """Return `name` if it can name a step. Raises `DeclarationError`."""
    if not STEP_NAME.fullmatch(name):
        cure = 'use 1 to 60 of A-Z a-z 0-9 _ - , for example .options(name="train")'
        raise DeclarationError(f"{name!r} cannot name a step", place=place, cure=cure)
    return name


def unit_id(run: str, step: str, index: int) -> str:
    """`RUN:STEP:INDEX`. Raises `RefusedError` for parts that could not be read back."""
    text = f"{run}:{step}:{index}"
    parse_unit(text)
    return text


def parse_unit(text: str) -> Unit:
    """The parts of a unit's id. Raises `RefusedError` for anything that `unit_id` did not write."""
    parts = text.split(":")
    if len(parts) == 3:
        run, step, index = parts
        if RUN_ID.fullmatch(run) and run.strip(".") and STEP_NAME.fullmatch(step) and _INDEX.fullmatch(index):
            return Unit(run, step, int(index))
    raise RefusedError(f"{text!r} is not a unit's id", cure="it is written RUN:STEP:INDEX")


def shown(unit: str) -> str:
    """A unit's id as a person types it: `RUN/STEP/INDEX`."""
    return unit.replace(":", "/")


def parse_reference(text: str) -> TrialReference:
    """The trial that a person means. Raises `RefusedError` for what cannot be read."""
    parts = text.split("/")
    if len(parts) <= 3 and _INDEX.fullmatch(parts[-1]) and all(parts):
        run = parts[0] if len(parts) > 1 else None
        step = parts[1] if len(parts) == 3 else None
        if (run is None or RUN_ID.fullmatch(run)) and (step is None or STEP_NAME.fullmatch(step)):
            return TrialReference(run, step, int(parts[-1]))
    raise RefusedError(f"{text!r} names no trial", cure="write RUN/7, or RUN/step/7")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is meant elsewhere by `name`, else the one that it most resembles, if any does."""
    ordered = sorted(known)
    if _MEANT.get(name) in ordered:
        return _MEANT[name]
    folded = {one.lower(): one for one in ordered}
    found = get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], *, kind: str = "names") -> str:
    """The cure for an unknown name: the nearest one, else all of them."""
    known = sorted(known)
    near = nearest(name, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"known {kind}: {', '.join(known)}" if known else f"there are no {kind}"
