"""Making a step's trials, a thousand at a time: first their records on storage, then in the server. Any process may
go on with it.

The configurations are a pure function of the plan and the index, so that two who do the same chunk write the same.
"""

import hashlib
import json
from typing import Any

from flowctl.broker.store import Broker
from flowctl.dsl.plan import EXPERIMENT, Step
from flowctl.dsl.sample import config_at
from flowctl.storage.run_folder import RunFolder

CHUNK = 1000


def shape_of(step: Step, *, python: str, key_id: str) -> tuple[str, str]:
    """What a unit of this step needs of a worker: id and canonical JSON."""
    shape: dict[str, Any] = {"need": dict(step.resources), "python": python, "key": key_id}
    text = json.dumps(shape, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16], text


def expand_chunk(broker: Broker, folder: RunFolder, step: Step, *, first: int, key_id: str, python: str) -> int:
    """Makes the trials from `first` to the end of its chunk; returns how many the step has then. Repeating it is
    harmless.
    """
    start = first - first % CHUNK
    count = min(CHUNK, step.total - start)
    if step.kind == EXPERIMENT:
        folder.write_shard(step.name, start // CHUNK, [config_at(step, index) for index in range(start, start + count)])
    shape, _ = shape_of(step, python=python, key_id=key_id)
    reply = broker.calls.trials_add(folder.run, step.name, first=start, n=count, shape=shape)
    if reply.word == "GAP":  # the server has forgotten some since: go on from there
        return int(reply.rest[0])
    if reply.word != "OK":
        return step.total
    return max(int(reply.rest[0]), start + count)
