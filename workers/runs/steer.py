"""What a person orders from outside: cancel. Idempotent, at any moment; with no worker up, the server still knows
what is wanted.
"""

from dataclasses import dataclass

from flowctl.broker.calls import Reply
from flowctl.broker.store import Broker
from flowctl.dsl.errors import RefusedError


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
