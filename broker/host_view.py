"""What the server knows of the bundles of a running attempt, and of the code that it has on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from flowctl.broker.contact import contact


@dataclass(frozen=True)
class BundleView:
    """One bundle of a running attempt: its worker, None while it waits for another; `code` is the state of what the
    trial last started there (placed, running, completed, failed, cancelled, lost), None if nothing.
    """

    index: int
    worker: str | None
    code: str | None


def load_bundles(client: Any, unit: str) -> list[BundleView]:
    """Where the bundles of a unit that is placed or running are; empty for a request of one bundle."""
    boots = json.loads(cast(str | None, client.hget(f"fc:unit:{unit}", "gang")) or "[]")
    if len(boots) < 2:
        return []
    pipe = client.pipeline(transaction=False)
    for boot in boots:
        pipe.hget(f"fc:boot:{boot}", "worker")
    pipe.hget(f"fc:unit:{unit}", "epoch")
    pipe.hgetall(f"fc:hosts:{unit}")
    *workers, epoch, hosts = pipe.execute()
    states = {int(bundle): json.loads(text) for bundle, text in hosts.items()}
    codes = {bundle: host["state"] for bundle, host in states.items() if str(host["epoch"]) == epoch}
    return [BundleView(index, worker or None, codes.get(index)) for index, worker in enumerate(workers)]


def load_host(client: Any, unit: str, *, bundle: int, number: int) -> dict[str, Any] | None:
    """Its state (placed, running, completed, failed, cancelled, lost) and result; None if another one took its place or
    the attempt is over. Raises NoContact.
    """
    with contact():
        text = cast(str | None, client.hget(f"fc:hosts:{unit}", bundle))
    found = cast(dict[str, Any], json.loads(text)) if text else {}
    if found.get("n") != number:
        return None
    return {"state": found["state"], "text": found.get("text"), **json.loads(found.get("result") or "{}")}


def load_bundle(client: Any, unit: str, *, epoch: int, bundle: int) -> dict[str, Any] | None:
    """Where a bundle is now: worker, machine, devices of the worker (JSON), tokens; None while nobody knows what
    runs there, while it waits for another worker, and when the attempt is over. Raises NoContact.
    """
    with contact():
        boots = json.loads(cast(str | None, client.hget(f"fc:unit:{unit}", "gang")) or "[]")
        boot = boots[bundle] if bundle < len(boots) else ""
        row = cast(str | None, client.hget(f"fc:alloc:{boot}", f"{unit}@{epoch}" + (f"#{bundle}" if bundle else "")))
        if not boot or row is None or json.loads(row).get("x"):
            return None
        worker, machine, devices = client.hmget(f"fc:boot:{boot}", "worker", "machine", "devices")
    return {"worker": worker, "machine": machine, "devices": devices, "tokens": json.loads(row)["v"]}
