"""What user code calls inside a trial or stage: report, get_checkpoint, get_context. Outside of one, a script runs on
alone.

Light: it imports neither celery nor redis nor fsspec, and what a trial may not need only where it is used. All that
lasts goes through the guardian; a trial process holds no password and no key.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from flowctl.dsl.jsonvalue import decode, encode
from flowctl.workers.bundles import Bundle, pack
from flowctl.workers.channel import Channel, ChannelClosed

if TYPE_CHECKING:
    from pathlib import Path

    from flowctl.storage.checkpoint import Checkpoint

AUTOMATIC = ("training_iteration", "attempt", "time_total_s", "timestamp")
"""Keys of a row that flowctl fills; a user's key of that name is refused."""


class TrialStopped(BaseException):
    """Raised by `report` when this attempt is to end: a stop condition held, or it was cancelled or preempted.

    A BaseException, so that `except Exception` in user code lets it pass; `finally` blocks run.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Context:
    """Who this attempt is, and what it holds. `resources` in the units of the declaration (cores, devices, bytes of
    memory, …); `devices` as they stand in CUDA_VISIBLE_DEVICES.
    """

    run: str
    step: str
    trial: int
    attempt: int
    worker: str
    resources: Mapping[str, float]
    seed: str | None
    devices: tuple[str, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    """Of the attempt's placement group; the first is its own. Empty for a request of one bundle."""


@dataclass
class Session:
    """The state of one attempt inside its process."""

    channel: Channel
    context: Context
    stop: Mapping[str, float] | None
    stop_functions: tuple[Callable[[dict[str, Any]], bool], ...]
    metric: str | None
    iteration: int
    time_before_s: float
    started: float = field(default_factory=time.monotonic)
    stopping: str | None = None
    pid: int = field(default_factory=os.getpid)
    reported: set[str] = field(default_factory=set)
    """Those names of `stop` that some row had."""
    devices: tuple[Mapping[str, Any], ...] = ()
    """What `wait_for_gpu` must know of the attempt's devices (see grant.py)."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The text of the script's files: it goes along with what a bundle is to run."""
    is_host: bool = False
    """It runs for a trial, on a bundle of its placement group: it has no row and no checkpoint of its own."""

    def note(self) -> str | None:
        """What the user should know of an attempt that ended well."""
        lacking = sorted(set(self.stop or ()) - self.reported)
        return f"never reported what stop asks for: {', '.join(lacking)}" if lacking and self.iteration else None

    def row(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The row of this report: the user's metrics and the automatic keys."""
        return {
            **metrics,
            "training_iteration": self.iteration,
            "attempt": self.context.attempt,
            "time_total_s": self.time_before_s + time.monotonic() - self.started,
            "timestamp": time.time(),
        }


_current: Session | None = None


def begin(session: Session) -> None:
    """Called once by the trial process."""
    global _current
    _current = session


def current() -> Session | None:
    """The running attempt's session, or None outside of one."""
    return _current


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def report(metrics: Mapping[str, Any] = _NOTHING, *, checkpoint: Checkpoint | None = None, **named: NoReturn) -> None:
    """Records one row of metrics, and with it a checkpoint.

    metrics: a dictionary of names to numbers, texts, lists or dictionaries of them; numpy and tensor scalars become
    plain numbers. Each call is one `training_iteration`. With a checkpoint it returns when the checkpoint is safe on
    storage. Raises TypeError or ValueError for what cannot be stored, naming the key, and TrialStopped when the
    attempt is to end. Outside of a trial it prints the metrics and returns.
    """
    if named or metrics is _NOTHING:
        raise TypeError(f"report takes one dictionary: report({_example(named)})")
    plain = _plain(metrics)
    if checkpoint is not None and not is_checkpoint(checkpoint):
        kind = type(checkpoint).__name__
        raise TypeError(f"report: checkpoint must be a Checkpoint, not {kind}; use Checkpoint.from_directory(path)")
    session = _current
    if session is None:
        print("report:", ", ".join(f"{key}={value}" for key, value in decode(plain).items()), file=sys.stderr)
        return
    if os.getpid() != session.pid:
        raise RuntimeError("report: called in a process that the trial has started; report from the trial's own")
    if session.is_host:
        raise RuntimeError("report: called on a bundle; return the values, and report them from the trial")
    if session.metric is not None:
        _check_metric(plain, session.metric)
    session.iteration += 1
    row = session.row(plain)
    frame = {
        "t": "report",
        "metrics": plain,
        "training_iteration": row["training_iteration"],
        "time_total_s": row["time_total_s"],
        "timestamp": row["timestamp"],
        "checkpoint": None if checkpoint is None else checkpoint.path,
    }
    answer = _ask(session, frame)
    if answer.get("error"):
        raise RuntimeError(answer["error"])
    if answer.get("stop"):
        session.stopping = answer["stop"]
        raise TrialStopped(answer["stop"])
    if not session.stop and not session.stop_functions:
        return
    held = _stop_condition(session, {**decode(plain), **{key: row[key] for key in AUTOMATIC}})
    if held:
        session.channel.send({"t": "stopping", "reason": held})
        session.stopping = held
        raise TrialStopped(held)


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this trial: of this attempt if it reported one, else of an earlier one; None if there
    is none.
    """
    if _current is None or _current.is_host:
        return None
    answer = _ask(_current, {"t": "get_checkpoint"})
    if answer.get("error"):
        raise RuntimeError(answer["error"])
    from flowctl.storage.checkpoint import Checkpoint

    return None if answer.get("path") is None else Checkpoint.from_directory(answer["path"])


def get_context() -> Context:
    """Who this attempt is. Raises RuntimeError outside of a trial."""
    if _current is None:
        raise RuntimeError("get_context: not inside a trial or stage")
    return _current.context


def fetch_checkpoint(ref: Mapping[str, Any]) -> Path:
    """Local folder of another trial's checkpoint; its guardian fetches it on first use."""
    if _current is None:
        raise RuntimeError("not inside a trial or stage")
    answer = _ask(_current, {"t": "fetch", "ref": dict(ref)})
    if answer.get("error"):
        raise RuntimeError(answer["error"])
    from pathlib import Path

    return Path(answer["path"])


def bundles_of(
    channel: Channel, told: Sequence[Mapping[str, Any]], sources: Mapping[str, str], names: Sequence[str] = ()
) -> tuple[Bundle, ...]:
    """The bundles as the guardian describes them, with the way to start code on them."""

    def ask(frame: dict[str, Any]) -> dict[str, Any]:
        try:
            return channel.ask(frame)
        except ChannelClosed as error:
            raise TrialStopped("the guardian of this trial is gone") from error

    return tuple(
        Bundle.of(index, one, ask=ask, pack=lambda value: pack(value, sources, names)) for index, one in enumerate(told)
    )


def _ask(session: Session, frame: dict[str, Any]) -> dict[str, Any]:
    try:
        return session.channel.ask(frame)
    except ChannelClosed as error:
        raise TrialStopped("the guardian of this trial is gone") from error


def is_checkpoint(value: object) -> bool:
    """Whether it is one, without importing more than the value's own maker has."""
    from flowctl.storage.checkpoint import Checkpoint

    return isinstance(value, Checkpoint)


def _example(named: Mapping[str, object]) -> str:
    """What was meant by metrics that were given as keywords."""
    shown = {key: value if isinstance(value, bool | int | float | str) else "…" for key, value in named.items()}
    return json.dumps(dict(list(shown.items())[:3]) or {"loss": 1}, ensure_ascii=False)


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        what = f"report: metrics must be a dictionary, not {type(metrics).__name__}"
        raise TypeError(f'{what}; write report({{"loss": 1}})')
    for key in metrics:
        if not isinstance(key, str):
            raise TypeError(f"report: metric names must be texts, not {key!r} ({type(key).__name__})")
        if key in AUTOMATIC:
            raise ValueError(f"report: '{key}' is filled by flowctl; use another name")
    plain: dict[str, Any] = encode(dict(metrics), "metrics")
    return plain


def _check_metric(plain: Mapping[str, Any], metric: str) -> None:
    value: Any = plain
    for part in metric.split("/") if metric not in plain else [metric]:
        if not isinstance(value, Mapping) or part not in value:
            return
        value = value[part]
    if isinstance(value, bool) or (
        not isinstance(value, int | float) and not (isinstance(value, Mapping) and "$float" in value)
    ):
        raise TypeError(f"report: the metric '{metric}' must be a number, not {type(value).__name__}")


def _stop_condition(session: Session, row: dict[str, Any]) -> str | None:
    if session.stop:
        from flowctl.dsl.stop import first_stop, lookup

        session.reported.update(name for name in session.stop if lookup(row, name) is not None)
        held = first_stop(session.stop, row)
        if held is not None:
            return f"stop condition: {held}"
    for function in session.stop_functions:
        if function(dict(row)):
            return f"stop condition: {getattr(function, '__name__', type(function).__name__)}"
    return None
