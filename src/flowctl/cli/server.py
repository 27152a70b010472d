"""How commands reach the server: settings from the environment, one connection, errors told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowctl.broker.connection import translated
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker


@contextmanager
def opened() -> Iterator[tuple[Broker, Settings]]:
    """A connected broker, ticked once (clients drive time too), and the settings it came from."""
    settings = Settings.from_env()
    broker = Broker.connect(settings)
    with translated(broker.url):
        broker.tick()
    try:
        yield broker, settings
    finally:
        broker.client.close()


@contextmanager
def reading(broker: Broker) -> Iterator[None]:
    """Around reads: redis-py's errors become ours, which name the server and the cure."""
    with translated(broker.url):
        yield
