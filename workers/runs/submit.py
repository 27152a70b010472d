"""Submitting a plan, in an order in which a crash at any point leaves either no run or one that goes on by itself.

Name reserved → payload and plan on storage → run.json (from here the run exists) → the run in the server → its
trials, chunk by chunk.
"""

import os
import secrets
import sys
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
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring
from flowctl.workers.runs.expand import Expansion, shape_of
from flowctl.workers.runs.readable import readable_name


def submit(
    compiled: Compiled,
    *,
    name: str | None,
    storage: str | None,
    settings: Settings,
    main_module: ModuleType | None,
    only: str | None = None,
) -> str:
    """Submits and returns the run's id. Whatever is wrong is an error before anything is written. Raises
    FlowctlError.
    """
    plan = compiled.plan
    if name is not None:
        run_id(name)
    payload = pickle_code(dict(compiled.code), main_module)
    location = Location.open(settings.storage if storage is None else storage)
    location.require_shared()
    location.probe()
    broker = Broker.connect(settings)
    keyring = Keyring.from_env(expand_join(os.environ), settings.home, create=not settings.broker_url)
    token = secrets.token_hex(8)
    run, given = _reserve(broker, location, name=name, plan_name=plan.name, token=token)
    folder = RunFolder(location, run, keyring)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        folder.create(
            {"name": given, "token": token, "python": python, "flow": plan.flow, "created_ms": _server_ms(broker)},
            plan,
            payload,
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
    shape, shape_json = shape_of(step, python=python, key_id=key_id)
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
    }


def _server_ms(broker: Broker) -> int:
    seconds, micros = broker.client.time()
    return int(seconds) * 1000 + int(micros) // 1000
