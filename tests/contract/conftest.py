"""A world to test the scripts in; after each test its invariants hold and every key has an owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from broker_builder import World


@pytest.fixture
def world(client: Any) -> Iterator[World]:
    """An empty server behind builders."""
    built = World(client)
    yield built
    assert built.complaints() == []
