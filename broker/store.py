"""The broker as the rest of flowctl sees it: one server, its typed scripts, its store id."""

import secrets
from collections.abc import Sequence
from typing import Any

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.calls import Calls, Reply, Times
from flowctl.broker.connection import SCHEMA, check_server, connect
from flowctl.broker.embedded import ensure_server, revive_server, running_server
from flowctl.broker.errors import OtherSchema, ServerUnreachable
from flowctl.broker.settings import Settings
from flowctl.dsl.errors import FlowctlError


class Broker:
    """One connected server that passed every check. Use `Broker.connect`."""

    def __init__(self, client: Any, *, url: BrokerURL, times: Times) -> None:
        self.client = client
        self.url = url
        self.calls = Calls(client, times=times)
        self.store_id = ""

    @classmethod
    def connect(cls, settings: Settings, *, start: bool = True, is_alone: bool = False) -> "Broker":
        """Connects to FLOWCTL_BROKER_URL, else to this state folder's server (which `start` may start). Raises
        BrokerError. `is_alone`: one connection instead of a pool, a third cheaper per call; threads take turns.
        """
        url = server_url(settings, start=start)
        # A sentinel's client finds its master anew with each connection of its pool.
        client = connect(url, single_connection_client=True) if is_alone and url.kind != "sentinel" else connect(url)
        check_server(client)
        broker = cls(client, url=url, times=times_of(settings))
        opened = broker.calls.store_open(schema=str(SCHEMA), store_id=secrets.token_hex(8))
        if opened.rest[0] != str(SCHEMA):
            raise OtherSchema(
                f"the server {url.safe()} holds schema {opened.rest[0]}, this flowctl speaks schema {SCHEMA}"
            )
        broker.store_id = opened.rest[1]
        return broker

    def scope_of(self, worker: str) -> str | None:
        """Where the name of a worker is held now (machine and state folder, as a digest), or None if it is free."""
        boot = self.client.hget("fc:workers", worker)
        return None if boot is None else str(self.client.hget(f"fc:boot:{boot}", "scope") or "")

    def tick(self) -> Reply:
        """Lets time act: reaps, places. Workers and clients call it alike."""
        reply = self.calls.tick_due()
        return reply if reply.word == "IDLE" else self.calls.tick()

    def beat(self, boot: str, *, accepting: bool, running: Sequence[str]) -> Reply:
        """A worker's sign of life, with what physically runs there."""
        reply = self.calls.worker_alive(boot, accepting=accepting)
        return self.calls.worker_beat(boot, accepting=accepting, running=running) if reply.word == "MORE" else reply


def times_of(settings: Settings) -> Times:
    """The durations that scripts need, in ms. A boot that was not heard of for ten leases is gone (design:
    `boot_gone_s`).
    """
    return Times(
        lease_ms=int(settings.lease_ttl_s * 1000),
        dispatch_ms=int(settings.dispatch_timeout_s * 1000),
        boot_gone_ms=int(settings.lease_ttl_s * 10_000),
        reserve_ms=int(settings.reserve_after_s * 1000),
    )


def server_url(settings: Settings, *, start: bool) -> BrokerURL:
    """Where the server is: the configured one, else the embedded one."""
    if settings.broker_url:
        return BrokerURL.parse(str(settings.broker_url))
    if start:
        return ensure_server(settings.home)
    info = running_server(settings.home)
    if info is None:
        raise ServerUnreachable(
            "no server is running for this state folder", cure="start one with 'flowctl up', or any run"
        )
    return info.url


def revive(settings: Settings) -> FlowctlError | None:
    """Starts the embedded server again if it has died, and returns what stands against that, if anything does: above
    all that a person stopped it. Leaves a configured server alone.
    """
    if settings.broker_url:
        return None
    try:
        revive_server(settings.home)
    except FlowctlError as error:
        return error
    return None
