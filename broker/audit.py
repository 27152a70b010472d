"""The invariants of a server that is in use: only what stands in several looks is told."""

from __future__ import annotations

from typing import Any

from flowctl.broker.invariants import violations

LOOKS = 3


def audit(client: Any) -> list[str]:
    """Sentences about broken invariants that every look found. One look reads key after key, so a change in between
    may look broken; it does not look the same twice.
    """
    standing = violations(client)
    for _ in range(LOOKS - 1):
        if not standing:
            break
        again = set(violations(client))
        standing = [sentence for sentence in standing if sentence in again]
    return standing
