"""Making a step's trials, a thousand at a time: first their records on storage, then in the server. Any process may
go on with it.

The configurations are a pure function of the plan and the index, so that two who do the same chunk write the same.
"""

import hashlib
import json
import time
from typing import Any

from flowctl.broker.store import Broker
from flowctl.dsl.plan import EXPERIMENT, Step
from flowctl.dsl.sample import sampler
from flowctl.storage.run_folder import RunFolder

CHUNK = 1000


def shape_of(step: Step, *, python: str, key_id: str) -> tuple[str, str]:
    """What a unit of this step needs of a worker: id and canonical JSON."""
    shape: dict[str, Any] = {"need": dict(step.resources), "python": python, "key": key_id}
    text = json.dumps(shape, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16], text


class Expansion:
    """The making of one step's trials from `expanded` on, in pieces that are as small as the caller wants."""

    def __init__(self, folder: RunFolder, step: Step, *, expanded: int, key_id: str, python: str) -> None:
        self.step = step
        self.expanded = expanded
        self._folder = folder
        self._shape, _ = shape_of(step, python=python, key_id=key_id)
        self._configs: list[dict[str, Any]] = []

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to make: all trials are there, or nobody wants the rest."""
        return self.expanded >= self.step.total

    def go_on(self, broker: Broker, *, seconds: float | None = None) -> None:
        """Makes one chunk, or part of it: sampling ends after `seconds`, and the next call goes on from there."""
        start = self.expanded - self.expanded % CHUNK
        count = min(CHUNK, self.step.total - start)
        if self.step.kind == EXPERIMENT:
            source = sampler(self.step)
            until = None if seconds is None else time.monotonic() + seconds
            while len(self._configs) < count:
                if until is not None and time.monotonic() >= until:
                    return
                self._configs.append(source.config_at(start + len(self._configs)))
            self._folder.write_shard(self.step.name, start // CHUNK, self._configs)
            self._configs = []
        reply = broker.calls.trials_add(self._folder.run, self.step.name, first=start, n=count, shape=self._shape)
        if reply.word == "GAP":  # the server has forgotten some since: go on from there
            self.expanded = int(reply.rest[0])
        elif reply.word == "OK":
            self.expanded = max(int(reply.rest[0]), start + count)
        else:
            self.expanded = self.step.total
