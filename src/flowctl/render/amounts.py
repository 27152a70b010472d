"""Exact tokens as the numbers that people write."""

from __future__ import annotations

from collections.abc import Mapping

from flowctl.broker.worker_view import as_gpu


def amount(dimension: str, units: int) -> float | int:
    """MiB of memory, cores or devices or tokens of everything else."""
    if dimension == "memory":
        return units
    return units // 10_000 if units % 10_000 == 0 else units / 10_000


def amounts(vector: Mapping[str, int]) -> dict[str, float | int]:
    """A vector by name, devices together as gpu."""
    return {dim: amount(dim, units) for dim, units in sorted(as_gpu(vector).items())}
