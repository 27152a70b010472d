"""Submitting a plan, in an order in which a crash at any point leaves either no run or one that goes on by itself.

Requests computed → name reserved → payload, plan and what was computed on storage → run.json (from here the run
exists) → the run in the server → its trials, chunk by chunk.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from flowctl.broker.settings import Settings, expand_join
from flowctl.broker.store import Broker
from flowctl.dsl.compile import Compiled
from flowctl.dsl.errors import FlowctlError, RefusedError
from flowctl.dsl.names import run_id
from flowctl.dsl.plan import Step
from flowctl.storage.location import Location
from flowctl.storage.payload import pickle_code
from flowctl.storage.run_folder import RunFolder, TrialShard
from flowctl.storage.signing import Keyring
from flowctl.workers.runs.expand import Expansion, shape_of
from flowctl.workers.runs.readable import readable_name
from flowctl.workers.runs.requests import Asks


def submit(
    compiled: Compiled,
    *,
    name: str | None,
    storage: str | None,
    settings: Settings,
    main_module: ModuleType | None,
    priority: int = 0,
    weight: float = 1.0,
) -> str:
    """Submits and returns the run's id. Whatever is wrong is an error before anything is written. Raises
    FlowctlError.

    `priority` is added to that of each step; `weight` is the run's share beside other runs.
    """
    plan = compiled.plan
    if name is not None:
        run_id(name)
    payload = pickle_code(dict(compiled.code), main_module)
    location = Location.open(settings.storage if storage is None else storage)
    location.require_shared()
    location.probe()
    broker = Broker.connect(settings)
    asked = [Asks(plan.step(name), asking) for name, asking in compiled.asking.items()]
    keyring = Keyring.from_env(expand_join(os.environ), settings.home, create=not settings.broker_url)
    token = secrets.token_hex(8)
    run, given = _reserve(broker, location, name=name, plan_name=plan.name, token=token)
    folder = RunFolder(location, run, keyring)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        folder.create(
            {
                "name": given,
                "token": token,
                "python": python,
                "flow": plan.flow,
                "created_ms": _server_ms(broker),
                "priority": priority,
                "weight": weight,
            },
            plan,
            payload,
            shards=_shards(broker, run, asked, token=token),
        )
    except FlowctlError:
        broker.calls.run_unreserve(run, token=token)
        raise
    fields = {
        "name": given,
        "location": location.url,
        "key_id": keyring.key_id,
        "python": python,
        "plan_digest": plan.digest,
        "flow": plan.flow or "",
        "priority": str(priority),
        "weight": repr(weight),
    }
    reply = broker.calls.run_create(
        run, token=token, fields=fields, steps=[_step(step, python, keyring.key_id) for step in plan.steps]
    )
    if reply.word != "OK":
        raise RefusedError(f"a run named '{given}' exists already", cure="choose another --name")
    for step in plan.steps:
        expansion = Expansion(folder, step, expanded=0, key_id=keyring.key_id, python=python)
        while not expansion.is_done:
            expansion.go_on(broker)
    return run


def _shards(broker: Broker, run: str, asked: Sequence[Asks], *, token: str) -> Iterator[TrialShard]:
    """What was computed per trial, a shard at a time; the name stays reserved however long the writing takes."""
    for asks in asked:
        for shard in asks.shards():
            if broker.calls.run_reserve(run, token=token).word != "OK":
                raise RefusedError(f"the name '{run}' was taken meanwhile", cure="choose another --name")
            yield shard


def _reserve(broker: Broker, location: Location, *, name: str | None, plan_name: str, token: str) -> tuple[str, str]:
    """(run id, the name as given). Without a name, names are made until one is free."""
    for attempt in range(100):
        given = name if name is not None else readable_name(plan_name, attempt)
        run = run_id(given)
        word = broker.calls.run_reserve(run, token=token).word
        if word == "OK" and not location.child(run).exists("run.json"):
            return run, given
        if word == "OK":
            broker.calls.run_unreserve(run, token=token)
        if name is not None:
            if word == "OK":
                what = f"a run named '{given}' exists already on {location.url}"
                raise RefusedError(what, cure="choose another --name")
            cure = f"choose another --name, or go on with: flowctl run --attach {run}"
            raise RefusedError(f"a run named '{given}' exists already", cure=cure)
    raise RefusedError("no free name was found", cure="give one with --name")


def _step(step: Step, python: str, key_id: str) -> dict[str, Any]:
    request = step.request
    shape, shape_json = ("", "") if request is None else shape_of(request, python=python, key_id=key_id)
    timeout_s = step.pending_timeout_s
    losses = step.policy.max_worker_losses
    return {
        "name": step.name,
        "kind": step.kind,
        "total": step.total,
        "after": list(step.after),
        "metric": step.metric or "",
        "mode": step.mode or "",
        "max_failures": step.policy.max_failures,
        "max_worker_losses": "none" if losses is None else losses,
        "shape": shape,
        "shape_json": shape_json,
        "max_concurrent": step.max_concurrent_trials or "",
        "on_bundle_loss": step.policy.on_bundle_loss,
        "priority": step.priority,
        "pending_timeout_ms": "" if timeout_s is None else max(1, round(timeout_s * 1000)),
    }


def _server_ms(broker: Broker) -> int:
    seconds, micros = broker.client.time()
    return int(seconds) * 1000 + int(micros) // 1000
