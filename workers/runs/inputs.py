"""Resolving what a step's arguments refer to: outputs of stages, and the best or all results of experiments.

The answer holds JSON only; a checkpoint is a mark that the consuming attempt's guardian fetches on first use.
"""

import json
from typing import Any

from flowctl.broker.store import Broker
from flowctl.dsl.errors import RefusedError
from flowctl.dsl.names import unit_id
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.trial_reader import TrialReader


class NoInput(RefusedError):
    """What a step takes does not exist and never will: its source has ended without it."""


def resolve(value: Any, *, broker: Broker, run: str, run_folder: RunFolder) -> Any:
    """`value` with each `{"$output": step, "path": […]}` replaced. Raises RefusedError if the output is not there,
    and NoInput if it never will be.
    """
    if isinstance(value, dict):
        if "$output" in value:
            return _output(str(value["$output"]), list(value["path"]), broker=broker, run=run, run_folder=run_folder)
        return {key: resolve(item, broker=broker, run=run, run_folder=run_folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, broker=broker, run=run, run_folder=run_folder) for item in value]
    return value


def checkpoint_mark(step: str, index: int, ref: dict[str, Any]) -> dict[str, Any]:
    """How a checkpoint of another unit travels as an input."""
    return {"$checkpoint": {"step": step, "index": index, "manifest": ref}}


def _output(step: str, path: list[str], *, broker: Broker, run: str, run_folder: RunFolder) -> Any:
    if not path:
        outcome = TrialReader(run_folder, step, 0).final_outcome()
        if outcome is None or outcome.status != "completed":
            raise RefusedError(f"step '{step}' has no output on storage", cure="see its logs")
        output = outcome.output
        if isinstance(output, dict) and set(output) == {"$manifest"}:
            return checkpoint_mark(step, 0, output["$manifest"])
        from flowctl.dsl.jsonvalue import encode

        return encode(output, f"the output of {step}")
    if path[0] == "results":
        return _results(step, broker=broker, run=run, run_folder=run_folder)
    best = _best(step, broker=broker, run=run, run_folder=run_folder)
    for part in path[1:]:
        best = best[part]
    return best


def _best(step: str, *, broker: Broker, run: str, run_folder: RunFolder) -> dict[str, Any]:
    record = broker.client.hmget(f"fc:step:{run}:{step}", "metric", "mode")
    rank = f"fc:rank:{run}:{step}"
    head = broker.client.zrange(rank, 0, 0, desc=record[1] == "max", withscores=True)
    if not head:
        metric = record[0] or ""
        raise NoInput(
            f"step '{step}' has no best trial: no completed trial has a finite '{metric}'",
            cure="give the experiment a metric and a mode",
        )
    score = head[0][1]
    ties = broker.client.zrangebyscore(rank, score, score)
    index = min(int(unit.rpartition(":")[2]) for unit in ties)
    fields = broker.client.hgetall(f"fc:unit:{unit_id(run, step, index)}")
    ref = fields.get("best_checkpoint") or fields.get("checkpoint") or ""
    return {
        "index": index,
        "config": run_folder.read_config(step, index),
        "metrics": json.loads(fields.get("best_metrics") or "{}"),
        "checkpoint": checkpoint_mark(step, index, json.loads(ref)) if ref else None,
    }


def _results(step: str, *, broker: Broker, run: str, run_folder: RunFolder) -> list[dict[str, Any]]:
    total = int(broker.client.hget(f"fc:step:{run}:{step}", "total") or 0)
    pipe = broker.client.pipeline(transaction=False)
    for index in range(total):
        pipe.hmget(f"fc:unit:{unit_id(run, step, index)}", "state", "last")
    return [
        {
            "index": index,
            "status": state,
            "config": run_folder.read_config(step, index),
            "metrics": json.loads(last or "{}"),
        }
        for index, (state, last) in enumerate(pipe.execute())
    ]
