"""What a step's function of the configuration asks for, for `flowctl plan`: different requests, and where it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowctl.broker.cause import Cause
from flowctl.broker.shape_view import show_need
from flowctl.dsl.graph import A_FUNCTION
from flowctl.dsl.resources import Request, format_request
from flowctl.render.table import cut
from flowctl.workers.runs.requests import Asks

LOOKED_AT = 1000
"""A function is called for at most so many trials of a step: a plan is there at once."""


@dataclass(frozen=True)
class Failure:
    """Trials for which the function fails alike; `trial` is the first of them."""

    step: str
    trial: int
    count: int
    text: str
    place: str | None

    def line(self) -> str:
        """As a warning."""
        which = f"trial {self.trial}" if self.count == 1 else f"{self.count} trials, the first is trial {self.trial}"
        place = f"  at {self.place}" if self.place else ""
        return f"warning: {self.step}: no request for {which}: {cut(self.text, 200)}{place}; it would fail at once"

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "trial": self.trial, "count": self.count, "text": self.text, "place": self.place}


@dataclass(frozen=True)
class PlannedAsks:
    """The answers for the first trials of a step: how many ask for what, and how many are not looked at."""

    requests: Mapping[str, int]
    failures: tuple[Failure, ...]
    rest: int

    @classmethod
    def of(cls, asks: Asks) -> PlannedAsks:
        requests: dict[str, int] = {}
        failed: dict[tuple[str, str | None], list[int]] = {}
        for index in range(asks.count):
            answer = asks.of(index)
            if "request" in answer:
                text = format_request(Request.from_json(answer["request"]), vector=show_need)
                requests[text] = requests.get(text, 0) + 1
            else:
                cause = Cause.of(answer["failed"])
                failed.setdefault((cause.headline(), cause.place), []).append(index)
        failures = [Failure(asks.step.name, at[0], len(at), text, place) for (text, place), at in failed.items()]
        return cls(requests, tuple(failures), asks.step.total - asks.count)

    def needs(self) -> str:
        """What each trial asks for, in a word."""
        is_one = len(self.requests) == 1 and not self.failures and not self.rest
        return next(iter(self.requests)) if is_one else A_FUNCTION

    def counts(self) -> Iterator[tuple[str, int]]:
        """Requests with the number of trials that ask for them; what is not looked at comes last."""
        yield from self.requests.items()
        if self.rest:
            yield f"{A_FUNCTION}, not looked at", self.rest
