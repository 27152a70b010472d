"""Whatever the address, Celery's connection goes through our transport with its corrections, and clones keep it."""

from __future__ import annotations

import pytest

from flowctl.broker.broker_url import BrokerURL
from flowctl.workers import transport

ADDRESSES = (
    "redis://:secret@127.0.0.1:6379/3",
    "rediss://127.0.0.1:6379/0",
    "redis+socket://:secret@/tmp/some/server.sock",
    "unix:///tmp/some/server.sock",
    "sentinel://127.0.0.1:26379/0?master=mymaster",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_uses_our_transport(address: str) -> None:
    url = BrokerURL.parse(address)

    made = transport.AMQP.Connection(
        url.kombu_url(), transport=transport.path_of(url), transport_options=transport.options(url)
    )

    for connection in (made, made.clone()):
        assert issubclass(connection.get_transport_cls(), (transport.Transport, transport.SentinelTransport))
        assert connection.get_transport_cls().Channel.QoS is transport.QoS
