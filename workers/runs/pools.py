"""Cluster-wide pools of tokens: making one, resizing it, giving it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowctl.broker.store import Broker
from flowctl.broker.view import now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.errors import DeclarationError, RefusedError
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.resources import BUILT_IN, check_name, parse_offer


def parse_pool(text: str) -> tuple[str, int]:
    """The pool and its exact units from `license=3`; of a pool of zero nobody gets any. Raises DeclarationError."""
    name = text.partition("=")[0].strip()
    check_pool_name(name, place=text)
    if text.count(",") or "=" not in text:
        raise DeclarationError("is not NAME=AMOUNT", place=text, cure="write license=3")
    return name, parse_offer(text, place=f"pool {text}")[name]


def check_pool_name(name: str, *, place: str) -> str:
    """Raises DeclarationError for what no pool can be called."""
    check_name(name, place=place)
    if name in BUILT_IN:
        what = f"{name} is what workers offer, each its own; a pool is for the whole cluster"
        raise DeclarationError(what, place=place, cure="choose another name, such as license")
    return name


def set_pool(broker: Broker, name: str, units: int) -> int:
    """Makes the pool or resizes it; returns the units in use, which may be more than it now has: they drain.

    Raises RefusedError while live workers offer a token of that name: which of the two a request means is not told.
    """
    at_ms = now_ms(broker.client)
    offering = [each.worker for each in load_workers(broker.client) if each.has_contact(at_ms) and each.offer.get(name)]
    if offering:
        who = ", ".join(offering[:3]) + (" and others" if len(offering) > 3 else "")
        verb = "offers" if len(offering) == 1 else "offer"
        what = f"{who} {verb} {name}, so it cannot be a token of the whole cluster as well"
        raise RefusedError(what, place=f"pool {name}", cure="choose another name, or start workers without it")
    return int(broker.calls.pool_set(name, units).rest[0])


def shadowed_by(pools: Iterable[str], worker: str, offer: Mapping[str, int]) -> list[str]:
    """One line per token that a worker offers and that is a pool as well: the pool is meant."""
    return [
        f"worker {worker} offers {name}, which is a pool of the whole cluster: the pool is meant, the worker's {name} "
        f"does not count; give one up: flowctl pool remove {name}, or start the worker without it"
        for name in sorted(pools)
        if offer.get(name)
    ]


def remove_pool(broker: Broker, name: str) -> int:
    """Gives the pool up; returns the units still in use. Raises RefusedError if there is none of that name."""
    known = list(broker.client.hkeys("fc:pools"))
    if name not in known:
        cure = did_you_mean(name, known, kind="pools") if known else "make one: flowctl pool set license=3"
        raise RefusedError(f"there is no pool '{name}'", cure=cure)
    return int(broker.calls.pool_set(name, None).rest[0])
