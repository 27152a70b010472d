"""Configurations of trials, read from the run's folder when they are first wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowctl.broker.settings import Settings
from flowctl.dsl.errors import FlowctlError
from flowctl.dsl.sample import config_at
from flowctl.storage.errors import NotFound
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.trial_reader import TrialReader
from flowctl.workers.runs.folder import open_folder


class ConfigReader:
    """The configurations of one run. Trials whose records are not written yet are sampled from the plan: the same."""

    def __init__(self, location: str, run: str, settings: Settings) -> None:
        self._location = location
        self._run = run
        self._settings = settings
        self._folder: RunFolder | None = None
        self.problem: FlowctlError | None = None
        """Why `of_quietly` returned nothing, if it did."""

    @property
    def folder(self) -> RunFolder:
        """The run's folder. Raises errors of storage."""
        if self._folder is None:
            self._folder = open_folder(self._location, self._run, self._settings)
        return self._folder

    def of(self, step: str, index: int) -> Mapping[str, Any]:
        """The configuration of one trial; empty for a stage. Raises errors of storage."""
        try:
            return self.folder.read_config(step, index)
        except NotFound:
            declared = self.folder.load_plan().step(step)
            return config_at(declared, index) if declared.space is not None else {}

    def output(self, step: str, index: int = 0) -> Any:
        """What a stage returned, as JSON: None before it completed, or if it cannot be read."""
        try:
            outcome = TrialReader(self.folder, step, index).final_outcome()
        except FlowctlError as error:
            self.problem = error
            return None
        return outcome.output if outcome is not None else None

    def began(self, step: str, index: int) -> dict[int, int | None]:
        """Per attempt's epoch the iteration of the checkpoint it went on from, None for the start; nothing if it
        cannot be read.
        """
        try:
            claims = TrialReader(self.folder, step, index).claims()
        except FlowctlError as error:
            self.problem = error
            return {}
        return {claim.fence.epoch: claim.base.iteration if claim.base is not None else None for claim in claims}

    def of_quietly(self, step: str, index: int) -> Mapping[str, Any]:
        """The configuration, or nothing if it cannot be read; for views that have more to show than this."""
        if self.problem is not None:
            return {}
        try:
            return self.of(step, index)
        except FlowctlError as error:
            self.problem = error
            return {}
