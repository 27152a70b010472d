"""Reading the results of a run: one pass over the server's trials, configurations by shard, rows when asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowctl.broker.reasons import with_lacks
from flowctl.broker.view import RunView, StepView, UnitView, load_tails, load_units, now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.config import Config
from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.sample import configs as sampled
from flowctl.storage.errors import NotFound
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.trial_files import SHARD
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.results import (
    AUTOMATIC,
    BestReport,
    CheckpointInfo,
    Results,
    ResultSource,
    TrialResult,
)

if TYPE_CHECKING:
    from flowctl.storage.checkpoint import Checkpoint


class FolderSource(ResultSource):
    """Rows from the folder's segments and the server's tail; checkpoints from the folder."""

    def __init__(self, client: Any, folder: RunFolder) -> None:
        self._client = client
        self._folder = folder

    def rows(self, trial: TrialResult) -> list[dict[str, Any]]:
        tail = load_tails(self._client, [(trial.run, trial.step, trial.index)])[0]
        rows = self._reader(trial).rows(tail=tail)
        return [{**row["metrics"], **{key: row.get(key) for key in AUTOMATIC}} for row in rows]

    def output(self, trial: TrialResult) -> Any:
        outcome = self._reader(trial).final_outcome()
        value = outcome.output if outcome is not None else None
        if isinstance(value, dict) and set(value) == {"$manifest"}:
            info = CheckpointInfo.of(value["$manifest"])
            return self.checkpoint(trial, info) if info is not None else None
        return value

    def checkpoint(self, trial: TrialResult, info: CheckpointInfo) -> Checkpoint:
        from flowctl.storage.checkpoint import Checkpoint

        def fetch() -> Path:
            folder = Path(tempfile.mkdtemp(prefix=f"flowctl-{trial.run}-{trial.index}-"))
            return self.save(trial, info, folder / "checkpoint")

        return Checkpoint(fetch=fetch)

    def save(self, trial: TrialResult, info: CheckpointInfo, folder: Path) -> Path:
        return self._reader(trial).restore(_ref(info), folder)

    def checkpoint_at(self, trial: TrialResult, iteration: int) -> CheckpointInfo | None:
        found = [each.ref for each in self._reader(trial).manifests() if each.ref.iteration == iteration]
        if not found:
            return None
        ref = max(found, key=lambda each: (each.epoch, each.seq))
        return CheckpointInfo(ref.epoch, ref.nonce, ref.seq, ref.iteration)

    def _reader(self, trial: TrialResult) -> TrialReader:
        return TrialReader(self._folder, trial.step, trial.index)


def load_results(client: Any, run: RunView, folder: RunFolder, *, step: str | None = None) -> Results:
    """The results of one step: the one named, else the only experiment, else the only step.

    Raises DeclarationError if the run has several experiments and none is named.
    """
    chosen = choose_step(run, step)
    units = load_units(client, chosen, range(chosen.total))
    if any(unit.cause is not None and unit.cause.kind == "infeasible" for unit in units):
        units = with_lacks(client, run, units, load_workers(client), at_ms=now_ms(client))
    configs = load_configs(folder, chosen)
    source = FolderSource(client, folder)
    is_stage = not chosen.is_experiment
    trials = [_trial(run, unit, config, source, is_stage=is_stage) for unit, config in zip(units, configs, strict=True)]
    return Results(trials, run=run.run, metric=chosen.metric, mode=chosen.mode)


def choose_step(run: RunView, step: str | None) -> StepView:
    """The step whose trials are meant."""
    names = [each.name for each in run.experiments] or [each.name for each in run.steps]
    if not names:
        raise DeclarationError(f"{run.run} has no steps", cure="its submission was cut short; submit it again")
    if step is None and len(names) != 1:
        raise DeclarationError(
            f"{run.run} has several experiments: {', '.join(names)}", cure=f"name one: {run.run}/{names[0]}"
        )
    found = run.step(step or names[0])
    if found is None:
        steps = ", ".join(each.name for each in run.steps)
        raise DeclarationError(f"{run.run} has no step '{step}'", cure=f"it has {steps}")
    return found


def load_configs(folder: RunFolder, step: StepView) -> list[Config]:
    """The configurations of all trials, in order; those whose records are not written yet from the plan."""
    if not step.is_experiment:
        return [Config() for _ in range(step.total)]
    configs: list[Config] = []
    for shard in range(-(-step.total // SHARD)):
        try:
            configs += [Config(each) for each in folder.read_shard(step.name, shard)]
        except NotFound:
            declared = folder.load_plan().step(step.name)
            configs += [Config(each) for each in sampled(declared, shard * SHARD, (shard + 1) * SHARD)]
    return configs


def verified_checkpoints(folder: RunFolder, trials: Sequence[TrialResult]) -> dict[int, bool]:
    """Per trial with a checkpoint, whether its manifest is signed, unchanged, and all its files are there in full."""
    found: dict[int, bool] = {}
    for trial in trials:
        if trial.latest_checkpoint is not None:
            newest = TrialReader(folder, trial.step, trial.index).chain()
            found[trial.index] = newest == _ref(trial.latest_checkpoint)
    return found


def _trial(run: RunView, unit: UnitView, config: Config, source: ResultSource, *, is_stage: bool) -> TrialResult:
    best = BestReport(unit.best, unit.best_iteration, unit.best_metrics) if unit.best is not None else None
    latest = CheckpointInfo.of(unit.checkpoint)
    return TrialResult(
        run=run.run,
        step=unit.step,
        index=unit.index,
        label=run.label(unit.step, unit.index),
        status=unit.state,
        reason=unit.reason,
        cause=unit.cause,
        attempts=unit.attempts,
        worker=unit.worker,
        started_ms=unit.first_started_ms or unit.started_ms,
        ended_ms=unit.ended_ms,
        iteration=unit.iteration,
        reports=unit.rows,
        config=config,
        metrics=unit.last,
        best_report=best,
        best_checkpoint=CheckpointInfo.of(unit.best_checkpoint),
        latest_checkpoint=latest,
        checkpoint_of="latest" if latest is not None else None,
        is_stage=is_stage,
        source=source,
    )


def _ref(info: CheckpointInfo) -> ManifestRef:
    return ManifestRef(epoch=info.epoch, nonce=info.nonce, seq=info.seq, iteration=info.iteration)
