"""Results: the trials of a run as a person reads them, joined from the server's state and the run's folder.

Statuses and last reports come from the server, which knows them first; configurations, rows and checkpoints from the
folder. Values that are NaN or infinite are kept in rows and never win.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, overload

from flowctl.broker.cause import Cause
from flowctl.dsl.config import Config
from flowctl.dsl.errors import DeclarationError, FlowctlError
from flowctl.dsl.names import nearest

if TYPE_CHECKING:
    from pathlib import Path

    from flowctl.storage.checkpoint import Checkpoint

SCOPES = ("best", "last")
NOT_CANDIDATES = ("failed", "cancelled")
AUTOMATIC = ("training_iteration", "attempt", "time_total_s", "timestamp")


class NoBest(FlowctlError):
    """No trial has a finite value of the metric."""

    exit_code = 1


@dataclass(frozen=True)
class BestReport:
    """The best report of a trial: its value, its iteration and its metrics."""

    value: float
    iteration: int | None
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointInfo:
    """Which checkpoint a result holds: the attempt that wrote it, its number, the iteration it stands at."""

    epoch: int
    nonce: str
    seq: int
    iteration: int

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> CheckpointInfo | None:
        """Read the server's record; None for none."""
        if not data:
            return None
        return cls(int(data["epoch"]), str(data["nonce"]), int(data["seq"]), int(data["iteration"]))

    def to_json(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "nonce": self.nonce, "seq": self.seq, "iteration": self.iteration}


@dataclass(frozen=True)
class TrialResult:
    """One trial. `metrics` are those of the last report (of the best one in what `get_best` returns); instants in ms.

    `best_report` is by the experiment's own metric, if it has one. `checkpoint_of` says what `checkpoint` belongs to:
    "best" (the best report), "latest" (the newest one), or None without a checkpoint.
    """

    run: str
    step: str
    index: int
    label: str
    status: str
    reason: str | None
    cause: Cause | None
    attempts: int
    worker: str | None
    started_ms: int | None
    ended_ms: int | None
    iteration: int
    reports: int
    config: Config
    metrics: Mapping[str, Any]
    best_report: BestReport | None = None
    best_checkpoint: CheckpointInfo | None = None
    latest_checkpoint: CheckpointInfo | None = None
    checkpoint_of: str | None = None
    is_stage: bool = False
    source: ResultSource | None = field(default=None, repr=False, compare=False)

    @property
    def duration_s(self) -> float | None:
        """Seconds from the first claim to the end; None while it has not ended or never started."""
        if self.started_ms is None or self.ended_ms is None:
            return None
        return (self.ended_ms - self.started_ms) / 1000

    @property
    def error(self) -> str | None:
        """The cause of a failed trial in one line."""
        if self.status != "failed":
            return None
        if self.cause is None:
            return self.reason or "no cause recorded"
        return self.cause.headline() + (f" at {self.cause.place}" if self.cause.place else "")

    @property
    def checkpoint_info(self) -> CheckpointInfo | None:
        """Which checkpoint `checkpoint` is."""
        return self.best_checkpoint if self.checkpoint_of == "best" else self.latest_checkpoint

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint, fetched and verified on first use; see `checkpoint_of`."""
        info = self.checkpoint_info
        return self.source.checkpoint(self, info) if info is not None and self.source is not None else None

    def save_checkpoint(self, folder: Path) -> bool:
        """Make `folder`, which must be absent or empty, from the checkpoint; False if there is none."""
        info = self.checkpoint_info
        if info is None or self.source is None:
            return False
        self.source.save(self, info, folder)
        return True

    @property
    def output(self) -> Any:
        """What a stage returned: a JSON value, or a Checkpoint; None for a trial, and before it completed."""
        return self.source.output(self) if self.is_stage and self.source is not None else None

    def rows(self) -> list[dict[str, Any]]:
        """Every report that counts, one dictionary each: the metrics and the four automatic keys."""
        return self.source.rows(self) if self.source is not None else []


class ResultSource(Protocol):
    """Where results read rows and checkpoints from; see workers/runs/load_results.py."""

    def rows(self, trial: TrialResult) -> list[dict[str, Any]]:
        """Every report that counts."""
        ...

    def output(self, trial: TrialResult) -> Any:
        """What a stage returned."""
        ...

    def checkpoint(self, trial: TrialResult, info: CheckpointInfo) -> Checkpoint:
        """The checkpoint, fetched when it is used."""
        ...

    def save(self, trial: TrialResult, info: CheckpointInfo, folder: Path) -> Path:
        """Copies the checkpoint into a folder, verified."""
        ...

    def checkpoint_at(self, trial: TrialResult, iteration: int) -> CheckpointInfo | None:
        """The checkpoint that was committed with the report of that iteration, if one was."""
        ...


class Results(Sequence[TrialResult]):
    """The trials of one experiment, by number."""

    def __init__(self, trials: Sequence[TrialResult], *, run: str, metric: str | None, mode: str | None) -> None:
        self._trials = tuple(trials)
        self.run = run
        self.metric = metric
        self.mode = mode

    @overload
    def __getitem__(self, index: int) -> TrialResult: ...

    @overload
    def __getitem__(self, index: slice) -> Results: ...

    def __getitem__(self, index: int | slice) -> TrialResult | Results:
        if isinstance(index, slice):
            return Results(self._trials[index], run=self.run, metric=self.metric, mode=self.mode)
        return self._trials[index]

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self._trials)

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for trial in self._trials:
            counts[trial.status] = counts.get(trial.status, 0) + 1
        return f"<Results of {self.run}: {', '.join(f'{n} {status}' for status, n in counts.items()) or 'no trials'}>"

    @property
    def best(self) -> TrialResult:
        """`get_best()` by the experiment's own metric and mode. Raises NoBest."""
        return self.get_best()

    @property
    def failed(self) -> list[TrialResult]:
        """The trials that failed."""
        return [trial for trial in self._trials if trial.status == "failed"]

    def get_best(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "best",
        include_failed: bool = False,
    ) -> TrialResult:
        """The trial with the best finite value of `metric`, its `metrics` and `checkpoint` being those of that report.

        `scope`: "best" compares every report, "last" the last report of each trial. Trials that failed or were
        cancelled take part only with `include_failed`. Equal values go to the lowest number, and within a trial to
        the earliest report. Raises NoBest.
        """
        metric, mode = self._criterion(metric, mode, scope)
        candidates = [trial for trial in self._trials if include_failed or trial.status not in NOT_CANDIDATES]
        top: tuple[float, TrialResult, BestReport] | None = None
        for trial in sorted(candidates, key=lambda each: (each.step, each.index)):
            report = self._report(trial, metric, mode, scope)
            if report is not None and (top is None or is_better(report.value, top[0], mode)):
                top = report.value, trial, report
        if top is None:
            raise NoBest(f"no trial has a finite {metric}", cure=self._names_known(metric, candidates))
        return _with_report(top[1], top[2], is_own=(metric, mode, scope) == (self.metric, self.mode, "best"))

    def rows(self, trial: TrialResult | int) -> list[dict[str, Any]]:
        """The rows of one trial, given itself or its number."""
        if isinstance(trial, TrialResult):
            return trial.rows()
        return next(each for each in self._trials if each.index == trial).rows()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per trial: the columns of `results --csv`. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise FlowctlError("to_pandas needs pandas", cure="pip install pandas") from error
        from flowctl.workers.runs.result_table import columns_and_rows

        columns, rows = columns_and_rows(self)
        return pandas.DataFrame(rows, columns=columns)

    def _criterion(self, metric: str | None, mode: str | None, scope: str) -> tuple[str, str]:
        if scope not in SCOPES:
            raise DeclarationError(f"unknown scope {scope!r}", cure="use 'best' or 'last'")
        metric = metric or self.metric
        if metric is None:
            raise DeclarationError(f"{self.run} declares no metric", cure="name one: --metric NAME --mode max|min")
        if mode is None:
            mode = self.mode if metric == self.metric else None
        if mode not in ("max", "min"):
            raise DeclarationError(f"mode of {metric!r} is missing", cure="say it: --mode max or --mode min")
        return metric, mode

    def _report(self, trial: TrialResult, metric: str, mode: str, scope: str) -> BestReport | None:
        if scope == "last":
            value = finite(lookup(trial.metrics, metric))
            return BestReport(value, trial.iteration, trial.metrics) if value is not None else None
        if (metric, mode) == (self.metric, self.mode) and trial.best_report is not None:
            return trial.best_report
        if (metric, mode) == (self.metric, self.mode) or not trial.reports:
            return None
        return best_row(trial.rows(), metric, mode)

    def _names_known(self, metric: str, candidates: Sequence[TrialResult]) -> str | None:
        names = sorted({name for trial in candidates for name in trial.metrics})
        if not names or metric in names:
            return None
        near = nearest(metric, names)
        meant = f"; did you mean {near!r}?" if near is not None else ""
        return f"they reported {', '.join(names[:8])}{meant}"


def is_better(value: float, than: float, mode: str) -> bool:
    return value > than if mode == "max" else value < than


def finite(value: Any) -> float | None:
    """A value that can win: a finite number, and not a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float is finite all the same
        return value


def lookup(metrics: Mapping[str, Any], name: str) -> Any:
    """A metric by name; `a/b` also finds b inside a."""
    if name in metrics:
        return metrics[name]
    head, slash, rest = name.partition("/")
    inner = metrics.get(head)
    return lookup(inner, rest) if slash and isinstance(inner, Mapping) else None


def best_row(rows: Sequence[Mapping[str, Any]], metric: str, mode: str) -> BestReport | None:
    """The best of flat rows by a metric; the earliest of equal ones."""
    top: BestReport | None = None
    for row in rows:
        value = finite(lookup(row, metric))
        if value is not None and (top is None or is_better(value, top.value, mode)):
            metrics = {key: each for key, each in row.items() if key not in AUTOMATIC}
            top = BestReport(value, int(row["training_iteration"]), metrics)
    return top


def _with_report(trial: TrialResult, report: BestReport, *, is_own: bool) -> TrialResult:
    """The trial with the metrics and the checkpoint of one of its reports; the latest checkpoint if that had none."""
    own = trial.best_checkpoint if is_own else None
    if (
        own is None
        and trial.source is not None
        and report.iteration is not None
        and trial.latest_checkpoint is not None
    ):
        latest = trial.latest_checkpoint
        is_latest = latest.iteration == report.iteration
        own = latest if is_latest else trial.source.checkpoint_at(trial, report.iteration)
    return replace(
        trial,
        metrics=report.metrics,
        iteration=report.iteration if report.iteration is not None else trial.iteration,
        best_report=report,
        best_checkpoint=own,
        checkpoint_of="best" if own is not None else trial.checkpoint_of,
    )
