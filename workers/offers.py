"""What a worker offers: cores that it may use, one slot per trial at once, and what its owner declares."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from flowctl.dsl.resources import SLOT, UNITS_PER_TOKEN, parse_offer


@dataclass(frozen=True)
class Offers:
    """Exact units per dimension. Detected ones are shared between the workers of a machine; declared ones are
    believed.
    """

    detected: Mapping[str, int]
    declared: Mapping[str, int]


def offers(text: str | None, *, slots: int) -> Offers:
    """From `--resources cpu=2,license=1`. Without `cpu` there, the cores that this process may run on are detected."""
    declared = parse_offer(text, place="--resources") if text else {}
    declared[SLOT] = slots * UNITS_PER_TOKEN
    detected = {} if "cpu" in declared else {"cpu": cores() * UNITS_PER_TOKEN}
    return Offers(detected=detected, declared=declared)


def cores() -> int:
    """Cores that this process may run on: its affinity, and its control group's quota rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()[:2]
        if quota != "max":
            allowed = min(allowed, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return allowed
