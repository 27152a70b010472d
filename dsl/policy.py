"""What is done when a trial or a worker fails, which checkpoints are kept, and what is enforced: the values that a
person declares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at, caller_place

ENFORCED = ("cpu", "memory")
ON_BUNDLE_LOSS = ("fail", "repair")


@dataclass(frozen=True)
class Policy:
    """The failure budgets of a step, and what its trials are held to.

    `max_failures` counts what a trial did (-1: no limit). `max_worker_losses` counts losses of its worker in a row
    without a new checkpoint (-1: no limit; None: losses count into `max_failures`). `enforce` names the resources that
    are a hard limit of the trial's processes, sorted. `on_bundle_loss` says what the loss of one bundle's worker is:
    the loss of the attempt ("fail"), or of the bundle alone ("repair").
    """

    max_failures: int = 0
    max_worker_losses: int | None = 3
    enforce: tuple[str, ...] = ()
    on_bundle_loss: str = "fail"

    def to_json(self) -> dict[str, Any]:
        return {
            "max_failures": self.max_failures,
            "max_worker_losses": self.max_worker_losses,
            "enforce": list(self.enforce),
            "on_bundle_loss": self.on_bundle_loss,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Policy:
        """Raises `TypeError` or `ValueError` for what `to_json` did not write."""
        found = cls(**{**data, "enforce": tuple(data.get("enforce", ()))})
        if not set(found.enforce) <= set(ENFORCED) or found.on_bundle_loss not in ON_BUNDLE_LOSS:
            raise ValueError("a damaged policy")
        return found


@dataclass(frozen=True)
class Retry:
    """When a failed trial is tried again: after `delay_s`, times `backoff` each time, up to `max_delay_s`.

    `jitter` is the share by which a delay is varied (0 to 1). `only` and `never` are exception types or their names.
    """

    delay_s: float = 0
    backoff: float = 2
    max_delay_s: float = 300
    jitter: float = 0.1
    only: tuple[Any, ...] = ()
    never: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        number(self.delay_s, at(caller_place(), "Retry.delay_s"), minimum=0)
        number(self.backoff, at(caller_place(), "Retry.backoff"), minimum=1)
        number(self.max_delay_s, at(caller_place(), "Retry.max_delay_s"), minimum=0)
        number(self.jitter, at(caller_place(), "Retry.jitter"), minimum=0, maximum=1)
        for name in ("only", "never"):
            object.__setattr__(self, name, _exceptions(getattr(self, name), at(caller_place(), f"Retry.{name}")))


@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints of a trial are kept: the best `num_to_keep` and always the latest; None keeps all.

    Without `checkpoint_score_attribute` the newest count as best. A name may be nested: `"eval/accuracy"`.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    max_total_bytes: int | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        if self.num_to_keep is not None:
            integer(self.num_to_keep, at(caller_place(), "CheckpointConfig.num_to_keep"), minimum=1)
        attribute = self.checkpoint_score_attribute
        if attribute is not None and (not isinstance(attribute, str) or not attribute):
            what = f"is {attribute!r}, not the name of a metric"
            raise DeclarationError(what, place=at(caller_place(), "CheckpointConfig.checkpoint_score_attribute"))
        if self.checkpoint_score_order not in ("max", "min"):
            what = f'is {self.checkpoint_score_order!r}, not "max" or "min"'
            raise DeclarationError(what, place=at(caller_place(), "CheckpointConfig.checkpoint_score_order"))
        if self.max_total_bytes is not None:
            integer(self.max_total_bytes, at(caller_place(), "CheckpointConfig.max_total_bytes"), minimum=1)
        if not isinstance(self.asynchronous, bool):
            what = f"is {self.asynchronous!r}, not True or False"
            raise DeclarationError(what, place=at(caller_place(), "CheckpointConfig.asynchronous"))


def policy(
    max_failures: object,
    max_worker_losses: object,
    *,
    enforce: object = None,
    on_bundle_loss: object = "fail",
    place: str = "",
) -> Policy:
    """The checked values; `place` is put before the keyword's name in an error."""
    failures = integer(max_failures, f"{place}max_failures", minimum=-1, cure="-1 means no limit")
    cure = "-1 means no limit, None counts losses as failures"
    losses = max_worker_losses
    if losses is not None:
        losses = integer(losses, f"{place}max_worker_losses", minimum=-1, cure=cure)
    if on_bundle_loss not in ON_BUNDLE_LOSS:
        what = f"is {on_bundle_loss!r}"
        raise DeclarationError(what, place=f"{place}on_bundle_loss", cure='write "fail" or "repair"')
    return Policy(failures, losses, _enforced(enforce, f"{place}enforce"), str(on_bundle_loss))


def _enforced(value: object, place: str) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if names is None:
        return ()
    if not isinstance(names, (list, tuple, set, frozenset)):
        what = f"is {value!r} ({kind_of(value)}), not a set of names"
        raise DeclarationError(what, place=place, cure='write enforce={"memory"}')
    for name in names:
        if name not in ENFORCED:
            cure = did_you_mean(str(name), ENFORCED)
            raise DeclarationError(f"{name!r} cannot be enforced", place=place, cure=cure)
    return tuple(sorted(set(names)))


def integer(value: object, place: str, *, minimum: int, maximum: float = math.inf, cure: str | None = None) -> int:
    """`value` if it is a whole number within the bounds, both included; booleans, floats and text are refused."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a whole number", place=place, cure=cure)
    whole = int(value.__index__())  # type: ignore[attr-defined]
    if whole < minimum:
        raise DeclarationError(f"is {whole}, must be at least {minimum}", place=place, cure=cure)
    if whole > maximum:
        raise DeclarationError(f"is {whole}, must be at most {maximum}", place=place, cure=cure)
    return whole


def number(value: object, place: str, *, minimum: float, maximum: float = math.inf) -> float:
    """`value` if it is a finite number within the bounds, both included; booleans and text are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a number", place=place)
    if not math.isfinite(value):
        raise DeclarationError(f"is {value!r}, not a finite number", place=place)
    if value < minimum:
        raise DeclarationError(f"is {value!r}, must be at least {minimum}", place=place)
    if value > maximum:
        raise DeclarationError(f"is {value!r}, must be at most {maximum}", place=place)
    return value


def _exceptions(value: object, place: str) -> tuple[Any, ...]:
    entries = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for entry in entries:
        is_type = isinstance(entry, type) and issubclass(entry, BaseException)
        if not is_type and not (isinstance(entry, str) and entry):
            raise DeclarationError(f"holds {entry!r}, not an exception type or its name", place=place)
    return entries


DEFAULT_RETRY = Retry()
DEFAULT_CHECKPOINT = CheckpointConfig()
