"""Each way in which a server cannot be used has an error of its own, with cause, cure and exit code."""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from server import bare_server, eventually

from flowctl.broker import errors
from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.connection import (
    ServerFacts,
    check_mode,
    check_server,
    check_version,
    connect,
    read_facts,
    translated,
)
from flowctl.dsl.errors import FlowctlError

SECRET = "s3cr3tword"


def refusal(url: BrokerURL) -> FlowctlError:
    """The error that connecting to, or checking, this server ends with."""
    with pytest.raises(FlowctlError) as caught:
        check_server(connect(url), url=url)
    return caught.value


def facts(**changes: Any) -> ServerFacts:
    known: dict[str, Any] = {"product": "valkey", "version": "9.1.2", "pid": 1, "role": "master", "mode": "standalone"}
    sizes = {"used_memory": 1, "max_memory": 0, "started_ms": 0, "time_ms": 0}
    return ServerFacts(**{**known, **sizes, "policy": "noeviction", "is_loading": False, "is_durable": True, **changes})


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound, so that nobody else takes it, but on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def test_unreachable_port(closed_port: int) -> None:
    error = refusal(BrokerURL.parse(f"redis://:{SECRET}@127.0.0.1:{closed_port}"))

    assert isinstance(error, errors.ServerUnreachable)
    assert error.exit_code == 4
    assert str(closed_port) in str(error) and "flowctl up" in str(error)
    assert SECRET not in str(error)


def test_unreachable_socket_and_unknown_host() -> None:
    assert isinstance(refusal(BrokerURL.parse("unix:///nowhere/s.sock")), errors.ServerUnreachable)
    assert isinstance(refusal(BrokerURL.parse("redis://no-such-host.invalid")), errors.ServerUnreachable)


def test_unreachable_sentinels_and_unknown_master(closed_port: int) -> None:
    error = refusal(BrokerURL.parse(f"sentinel://127.0.0.1:{closed_port}/0?master=m"))

    assert isinstance(error, errors.ServerUnreachable)


def test_silent_server() -> None:
    with bare_server() as server:
        client = server.url.redis_client(socket_timeout=0.3)
        os.kill(server.pid, signal.SIGSTOP)

        with pytest.raises(errors.ServerSilent, match="in time"), translated(server.url):
            client.ping()


def test_wrong_and_missing_password() -> None:
    with bare_server(f"requirepass {SECRET}", password="wrong") as server:
        wrong = refusal(server.url)
        missing = refusal(BrokerURL(kind="unix", path=server.url.path))

    assert isinstance(wrong, errors.WrongPassword) and "refuses the password" in str(wrong)
    assert isinstance(missing, errors.WrongPassword) and "wants a password" in str(missing)
    assert wrong.exit_code == missing.exit_code == 4


@pytest.mark.parametrize(
    ("rights", "is_enough"),
    [
        ("~fc* +ping", False),
        ("~other* +@all", False),
        ("~fc* +@read +ping +info", False),
        ("~fc* ~_kombu* +@all -@dangerous +info", True),
    ],
)
def test_rights_of_the_user(rights: str, is_enough: bool) -> None:
    with bare_server(f"user flow on >{SECRET} {rights}", password=SECRET, username="flow") as server:
        if is_enough:
            check_server(connect(server.url), url=server.url)
            return
        error = refusal(server.url)

    assert isinstance(error, errors.NoPermission)
    assert "+@all -@dangerous +info" in str(error)


def test_evicting_policy() -> None:
    with bare_server("maxmemory 100mb", "maxmemory-policy allkeys-lru") as server:
        error = refusal(server.url)

    assert isinstance(error, errors.EvictingPolicy)
    assert "allkeys-lru" in str(error) and "noeviction" in str(error)


def test_replica_is_read_only() -> None:
    with bare_server() as primary, bare_server(f"replicaof {primary.url.path} 0") as replica:
        error = refusal(replica.url)

    assert isinstance(error, errors.ReadOnlyServer)


def test_full_memory() -> None:
    with bare_server("maxmemory 1", "maxmemory-policy noeviction") as server:
        error = refusal(server.url)

    assert isinstance(error, errors.ServerFull)


def test_other_schema_is_refused_and_nothing_is_written() -> None:
    with bare_server() as server:
        client = connect(server.url)
        client.set("fc:schema", "99")
        error = refusal(server.url)

        assert client.keys("*") == ["fc:schema"]

    assert isinstance(error, errors.OtherSchema)
    assert error.exit_code == 5
    assert "schema 99" in str(error)


def test_database_that_is_not_there() -> None:
    with bare_server("databases 2") as server:
        error = refusal(BrokerURL(kind="unix", path=server.url.path, database=7))

    assert isinstance(error, errors.ServerUnsuited)
    assert "no database 7" in str(error)


def test_server_that_reads_its_data_says_so() -> None:
    def is_loading() -> bool:
        try:
            connect(server.url).close()
        except errors.ServerLoading:
            return True
        return False

    with bare_server("enable-debug-command yes", "loading-process-events-interval-bytes 1024") as server:
        client = connect(server.url)
        client.eval("for i = 1, 20000 do redis.call('SET', i, string.rep('x', 100)) end", 0)
        client.config_set("key-load-delay", 500)
        reader = client.connection_pool.get_connection()
        reader.send_command("DEBUG", "RELOAD")

        eventually(is_loading, what="loading")

        # Answered on a connection that asks for no PING first.
        assert read_facts(server.url.redis_client(health_check_interval=0)).is_loading


@pytest.mark.parametrize(
    ("product", "version", "is_old"),
    [
        ("redis", "6.2.14", True),
        ("redis", "7.0.0", False),
        ("redis", "8.2.1", False),
        ("valkey", "7.2.5", False),
        ("valkey", "9.1.2", False),
        ("redis", "", True),
    ],
)
def test_oldest_versions(product: str, version: str, is_old: bool) -> None:
    if not is_old:
        check_version(facts(product=product, version=version), "place")
        return
    with pytest.raises(errors.ServerTooOld, match=r"redis 7\.0 or newer, or valkey 7\.2"):
        check_version(facts(product=product, version=version), "place")


def test_cluster_mode_is_refused() -> None:
    with pytest.raises(errors.ServerUnsuited, match="cluster"):
        check_mode(facts(mode="cluster"), "place")


def test_check_without_an_address_names_the_one_that_the_client_has() -> None:
    with bare_server() as server:
        client = connect(server.url)
        client.set("fc:schema", "99")

        with pytest.raises(errors.OtherSchema, match=server.url.path):
            check_server(client)


def test_errors_survive_pickling() -> None:
    error = errors.WrongPassword("what", place="there", cure="this")

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), again.exit_code) == (errors.WrongPassword, "there: what; this", 4)
