"""One typed method per script: what goes in, what comes back as values. No decisions here, and no retries: a silent
server is NoContact.

Every script names in its header what makes a repeat harmless, so that a caller who lost a reply asks again with the
same arguments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from types import MappingProxyType
from typing import Any, NewType

from flowctl.broker import scripts
from flowctl.broker.contact import contact

NOTHING: Mapping[Any, Any] = MappingProxyType({})
Unit = NewType("Unit", str)
"""`run:step:index`."""


@dataclass(frozen=True)
class Reply:
    """First word of a script's answer and what follows it."""

    word: str
    rest: tuple[str, ...] = ()

    @property
    def value(self) -> dict[str, Any]:
        """The answer's JSON object."""
        loaded: dict[str, Any] = json.loads(self.rest[0])
        return loaded


@dataclass(frozen=True)
class Fence:
    """The right to speak for a unit: epoch (raised at each placement) and nonce (drawn by the guardian)."""

    unit: str
    epoch: int
    nonce: str


@dataclass(frozen=True)
class HostFence:
    """The right to speak for a host: the attempt that asked for it, its bundle, its number there, and its nonce."""

    unit: str
    epoch: int
    bundle: int
    number: int
    nonce: str


@dataclass(frozen=True)
class Times:
    """Durations in milliseconds that scripts need."""

    lease_ms: int = 15_000
    dispatch_ms: int = 15_000
    boot_gone_ms: int = 150_000
    reserve_ms: int = 60_000


@cache
def _no_script() -> Any:
    from redis.exceptions import NoScriptError

    return NoScriptError


class Calls:
    """The scripts of one server."""

    def __init__(self, client: Any, *, times: Times) -> None:
        self.client = client
        self.times = times
        self._digests: dict[str, str] = {}

    def _run(self, name: str, *args: Any) -> Reply:
        digest = self._digests.get(name)
        if digest is None:
            digest = self._digests[name] = sha1(scripts.text(name).encode()).hexdigest()
        with contact():
            try:
                answer = self.client.evalsha(digest, 0, *args)
            except _no_script():  # asked for only when there is an error: the way of every report
                answer = self.client.eval(scripts.text(name), 0, *args)
        return Reply(str(answer[0]), tuple(str(part) for part in answer[1:]))

    # --- store and runs ---

    def store_open(self, *, schema: str, store_id: str) -> Reply:
        return self._run("store_open", schema, store_id)

    def run_reserve(self, run: str, *, token: str, ttl_ms: int = 60_000) -> Reply:
        return self._run("run_reserve", run, token, ttl_ms)

    def run_unreserve(self, run: str, *, token: str) -> Reply:
        return self._run("run_unreserve", run, token)

    def run_create(
        self,
        run: str,
        *,
        token: str,
        fields: Mapping[str, str],
        steps: Sequence[Mapping[str, Any]],
        expand_ms: int = 10_000,
    ) -> Reply:
        return self._run("run_create", run, token, json.dumps(fields), json.dumps(steps), expand_ms)

    def trials_add(
        self,
        run: str,
        step: str,
        *,
        first: int,
        groups: Sequence[tuple[str, int]],
        failed: Mapping[int, Mapping[str, Any]] = NOTHING,
        shapes: Mapping[str, str] = NOTHING,
        expand_ms: int = 10_000,
        limit: int = 50,
    ) -> Reply:
        """`groups`: the shapes of trials `first`, `first`+1, … as (shape, how many follow each other with it).

        A trial in `failed` has the shape "" and ends at once, with that cause. `shapes` holds id → JSON of those that
        the run was not created with.
        """
        return self._run(
            "trials_add",
            run,
            step,
            first,
            json.dumps(list(groups)),
            json.dumps({str(index): json.dumps(cause) for index, cause in failed.items()}),
            json.dumps(dict(shapes)),
            expand_ms,
            self.times.dispatch_ms,
            limit,
        )

    def expand_take(self, *, expand_ms: int = 10_000) -> Reply:
        return self._run("expand_take", expand_ms)

    def run_cancel(self, run: str, *, reason: str = "") -> Reply:
        return self._run("run_cancel", run, reason)

    def unit_cancel(self, unit: str) -> Reply:
        return self._run("unit_cancel", unit, self.times.dispatch_ms)

    # --- attempts ---

    def trial_claim(self, fence: Fence, *, boot: str) -> Reply:
        return self._run("trial_claim", fence.unit, fence.epoch, fence.nonce, boot, self.times.lease_ms)

    def trial_renew(self, fence: Fence, *, note: str = "") -> Reply:
        return self._run("trial_renew", fence.unit, fence.epoch, fence.nonce, self.times.lease_ms, note)

    def trial_report(
        self,
        fence: Fence,
        *,
        seq: int,
        row: str,
        last: str,
        iteration: int,
        value: float | None,
        checkpoint: Mapping[str, Any] | None,
    ) -> Reply:
        return self._run(
            "trial_report",
            fence.unit,
            fence.epoch,
            fence.nonce,
            seq,
            row,
            last,
            iteration,
            "" if value is None else repr(value),
            "" if checkpoint is None else json.dumps(checkpoint),
            self.times.lease_ms,
        )

    def tail_trim(self, fence: Fence, *, seq: int, limit: int = 5000) -> Reply:
        return self._run("tail_trim", fence.unit, fence.epoch, fence.nonce, seq, limit)

    def trial_finish(
        self,
        fence: Fence,
        *,
        to: str,
        reason: str,
        cause: Mapping[str, Any] | None,
        outcome: str,
        fails_up: int,
        delay_ms: int,
        last: str,
    ) -> Reply:
        return self._run(
            "trial_finish",
            fence.unit,
            fence.epoch,
            fence.nonce,
            to,
            reason,
            "" if cause is None else json.dumps(cause),
            outcome,
            fails_up,
            delay_ms,
            last,
            self.times.dispatch_ms,
        )

    def trial_handback(self, fence: Fence, *, reason: str, delay_ms: int = 0, counted: bool = False) -> Reply:
        return self._run("trial_handback", fence.unit, fence.epoch, fence.nonce, reason, delay_ms, int(counted))

    def trial_release(self, fence: Fence, *, boot: str, cause: str, text: str) -> Reply:
        return self._run(
            "trial_release", fence.unit, fence.epoch, fence.nonce, boot, cause, text, self.times.dispatch_ms
        )

    # --- hosts: code on the further bundles of a running attempt ---

    def host_start(self, fence: Fence, *, bundle: int, number: int, digest: str) -> Reply:
        return self._run(
            "host_start", fence.unit, fence.epoch, fence.nonce, bundle, number, digest, self.times.dispatch_ms
        )

    def host_stop(self, fence: Fence, *, bundle: int, number: int) -> Reply:
        return self._run("host_stop", fence.unit, fence.epoch, fence.nonce, bundle, number)

    def host_claim(self, host: HostFence, *, boot: str) -> Reply:
        return self._run(
            "host_claim", host.unit, host.epoch, host.bundle, host.number, host.nonce, boot, self.times.lease_ms
        )

    def host_renew(self, host: HostFence) -> Reply:
        return self._run("host_renew", host.unit, host.epoch, host.bundle, host.number, host.nonce, self.times.lease_ms)

    def host_end(self, host: HostFence, *, boot: str, state: str, result: Mapping[str, Any]) -> Reply:
        return self._run(
            "host_end",
            host.unit,
            host.epoch,
            host.bundle,
            host.number,
            host.nonce,
            boot,
            state,
            json.dumps(result),
            self.times.dispatch_ms,
        )

    # --- workers ---

    def worker_register(
        self,
        boot: str,
        *,
        fields: Mapping[str, str],
        detected: Mapping[str, int],
        declared: Mapping[str, int],
        running: Sequence[str],
        swept: bool,
    ) -> Reply:
        return self._run(
            "worker_register",
            boot,
            json.dumps(fields),
            json.dumps(detected),
            json.dumps(declared),
            json.dumps(list(running)),
            self.times.dispatch_ms,
            int(swept),
        )

    def worker_beat(self, boot: str, *, accepting: bool, running: Sequence[str], limit: int = 50) -> Reply:
        return self._run("worker_beat", boot, int(accepting), json.dumps(list(running)), self.times.dispatch_ms, limit)

    def worker_alive(self, boot: str, *, accepting: bool) -> Reply:
        return self._run("worker_alive", boot, int(accepting))

    def worker_drain(self, boot: str, *, reason: str) -> Reply:
        return self._run("worker_drain", boot, reason, self.times.dispatch_ms)

    def worker_leave(self, boot: str, *, text: str) -> Reply:
        return self._run("worker_leave", boot, text, self.times.dispatch_ms)

    def worker_restore(self, boot: str) -> Reply:
        return self._run("worker_restore", boot, self.times.dispatch_ms)

    # --- what may be changed while it runs ---

    def pool_set(self, pool: str, units: int | None) -> Reply:
        return self._run("pool_set", pool, "" if units is None else units, self.times.dispatch_ms)

    def run_set(self, run: str, *, step: str = "", name: str, value: float | None) -> Reply:
        return self._run("run_set", run, step, name, "" if value is None else value, self.times.dispatch_ms)

    # --- time and journal ---

    def tick_due(self) -> Reply:
        return self._run("tick_due")

    def tick(self, *, limit: int = 50) -> Reply:
        times = self.times
        return self._run("tick", times.lease_ms, times.dispatch_ms, times.boot_gone_ms, times.reserve_ms, limit)

    def journal_take(self, *, owner: str, lease_ms: int = 10_000, limit: int = 20) -> Reply:
        return self._run("journal_take", owner, lease_ms, limit)

    def journal_done(self, run: str, *, owner: str, number: int, last_id: str, keep_ms: int = 60_000) -> Reply:
        return self._run("journal_done", run, owner, number, last_id, keep_ms)
