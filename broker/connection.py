"""Connecting to a server, and judging whether it can carry flowctl.

The errors of redis-py are translated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.errors import (
    BrokerError,
    EvictingPolicy,
    NoPermission,
    OtherSchema,
    ReadOnlyServer,
    ServerFull,
    ServerLoading,
    ServerSilent,
    ServerTooOld,
    ServerUnreachable,
    ServerUnsuited,
    WrongPassword,
)

__all__ = ["SCHEMA", "BrokerURL", "ServerFacts", "check_server", "connect", "read_facts", "translated"]

SCHEMA = 1
"""Major number of the key layout. A server that holds another one is refused."""

SCHEMA_KEY = "fc:schema"
OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
WRITE_PROBE = "return redis.call('DEL', KEYS[1])"
PROBE_KEY = "fc:probe"


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself. Sizes in bytes; `max_memory` 0 means no bound; `time_ms` is its clock."""

    product: str
    version: str
    pid: int
    role: str
    mode: str
    policy: str
    is_loading: bool
    is_durable: bool
    used_memory: int
    max_memory: int
    started_ms: int
    time_ms: int

    @property
    def numbers(self) -> tuple[int, int]:
        """Major and minor version."""
        return version_numbers(self.version)


def version_numbers(version: str) -> tuple[int, int]:
    """Major and minor number of a version text; (0, 0) if it has none."""
    parts = [*version.split("."), "0", "0"][:2]
    digits = ["".join(c for c in part if c.isdigit()) for part in parts]
    return (int(digits[0] or 0), int(digits[1] or 0))


@contextmanager
def translated(url: BrokerURL) -> Iterator[None]:
    """Turns redis-py's errors into flowctl's, naming server, cause and cure; the original stays as `__cause__`."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError) as error:
        raise _translate(error, url) from error


def connect(url: BrokerURL | str, **options: Any) -> Any:
    """A connected `redis.Redis` (see `BrokerURL.redis_client`), after one PING. Raises BrokerError."""
    address = url if isinstance(url, BrokerURL) else BrokerURL.parse(url)
    client = None
    try:
        with translated(address):
            client = address.redis_client(**options)
            client.ping()
    except BrokerError:
        if client is not None:
            client.close()
        raise
    return client


def read_facts(client: Any) -> ServerFacts:
    """One INFO call; permitted also while the server loads its data."""
    info: Mapping[str, Any] = client.info()
    product = "valkey" if "valkey_version" in info else "redis"
    time_ms = int(info.get("server_time_usec", 0)) // 1000
    return ServerFacts(
        product=product,
        version=str(info.get("valkey_version", info.get("redis_version", "0.0"))),
        pid=int(info.get("process_id", 0)),
        role=str(info.get("role", "")),
        mode=str(info.get("redis_mode", info.get("server_mode", "standalone"))),
        policy=str(info.get("maxmemory_policy", "noeviction")),
        is_loading=bool(int(info.get("loading", 0))),
        is_durable=bool(int(info.get("aof_enabled", 0))),
        used_memory=int(info.get("used_memory", 0)),
        max_memory=int(info.get("maxmemory", 0)),
        started_ms=time_ms - 1000 * int(info.get("uptime_in_seconds", 0)),
        time_ms=time_ms,
    )


def check_server(client: Any, *, url: BrokerURL | None = None) -> ServerFacts:
    """Raises the first reason for which this server cannot carry flowctl; leaves no key behind.

    `url` is for the messages only; without it they name the address that the client has.
    """
    url = url or _address_of(client)
    with translated(url):
        facts = read_facts(client)
    for check in (check_version, check_mode, check_policy, check_role, check_memory):
        check(facts, url.safe())
    check_writable(client, url)
    check_schema(client, url)
    return facts


def check_writable(client: Any, url: BrokerURL) -> None:
    """Runs a script that deletes a key which is never there: needs the rights that flowctl needs, leaves no trace."""
    with translated(url):
        client.eval(WRITE_PROBE, 1, PROBE_KEY)


def check_schema(client: Any, url: BrokerURL) -> None:
    """Refuses data of another major format; a server without any is new."""
    with translated(url):
        schema = client.get(SCHEMA_KEY)
    if schema is None or str(schema).split(".")[0] == str(SCHEMA):
        return
    raise OtherSchema(
        f"the data on this server has schema {schema}, this flowctl knows schema {SCHEMA}",
        place=url.safe(),
        cure="use the flowctl version that wrote it, or another database number or server",
    )


def check_memory(facts: ServerFacts, place: str) -> None:
    """Refuses a server that has no room for another key."""
    if facts.max_memory and facts.used_memory >= facts.max_memory:
        raise ServerFull(
            f"the server's memory is full ({facts.used_memory} of {facts.max_memory} bytes)",
            place=place,
            cure="raise its maxmemory, or remove finished runs",
        )


def check_version(facts: ServerFacts, place: str) -> None:
    """Refuses a server whose scripts and streams lack what flowctl uses."""
    oldest = OLDEST[facts.product]
    if facts.numbers < oldest:
        raise ServerTooOld(
            f"the server is {facts.product} {facts.version}",
            place=place,
            cure="use redis 7.0 or newer, or valkey 7.2 or newer",
        )


def check_mode(facts: ServerFacts, place: str) -> None:
    """Refuses cluster mode: a script there sees one slot's keys only."""
    if facts.mode == "cluster":
        raise ServerUnsuited(
            "the server runs in cluster mode", place=place, cure="use a single server, or one watched by sentinel"
        )


def check_policy(facts: ServerFacts, place: str) -> None:
    """Refuses a server that may drop keys."""
    if facts.policy != "noeviction":
        raise EvictingPolicy(
            f"the server drops keys when memory is short (maxmemory-policy {facts.policy})",
            place=place,
            cure="set maxmemory-policy noeviction",
        )


def check_role(facts: ServerFacts, place: str) -> None:
    """Refuses a replica."""
    if facts.role in ("slave", "replica"):
        raise ReadOnlyServer("the server is a replica", place=place, cure="give the address of its primary")


def _address_of(client: Any) -> BrokerURL:
    known = client.connection_pool.connection_kwargs
    if "path" in known:
        return BrokerURL(kind="unix", path=known["path"], database=known.get("db") or 0)
    hosts = ((known.get("host", "localhost"), known.get("port", 6379)),)
    return BrokerURL(kind="redis", hosts=hosts, database=known.get("db") or 0)


def _translate(error: Exception, url: BrokerURL) -> BrokerError:
    """By class where redis-py has one (it then cuts the server's word off the text), else by the server's word."""
    place, text = url.safe(), str(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    word = text.split(" ", 1)[0]
    if "BusyLoadingError" in kinds or word == "LOADING":
        return ServerLoading("the server still reads its data from disk", place=place, cure="try again in a moment")
    if "AuthenticationError" in kinds or word in ("NOAUTH", "WRONGPASS"):
        what = "the server refuses the password" if url.password else "the server wants a password"
        return WrongPassword(
            what, place=place, cure="put user and password into FLOWCTL_BROKER_URL (//USER:PASSWORD@…)"
        )
    if "NoPermissionError" in kinds or word == "NOPERM":
        return NoPermission(
            f"the user lacks a permission: {text}", place=place, cure="allow it ~fc* ~_kombu* +@all -@dangerous +info"
        )
    if "ReadOnlyError" in kinds or word == "READONLY":
        return ReadOnlyServer("the server is a replica", place=place, cure="give the address of its primary")
    if "OutOfMemoryError" in kinds or word in ("OOM", "MISCONF", "NOREPLICAS"):
        return ServerFull(f"the server takes no writes: {text}", place=place, cure="free its memory or disk")
    if "DB index is out of range" in text:
        return ServerUnsuited(f"the server has no database {url.database}", place=place, cure="use a smaller number")
    if "TimeoutError" in kinds:
        return ServerSilent("the server does not answer in time", place=place, cure="see whether it is alive and near")
    if kinds & {"ConnectionError", "OSError"}:
        return ServerUnreachable(
            f"cannot reach the server ({_last_line(error)})",
            place=place,
            cure="start it (`flowctl up`), or correct FLOWCTL_BROKER_URL",
        )
    return BrokerError(f"the server answered: {_last_line(error)}", place=place)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")
