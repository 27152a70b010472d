"""Making a step's trials, a thousand at a time: first their records on storage, then in the server. Any process may
go on with it.

The configurations are a pure function of the plan and the index, so that two who do the same chunk write the same.
Where each trial's request is a function of its configuration, the submitting process has computed and recorded both.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from flowctl.broker.store import Broker
from flowctl.dsl.plan import EXPERIMENT, Step
from flowctl.dsl.resources import Request
from flowctl.dsl.sample import sampler
from flowctl.storage.errors import DamagedRecord
from flowctl.storage.run_folder import RunFolder

CHUNK = 1000


def shape_of(request: Request, *, python: str, key_id: str) -> tuple[str, str]:
    """What a unit with this request needs of workers: id and canonical JSON."""
    shape: dict[str, Any] = {**request.to_json(), "python": python, "key": key_id}
    text = json.dumps(shape, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16], text


class Expansion:
    """The making of one step's trials from `expanded` on, in pieces that are as small as the caller wants."""

    def __init__(self, folder: RunFolder, step: Step, *, expanded: int, key_id: str, python: str) -> None:
        self.step = step
        self.expanded = expanded
        self._folder = folder
        self._python, self._key_id = python, key_id
        self._configs: list[dict[str, Any]] = []

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to make: all trials are there, or nobody wants the rest."""
        return self.expanded >= self.step.total

    def go_on(self, broker: Broker, *, seconds: float | None = None) -> None:
        """Makes one chunk, or part of it: sampling ends after `seconds`, and the next call goes on from there."""
        start = self.expanded - self.expanded % CHUNK
        count = min(CHUNK, self.step.total - start)
        if self.step.request is None:
            chunk = self._recorded(start // CHUNK, count)
        else:
            if self.step.kind == EXPERIMENT and not self._record(start, count, seconds=seconds):
                return
            shape, _ = self._shape(self.step.request)
            chunk = {"groups": [(shape, count)]}
        reply = broker.calls.trials_add(self._folder.run, self.step.name, first=start, **chunk)
        if reply.word == "GAP":  # the server has forgotten some since: go on from there
            self.expanded = int(reply.rest[0])
        elif reply.word == "OK":
            self.expanded = max(int(reply.rest[0]), start + count)
        else:
            self.expanded = self.step.total

    def _record(self, start: int, count: int, *, seconds: float | None) -> bool:
        """Samples a chunk and writes it to storage; False if the time was over before."""
        source = sampler(self.step)
        until = None if seconds is None else time.monotonic() + seconds
        while len(self._configs) < count:
            if until is not None and time.monotonic() >= until:
                return False
            self._configs.append(source.config_at(start + len(self._configs)))
        self._folder.write_shard(self.step.name, start // CHUNK, self._configs)
        self._configs = []
        return True

    def _recorded(self, shard: int, count: int) -> dict[str, Any]:
        """Groups, failures and shapes of a chunk, as its record on storage says."""
        asks = self._folder.read_asks(self.step.name, shard)
        if len(asks) != count:
            what = f"the requests of {self.step.name} are not all recorded"
            raise DamagedRecord(what, place=self._folder.folder.url, cure="submit again")
        shapes: dict[str, str] = {}
        failed: dict[int, Any] = {}
        of: list[str] = []
        for index, ask in enumerate(asks, start=shard * CHUNK):
            if "failed" in ask:
                failed[index] = ask["failed"]
                of.append("")
            else:
                shape, text = self._shape(self._request(ask))
                shapes[shape] = text
                of.append(shape)
        groups = [(shape, len(list(same))) for shape, same in groupby(of)]
        return {"groups": groups, "failed": failed, "shapes": shapes}

    def _request(self, ask: Mapping[str, Any]) -> Request:
        try:
            return Request.from_json(ask["request"])
        except (KeyError, TypeError, ValueError) as error:
            what = f"a request of {self.step.name} is damaged: {error}"
            raise DamagedRecord(what, place=self._folder.folder.url, cure="submit again") from error

    def _shape(self, request: Request) -> tuple[str, str]:
        return shape_of(request, python=self._python, key_id=self._key_id)
