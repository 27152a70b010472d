"""How people name units of any run; a run is read when one of its units is named for the first time."""

from __future__ import annotations

from typing import Any

from flowctl.broker.reason import as_path
from flowctl.broker.view import RunView, load_run
from flowctl.dsl.names import parse_unit


class UnitNames:
    """Names for one look; `known` are runs that were read before."""

    def __init__(self, client: Any, *known: RunView) -> None:
        self._client = client
        self._runs: dict[str, RunView | None] = {run.run: run for run in known}

    def label(self, unit: str) -> str:
        """RUN/7, RUN/step/7 or RUN/step; the whole path for a run that is gone."""
        run, step, index = parse_unit(unit)
        if run not in self._runs:
            self._runs[run] = load_run(self._client, run)
        found = self._runs[run]
        return found.label(step, index) if found is not None else as_path(unit)
