"""A decorator's keywords, checked: what may be declared now, what is not yet built, and the values that follow."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.jsonvalue import JSON, kind_of
from flowctl.dsl.labels import parse_labels
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at
from flowctl.dsl.policy import Policy, integer, number, policy
from flowctl.dsl.request import ResourceFunction, parse_resources, with_labels
from flowctl.dsl.resources import Request
from flowctl.dsl.space_encoding import encode_space
from flowctl.dsl.stop import Stop, parse_stop

MAX_PRIORITY = 1000


@dataclass(frozen=True)
class Declaration:
    """The checked values of an experiment or a stage. `seed` None is derived later; "random" is drawn later.

    One of `request` and `resource_function` is there. `labels` are those of the keyword; `request` has them already.
    """

    request: Request | None
    policy: Policy
    resource_function: ResourceFunction | None = None
    labels: tuple[str, ...] = ()
    max_concurrent_trials: int | None = None
    priority: int = 0
    pending_timeout_s: float | None = None
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
        **_asked(keywords, place),
        max_concurrent_trials=_limit(keywords["max_concurrent_trials"], at(place, "max_concurrent_trials")),
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
    asked = _asked(keywords, place)
    if asked["resource_function"] is not None:
        what = "is a function of the configuration, which a stage does not have"
        raise DeclarationError(what, place=at(place, "resources"), cure="use a dictionary or a placement group")
    return Declaration(**asked)


def _asked(keywords: Mapping[str, Any], place: str | None) -> dict[str, Any]:
    """What experiments and stages have in common: request, order, and policy."""
    resources = parse_resources(keywords["resources"], place=place)
    labels = parse_labels(keywords["labels"], place=at(place, "labels"))
    request, function = (resources, None) if isinstance(resources, Request) else (None, resources)
    declared_policy = policy(
        keywords["max_failures"],
        keywords["max_worker_losses"],
        enforce=keywords.get("enforce"),
        on_bundle_loss=keywords.get("on_bundle_loss", "fail"),
        place=at(place, ""),
    )
    if request is not None:
        _check_enforced(declared_policy, request, at(place, "enforce"))
    cure = "higher numbers go first"
    return {
        "request": None if request is None else with_labels(request, labels, place=at(place, "labels")),
        "resource_function": function,
        "labels": labels,
        "priority": integer(
            keywords["priority"], at(place, "priority"), minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY, cure=cure
        ),
        "pending_timeout_s": _pending_timeout(keywords["pending_timeout_s"], at(place, "pending_timeout_s")),
        "policy": declared_policy,
    }


def _check_enforced(policy: Policy, request: Request, place: str) -> None:
    """Raises `DeclarationError` for a limit on what is not asked for."""
    for name in policy.enforce:
        if not any(name in bundle.need for bundle in request.bundles):
            cure = 'ask for it: resources={"memory": "2GiB"}' if name == "memory" else 'ask for it: {"cpu": 1}'
            raise DeclarationError(f"{name!r} is to be enforced and is not asked for", place=place, cure=cure)


def _limit(value: object, place: str) -> int | None:
    """None and 0 mean no limit."""
    cure = "None or 0 means no limit"
    return (integer(value, place, minimum=0, cure=cure) or None) if value is not None else None


def _pending_timeout(value: object, place: str) -> float | None:
    if value is None:
        return None
    seconds = number(value, place, minimum=0, maximum=10**9)
    if not seconds:
        raise DeclarationError("is 0, must be above 0", place=place, cure="None waits without end")
    return seconds


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
