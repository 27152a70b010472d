"""A decorator's keywords, checked: what may be declared now, what is not yet built, and the values that follow."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.jsonvalue import JSON, kind_of
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at
from flowctl.dsl.policy import Policy, integer, policy
from flowctl.dsl.resources import parse_resources
from flowctl.dsl.space_encoding import encode_space
from flowctl.dsl.stop import Stop, parse_stop


@dataclass(frozen=True)
class Declaration:
    """The checked values of an experiment or a stage. `seed` None is derived later; "random" is drawn later."""

    resources: Mapping[str, int]
    policy: Policy
    space: JSON = None
    num_samples: int = 1
    seed: str | None = None
    metric: str | None = None
    mode: str | None = None
    stop: Stop = field(default_factory=Stop)
    storage_path: str | None = None


def check_keywords(given: Collection[str], known: Collection[str], *, place: str | None, of: str) -> None:
    """Raises `DeclarationError` for the first unknown keyword, with the nearest known one."""
    for name in given:
        if name not in known:
            cure = did_you_mean(name, known, kind="keywords")
            raise DeclarationError(f"{of} has no keyword {name!r}", place=place, cure=cure)


def refuse_not_yet(
    keywords: Mapping[str, Any], defaults: Mapping[str, Any], built: Collection[str], *, place: str | None
) -> None:
    """Raises `NotYetError` for the first keyword outside `built` that is not its default."""
    for name, value in keywords.items():
        if name not in built and not _is_default(value, defaults[name]):
            raise NotYetError("is not yet supported", place=at(place, name), cure="leave it out")


def declare_experiment(keywords: Mapping[str, Any], *, place: str | None) -> Declaration:
    """The checked values of `@experiment`. Raises `DeclarationError` with the keyword's path."""
    metric, mode = _metric(keywords["metric"], keywords["mode"], place)
    cure = "leave it out to run each grid point once"
    return Declaration(
        resources=parse_resources(keywords["resources"], place=place),
        policy=_policy(keywords, place),
        space=encode_space(keywords["param_space"], place=at(place, "param_space")),
        num_samples=integer(keywords["num_samples"], at(place, "num_samples"), minimum=1, cure=cure),
        seed=_seed(keywords["seed"], at(place, "seed")),
        metric=metric,
        mode=mode,
        stop=parse_stop(keywords["stop"], place=place),
        storage_path=_storage_path(keywords["storage_path"], at(place, "storage_path")),
    )


def declare_stage(keywords: Mapping[str, Any], *, place: str | None) -> Declaration:
    """The checked values of `@stage`. Raises `DeclarationError` with the keyword's path."""
    return Declaration(
        resources=parse_resources(keywords["resources"], place=place),
        policy=_policy(keywords, place),
    )


def _policy(keywords: Mapping[str, Any], place: str | None) -> Policy:
    return policy(keywords["max_failures"], keywords["max_worker_losses"], place=at(place, ""))


def _metric(metric: object, mode: object, place: str | None) -> tuple[str | None, str | None]:
    if metric is not None and (not isinstance(metric, str) or not metric):
        what = f"is {metric!r}, not the name of a metric"
        raise DeclarationError(what, place=at(place, "metric"), cure='write metric="accuracy"')
    if mode is not None and mode not in ("max", "min"):
        raise DeclarationError(f"is {mode!r}", place=at(place, "mode"), cure='write mode="max" or mode="min"')
    if metric is not None and mode is None:
        what = f"{metric!r} is given without mode"
        raise DeclarationError(what, place=at(place, "metric"), cure='add mode="max" or mode="min"')
    if mode is not None and metric is None:
        raise DeclarationError(f"{mode!r} is given without metric", place=at(place, "mode"), cure="add metric=…")
    return metric, None if mode is None else str(mode)


def _seed(seed: object, place: str) -> str | None:
    if seed is None:
        return None
    if isinstance(seed, str) and 1 <= len(seed) <= 200:
        return seed
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__"):
        what = f"is {seed!r} ({kind_of(seed)}), not a whole number or a text of 1 to 200 characters"
        raise DeclarationError(what, place=place, cure='write seed=7, or seed="random"')
    return str(int(seed.__index__()))  # type: ignore[attr-defined]


def _storage_path(path: object, place: str) -> str | None:
    if path is None:
        return None
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise DeclarationError(f"is {path!r} ({kind_of(path)}), not a path or URL", place=place)
    return text


def _is_default(value: object, default: object) -> bool:
    if value is default:
        return True
    if isinstance(default, Mapping):
        return isinstance(value, Mapping) and not value and not default
    if default is None or type(value) is not type(default):
        return isinstance(default, tuple) and value == []
    return bool(value == default)
