"""Around what a client does with the server: one that does not answer is one error, with address and cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowctl.broker.connection import translated
from flowctl.broker.contact import NoContact
from flowctl.broker.store import Broker


@contextmanager
def reading(broker: Broker) -> Iterator[None]:
    """Turns redis-py's errors, and NoContact of the scripts, into BrokerError. Only for blocks that touch no files."""
    with translated(broker.url), calling(broker):
        yield


@contextmanager
def calling(broker: Broker) -> Iterator[None]:
    """Turns NoContact of the scripts into BrokerError and nothing else, for blocks that also write to storage."""
    try:
        yield
    except NoContact as error:
        with translated(broker.url):
            raise error.__cause__ or error from None
