"""What a group of trials needs, as the server has it, and how amounts read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from flowctl.broker.worker_view import WorkerView
from flowctl.dsl.labels import NOT
from flowctl.dsl.resources import PACK, SLOT, Bundle, Request, format_request

TOKEN = 10_000
GIB = 1024


@dataclass(frozen=True)
class Shape:
    """What each trial of a group needs: its request, a Python minor version, and the key that signed its run.

    A worker whose Python or keys are not known (empty here) is not asked for them.
    """

    request: Request
    python: str
    key: str

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return self.request.bundles

    @property
    def is_gang(self) -> bool:
        return self.request.is_group


def load_shapes(client: Any, ids: Sequence[str]) -> dict[str, Shape]:
    """Shapes by id; unknown ids are left out."""
    rows = cast(list[str | None], client.hmget("fc:shapes", ids)) if ids else []
    return {shape: shape_of(json.loads(row)) for shape, row in zip(ids, rows, strict=True) if row}


def shape_of(data: Mapping[str, Any]) -> Shape:
    """From the server's JSON."""
    bundles = tuple(
        Bundle({dim: int(units) for dim, units in dict(each["need"]).items()}, tuple(each.get("labels") or ()))
        for each in data["bundles"]
    )
    strategy = str(data.get("strategy") or PACK)
    return Shape(Request(bundles, strategy), str(data.get("python") or ""), str(data.get("key") or ""))


def has_labels(worker: WorkerView, bundle: Bundle) -> bool:
    """Whether a worker has the labels that a bundle wants, and none that it does not want."""
    mine = worker.labels
    return all((each[1:] not in mine) if each.startswith(NOT) else (each in mine) for each in bundle.labels)


def show_tokens(dimension: str, units: int) -> str:
    """An amount as a person reads it: cpu 0.5, memory 2 GiB, 23.5 GiB or 100 MiB."""
    if dimension == "memory":
        return f"{units} MiB" if units < GIB else f"{units / GIB:.1f}".removesuffix(".0") + " GiB"
    return f"{units / TOKEN:.4f}".rstrip("0").rstrip(".")


def show_apart(dimension: str, *amounts: int) -> list[str]:
    """Amounts that are compared: those that differ read differently, to the MiB if need be."""
    shown = [show_tokens(dimension, units) for units in amounts]
    is_blurred = dimension == "memory" and len(set(shown)) < len(set(amounts))
    return [f"{units} MiB" for units in amounts] if is_blurred else shown


def show_need(need: Mapping[str, int]) -> str:
    """A request in one line, `cpu 1, gpu 0.5`; the slot that every trial takes is left out."""
    parts = [f"{dim} {show_tokens(dim, units)}" for dim, units in sorted(need.items()) if dim != SLOT and units]
    return ", ".join(parts) or "nothing but a slot"


def show_shape(shape: Shape) -> str:
    """A whole request in one line: `cpu 1, gpu 0.5 on spot`, `SPREAD of 2 × (cpu 1, gpu 1)`."""
    return format_request(shape.request, vector=show_need)
