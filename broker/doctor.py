"""What can be said of a server's health, as values: each check has a name, a verdict, what was seen, and the cure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import (
    ServerFacts,
    check_memory,
    check_mode,
    check_policy,
    check_role,
    check_schema,
    check_version,
    check_writable,
    connect,
    read_facts,
    translated,
)
from flowctl.broker.reason import out_of_service, restore_cure
from flowctl.broker.unit_names import UnitNames
from flowctl.broker.view import load_runs, now_ms
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.errors import FlowctlError

Verdict = Literal["ok", "warn", "fail"]
CLOCK_TOLERANCE_S = 5.0
"""Leases use the server's clock alone; a larger difference only makes shown times confusing."""

FULL_SHARE = 0.8


@dataclass(frozen=True)
class Check:
    """One line of `flowctl doctor`. `warn`: it works, but a person should know."""

    name: str
    verdict: Verdict
    detail: str
    cure: str = ""

    @classmethod
    def failed(cls, name: str, error: FlowctlError) -> Check:
        """The check that an error stands for."""
        detail = f"{error.place}: {error.what}" if error.place else error.what
        return cls(name, "fail", detail, error.cure or "")


@dataclass(frozen=True)
class Activity:
    """Who would notice if the server stopped now: names of workers that are up, ids of runs that have not ended."""

    workers: tuple[str, ...]
    runs: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.workers or self.runs)

    def __str__(self) -> str:
        parts = [_counted(self.workers, "worker") + " up", _counted(self.runs, "run") + " active"]
        return ", ".join(parts)


def read_activity(client: Any, *, url: BrokerURL) -> Activity:
    """Who uses the server now."""
    with translated(url):
        at_ms = now_ms(client)
        workers = tuple(worker.worker for worker in load_workers(client) if worker.has_contact(at_ms))
        runs = tuple(run.run for run in load_runs(client) if not run.ended)
    return Activity(workers=workers, runs=runs)


def server_checks(url: BrokerURL) -> list[Check]:
    """All checks of one server; after a failure to connect there is only that one."""
    try:
        client = connect(url)
    except FlowctlError as error:
        return [Check.failed("server", error)]
    try:
        with translated(url):
            facts = read_facts(client)
        return [Check("server", "ok", f"{url.safe()} answers"), *_judged(client, facts, url)]
    except FlowctlError as error:
        return [Check.failed("server", error)]
    finally:
        client.close()


def _judged(client: Any, facts: ServerFacts, url: BrokerURL) -> list[Check]:
    place = url.safe()
    checks = [
        _tried("server version", f"{facts.product} {facts.version}", lambda: check_version(facts, place)),
        _tried("server mode", facts.mode, lambda: check_mode(facts, place)),
        _tried("server role", facts.role, lambda: check_role(facts, place)),
        _tried("server memory policy", facts.policy, lambda: check_policy(facts, place)),
        _memory(facts, place),
        _persistence(facts),
        _tried("server rights", "scripts run and may write", lambda: check_writable(client, url)),
        _tried("server schema", "fits this flowctl", lambda: check_schema(client, url)),
        _clock(client, url),
    ]
    if all(check.verdict != "fail" for check in checks):
        checks.append(_workers(client, url))
    return checks


def _tried(name: str, detail: str, check: Callable[[], None]) -> Check:
    try:
        check()
    except FlowctlError as error:
        return Check.failed(name, error)
    return Check(name, "ok", detail)


def _memory(facts: ServerFacts, place: str) -> Check:
    used = f"{facts.used_memory / 2**20:.1f} MiB used"
    detail = f"{used} of {facts.max_memory / 2**20:.0f} MiB" if facts.max_memory else f"{used}, no bound set"
    check = _tried("server memory", detail, lambda: check_memory(facts, place))
    if check.verdict == "ok" and facts.max_memory and facts.used_memory > FULL_SHARE * facts.max_memory:
        return Check("server memory", "warn", detail, "raise its maxmemory, or remove finished runs")
    return check


def _persistence(facts: ServerFacts) -> Check:
    if facts.is_durable:
        return Check("server persistence", "ok", "append-only file")
    cure = "set appendonly yes and appendfsync everysec on the server"
    return Check("server persistence", "warn", "a restart of the server forgets all that happens now", cure)


def _clock(client: Any, url: BrokerURL) -> Check:
    before = time.time()
    with translated(url):
        seconds, microseconds = client.time()
    after = time.time()
    off_s = abs(int(seconds) + int(microseconds) / 1e6 - (before + after) / 2)
    detail = f"{off_s:.3f} s apart from the server's"
    if off_s > CLOCK_TOLERANCE_S:
        return Check(
            "clock", "warn", detail, "let both machines keep time by NTP; flowctl itself uses the server's clock"
        )
    return Check("clock", "ok", detail)


def _workers(client: Any, url: BrokerURL) -> Check:
    activity = read_activity(client, url=url)
    with translated(url):
        at_ms, label_of = now_ms(client), UnitNames(client).label
        out = [each for each in load_workers(client) if each.is_quarantined]
        told = [out_of_service(each, at_ms=at_ms, label_of=label_of) for each in out]
    if told:
        return Check("workers", "warn", "; ".join([str(activity), *told]), "; ".join(map(restore_cure, out)))
    if activity.workers:
        return Check("workers", "ok", str(activity))
    return Check("workers", "warn", str(activity), "start one with `flowctl worker`; `flowctl run` brings its own")


def _counted(names: tuple[str, ...], noun: str, *, shown: int = 5) -> str:
    plural = "" if len(names) == 1 else "s"
    listed = ", ".join(names[:shown]) + (", …" if len(names) > shown else "")
    return f"{len(names)} {noun}{plural}" + (f" ({listed})" if names else "")
