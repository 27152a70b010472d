"""Fixtures of the tests that need more than one process."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from cluster import Cluster

PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets fixtures see how their test went."""
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A whole flowctl of the test's own; see cluster.py. After a test that passed it is checked that nothing leaks."""
    made = Cluster()
    yield made
    made.close(check=request.node.stash.get(PASSED, False))
