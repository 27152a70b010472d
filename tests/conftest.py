"""Fixtures that every test may use: a private state folder, and one real server for the session.

A test sees no FLOWCTL_ variable of the person who runs it. Each process of pytest-xdist has a server of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))
for _name in [name for name in os.environ if name.startswith("FLOWCTL_")]:
    del os.environ[_name]

from server import flushed, private_home, remove_home  # noqa: E402

from flowctl.broker.broker_url import BrokerURL  # noqa: E402
from flowctl.broker.embedded import ensure_server  # noqa: E402


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty state folder with a short path, set as FLOWCTL_HOME; a server that was started there is stopped."""
    folder = private_home()
    monkeypatch.setenv("FLOWCTL_HOME", str(folder))
    yield folder
    remove_home(folder)


@pytest.fixture(scope="session")
def server() -> Iterator[BrokerURL]:
    """The address of a running embedded server, one per test process; shared, so use `client` for an empty one."""
    folder = private_home()
    yield ensure_server(folder)
    remove_home(folder)


@pytest.fixture
def client(server: BrokerURL) -> Iterator[Any]:
    """A client of the session's server, emptied before the test."""
    connected = flushed(server)
    yield connected
    connected.close()
