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


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One flowctl for many tests: a worker with four cores, two `tok`, three `tri`. What it leaves is checked at the
    end, if no test has failed. Side files carry the name of their test's own.
    """
    made = Cluster()
    made.worker(resources="cpu=4,tok=2,tri=3", slots=10)
    yield made
    made.close(check=not request.session.testsfailed)
