"""Addresses of servers: every spelling is read, what is wrong is named, redis-py and kombu get their own spelling."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.errors import BrokerURLError


def kombu_parameters(url: BrokerURL) -> dict[str, Any]:
    """What kombu itself would connect with, without connecting: a channel that was not opened."""
    connection = Connection(url.kombu_url(), transport_options=url.transport_options())
    transport = connection.create_transport()
    channel = transport.Channel.__new__(transport.Channel)
    channel.connection = transport
    parameters: dict[str, Any] = channel._connparams()
    return parameters


@pytest.mark.parametrize(
    ("text", "kind", "hosts", "database", "username", "password"),
    [
        ("redis://h", "redis", (("h", 6379),), 0, "", ""),
        ("redis://h:7000/3", "redis", (("h", 7000),), 3, "", ""),
        ("redis://h:7000?db=3", "redis", (("h", 7000),), 3, "", ""),
        ("valkey://:p%40ss@h/1", "redis", (("h", 6379),), 1, "", "p@ss"),
        ("rediss://u:p@h", "rediss", (("h", 6379),), 0, "u", "p"),
        ("valkeys://u:p@h", "rediss", (("h", 6379),), 0, "u", "p"),
        ("REDIS://[::1]:6380", "redis", (("::1", 6380),), 0, "", ""),
        ("sentinel://:p@a;b:1/2?master=m", "sentinel", (("a", 26379), ("b", 1)), 2, "", "p"),
    ],
)
def test_parse_reads_host_port_database_and_login(
    text: str, kind: str, hosts: object, database: int, username: str, password: str
) -> None:
    url = BrokerURL.parse(text)

    assert (url.kind, url.hosts, url.database) == (kind, hosts, database)
    assert (url.username, url.password) == (username, password)


@pytest.mark.parametrize("scheme", ["unix", "redis+socket", "valkey+socket"])
@pytest.mark.parametrize("option", ["db", "virtual_host"])
def test_parse_reads_a_socket_under_either_name_of_its_database(scheme: str, option: str) -> None:
    url = BrokerURL.parse(f"{scheme}://:p%2Fw@/run/my%20dir/s.sock?{option}=4")

    assert url == BrokerURL(kind="unix", path="/run/my dir/s.sock", database=4, password="p/w")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("localhost:6379", "no scheme"),
        ("amqp://h", "'amqp'"),
        ("redis://", "no host"),
        ("redis://:p@/0", "no host"),
        ("redis://h:port", "'port'"),
        ("redis://h:0", "'0'"),
        ("redis://h:70000", "'70000'"),
        ("redis://::1:6379", "malformed host"),
        ("redis://[::1", "malformed host"),
        ("redis://h/main", "'main'"),
        ("redis://h/0?dbs=1", "'dbs'"),
        ("redis://h/0?ssl_ca_certs=/x", "rediss://"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "'maybe'"),
        ("redis://:a/b@h", "%2F"),
        ("redis://:a#b@h", "%23"),
        ("unix://host/run/s", "'host'"),
        ("unix://", "needs a path"),
        ("sentinel://h:26379/0", "master"),
        ("sentinel:///0?master=m", "no host"),
    ],
)
def test_parse_names_the_part_that_is_wrong(text: str, part: str) -> None:
    with pytest.raises(BrokerURLError) as caught:
        BrokerURL.parse(text)

    assert part in str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_password_shows_neither_in_repr_nor_in_safe_nor_in_errors() -> None:
    secret = "s3cr3t"
    url = BrokerURL.parse(f"sentinel://u:{secret}@h?master=m&sentinel_password={secret}")

    with pytest.raises(BrokerURLError) as caught:
        BrokerURL.parse(f"redis://:{secret}@h:x")

    assert secret not in repr(url) + url.safe() + str(caught.value)
    assert url.safe() == "sentinel://u:***@h:26379/0?master=m"


@pytest.mark.parametrize(
    "text",
    [
        "redis://u:p%2F%40%3A@h:1/2",
        "unix://:p%25@/a%20b/s.sock?db=3",
        "rediss://h:1/0?ssl_ca_certs=%2Fca.pem&ssl_cert_reqs=required",
        "sentinel://a:1;b:2/0?master=m",
    ],
)
def test_url_reads_back_as_the_same_value(text: str) -> None:
    url = BrokerURL.parse(text)

    assert BrokerURL.parse(url.url()) == url


def test_kombu_reads_the_tcp_address() -> None:
    found = kombu_parameters(BrokerURL.parse("valkey://u:p%2F%40@h:7/3"))

    assert (found["host"], found["port"], found["db"]) == ("h", 7, 3)
    assert (found["username"], found["password"]) == ("u", "p/@")


def test_kombu_reads_the_socket_with_its_database() -> None:
    found = kombu_parameters(BrokerURL.parse("unix://:p%2F%40@/run/a%20b/s.sock?db=3"))

    assert (found["path"], found["db"], found["password"]) == ("/run/a b/s.sock", 3, "p/@")


def test_kombu_checks_certificates_unless_told_otherwise() -> None:
    import ssl

    checked = kombu_parameters(BrokerURL.parse("rediss://h/0?ssl_ca_certs=/ca.pem"))
    unchecked = kombu_parameters(BrokerURL.parse("rediss://h/0?ssl_cert_reqs=none"))

    assert (checked["ssl_cert_reqs"], checked["ssl_ca_certs"]) == (ssl.CERT_REQUIRED, "/ca.pem")
    assert unchecked["ssl_cert_reqs"] == ssl.CERT_NONE


def test_kombu_gets_every_sentinel_and_the_masters_name() -> None:
    url = BrokerURL.parse("sentinel://:pw@h1:26379;h2:26380/1?master=mymaster&sentinel_password=sp")

    connection = Connection(url.kombu_url(), transport_options=url.transport_options())

    assert connection.alt == ["sentinel://:pw@h1:26379/1", "sentinel://:pw@h2:26380/1"]
    assert connection.transport_options["master_name"] == "mymaster"
    assert connection.transport_options["sentinel_kwargs"] == {"password": "sp"}


def test_redis_client_never_retries_and_has_bounds() -> None:
    client = BrokerURL.parse("redis://:p@h:7/3").redis_client()

    settings = client.connection_pool.connection_kwargs

    assert settings["retry"].get_retries() == 0
    assert (settings["socket_timeout"], settings["socket_connect_timeout"]) == (5.0, 3.0)
    assert (settings["host"], settings["port"], settings["db"], settings["password"]) == ("h", 7, 3, "p")
    assert settings["decode_responses"] is True


def test_redis_client_of_a_tls_address_uses_tls() -> None:
    client = BrokerURL.parse("rediss://h/0?ssl_cert_reqs=none").redis_client()

    assert client.connection_pool.connection_class.__name__ == "SSLConnection"
    assert client.connection_pool.connection_kwargs["ssl_check_hostname"] is False


def test_redis_client_of_a_sentinel_address_asks_the_sentinels() -> None:
    client = BrokerURL.parse("sentinel://:p@a:1;b:2/3?master=m").redis_client()

    pool = client.connection_pool

    assert pool.service_name == "m"
    assert [
        (s.connection_pool.connection_kwargs["host"], s.connection_pool.connection_kwargs["port"])
        for s in pool.sentinel_manager.sentinels
    ] == [("a", 1), ("b", 2)]
    assert pool.connection_kwargs["db"] == 3


@pytest.mark.parametrize(
    ("text", "is_remote"),
    [("redis://h", True), ("redis://127.0.0.1", False), ("redis://[::1]", False), ("unix:///s", False)],
)
def test_is_remote_tells_whether_others_may_be_behind_it(text: str, is_remote: bool) -> None:
    assert BrokerURL.parse(text).is_remote is is_remote
