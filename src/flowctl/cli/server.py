"""How commands reach the server: settings from the environment, one connection, errors told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowctl.broker.reading import reading
from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker


@contextmanager
def opened() -> Iterator[tuple[Broker, Settings]]:
    """A connected broker, ticked once (clients drive time too), and the settings it came from."""
    settings = Settings.from_env()
    broker = Broker.connect(settings)
    with reading(broker):
        broker.tick()
    try:
        yield broker, settings
    finally:
        broker.client.close()
