"""What a person orders from outside: cancel a run, change it, bring a worker back. Idempotent, at any moment; with no
worker up, the server still knows what is wanted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flowctl.broker.calls import Reply
from flowctl.broker.store import Broker
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.errors import RefusedError
from flowctl.dsl.names import did_you_mean


@dataclass(frozen=True)
class Steered:
    """What became of an order: `state` of the run or unit now; `is_over` if it had ended before."""

    target: str
    state: str
    is_over: bool


def cancel(broker: Broker, target: str, *, reason: str = "") -> Steered:
    """Cancels a run (its id) or a unit (`run:step:index`). `reason`: why, kept with the run; the first one stays.

    Raises RefusedError if there is none of that name.
    """
    is_unit = ":" in target
    reply: Reply = broker.calls.unit_cancel(target) if is_unit else broker.calls.run_cancel(target, reason=reason)
    if reply.word == "NOT_FOUND":
        raise RefusedError(f"there is no '{target}'", cure="see 'flowctl list'")
    return Steered(target=target, state=reply.rest[0], is_over=reply.word == "ENDED")


def change(broker: Broker, run: str, values: Mapping[str, float | None], *, step: str = "") -> None:
    """Changes `max_concurrent_trials` (None: no limit), `priority` or `weight` of a run, or of one of its steps.

    The values are checked before. Raises RefusedError if there is none of that name, or if it has ended.
    """
    for name, value in values.items():
        reply = broker.calls.run_set(run, step=step, name=name, value=value)
        target = f"{run}/{step}" if step else run
        if reply.word == "NOT_FOUND":
            raise RefusedError(f"there is no '{target}'", cure="see 'flowctl list'")
        if reply.word == "ENDED":
            what = "step" if step else "run"
            raise RefusedError(
                f"the {what} '{target}' has ended ({reply.rest[0]})", cure="nothing of it waits any more"
            )
        if reply.word != "OK":
            raise RefusedError(f"'{target}' has no {name}", cure="see 'flowctl set --help'")


def restore(broker: Broker, worker: str) -> str:
    """Brings a worker back that was taken out of service; returns the state that it was in.

    Raises RefusedError if there is none of that name, or if it drains.
    """
    found = {each.worker: each for each in load_workers(broker.client)}
    if worker not in found:
        cure = did_you_mean(worker, list(found), kind="workers") if found else "start one: flowctl worker"
        raise RefusedError(f"there is no worker '{worker}'", cure=cure)
    reply = broker.calls.worker_restore(found[worker].boot)
    if reply.word == "UNKNOWN":
        raise RefusedError(f"the worker '{worker}' is gone", cure="start it again: flowctl worker")
    if reply.word == "BAD_STATE":
        raise RefusedError(f"the worker '{worker}' is {reply.rest[0]}", cure="only quarantine is taken back")
    return found[worker].state
