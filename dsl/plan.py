"""The plan: what a run will do, as frozen values and one canonical JSON text.

A plan names the user's functions by keys of the payload and holds nothing that runs. The same script and seed give the
same bytes in every process. `from_json` reads what `to_json` wrote; another format number or a missing key is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.errors import RefusedError
from flowctl.dsl.jsonvalue import JSON, canonical
from flowctl.dsl.names import STEP_NAME
from flowctl.dsl.policy import Policy
from flowctl.dsl.resources import Request

FORMAT = 1
MAX_TRIALS = 10_000_000
STAGE = "stage"
EXPERIMENT = "experiment"


def edges_of(value: JSON) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The (step, path) of every output that a JSON value with edges in it refers to."""
    if isinstance(value, dict):
        if "$output" in value:
            yield value["$output"], tuple(value["path"])
        else:
            for inner in value.values():
                yield from edges_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from edges_of(inner)


@dataclass(frozen=True)
class Step:
    """One node of a plan: a stage (one unit) or an experiment (`total` trials, indexed from 0).

    `inputs` and `keyword_inputs` hold JSON literals (special floats encoded) and, at any depth,
    `{"$output": STEP, "path": [...]}`. For an experiment they follow the configuration. `request` is what each unit
    asks for; None if that is a function of its configuration. `labels` are those of the keyword (each bundle of
    `request` has them already). `max_concurrent_trials` and `pending_timeout_s` None mean no limit; a higher `priority`
    goes first. `space` is the encoded search space (see `space_encoding`), None for a stage.
    """

    name: str
    kind: str
    code: str
    place: str
    total: int
    seed: str
    request: Request | None
    has_resource_function: bool = False
    labels: tuple[str, ...] = ()
    max_concurrent_trials: int | None = None
    priority: int = 0
    pending_timeout_s: float | None = None
    inputs: tuple[JSON, ...] = ()
    keyword_inputs: Mapping[str, JSON] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    space: JSON = None
    num_samples: int = 1
    metric: str | None = None
    mode: str | None = None
    policy: Policy = field(default_factory=Policy)
    stop: Mapping[str, float] | None = None
    stop_functions: int = 0
    signature: Mapping[str, JSON] = field(default_factory=dict)

    def to_json(self) -> dict[str, JSON]:
        return {
            "name": self.name,
            "kind": self.kind,
            "code": self.code,
            "place": self.place,
            "inputs": list(self.inputs),
            "keyword_inputs": dict(self.keyword_inputs),
            "after": list(self.after),
            "total": self.total,
            "space": self.space,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "metric": self.metric,
            "mode": self.mode,
            "request": None if self.request is None else self.request.to_json(),
            "has_resource_function": self.has_resource_function,
            "labels": list(self.labels),
            "max_concurrent_trials": self.max_concurrent_trials,
            "priority": self.priority,
            "pending_timeout_s": self.pending_timeout_s,
            "policy": self.policy.to_json(),
            "stop": None if self.stop is None else dict(self.stop),
            "stop_functions": self.stop_functions,
            "signature": dict(self.signature),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Step:
        """Raises `RefusedError` for a damaged step."""
        try:
            parts = {**data, "policy": Policy.from_json(data["policy"])}
            parts["request"] = None if data["request"] is None else Request.from_json(data["request"])
            for name in ("inputs", "after", "labels"):
                parts[name] = tuple(data[name])
            step = cls(**parts)
        except (KeyError, TypeError, ValueError) as error:
            raise RefusedError(f"the plan holds a damaged step: {error}", cure="submit the script again") from error
        is_sound = (
            isinstance(step.name, str)
            and STEP_NAME.fullmatch(step.name)
            and isinstance(step.code, str)
            and STEP_NAME.fullmatch(step.code)
            and step.kind in (STAGE, EXPERIMENT)
            and isinstance(step.total, int)
            and 0 <= step.total <= MAX_TRIALS
            and (step.request is None) == step.has_resource_function
        )
        if not is_sound:
            raise RefusedError(f"the plan holds a damaged step: {step.name!r}", cure="submit the script again")
        return step


@dataclass(frozen=True)
class Plan:
    """The compiled graph. `steps` stand in the order of the calls, so every step follows those it needs."""

    name: str
    steps: tuple[Step, ...]
    flow: str | None = None
    parameters: Mapping[str, JSON] = field(default_factory=dict)

    def to_json(self) -> dict[str, JSON]:
        return {
            "format": FORMAT,
            "name": self.name,
            "flow": self.flow,
            "parameters": dict(self.parameters),
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Raises `RefusedError` for another format and for damage."""
        if not isinstance(data, Mapping):
            raise RefusedError("the plan is damaged: not a JSON object", cure="submit the script again")
        if data.get("format") != FORMAT:
            what = f"the plan has format {data.get('format')!r}, this version reads {FORMAT}"
            raise RefusedError(what, cure="use the version of flowctl that wrote it")
        try:
            steps = tuple(Step.from_json(step) for step in data["steps"])
            return cls(name=data["name"], steps=steps, flow=data["flow"], parameters=data["parameters"])
        except (KeyError, TypeError) as error:
            raise RefusedError(f"the plan is damaged: {error}", cure="submit the script again") from error

    @classmethod
    def parse(cls, data: bytes) -> Plan:
        """The plan of these bytes; raises like `from_json`."""
        try:
            return cls.from_json(json.loads(data))
        except ValueError as error:
            raise RefusedError(f"the plan is damaged: {error}", cure="submit the script again") from error

    def canonical(self) -> bytes:
        """The one byte string of this plan."""
        return canonical(self.to_json())

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hex digits, of the canonical bytes."""
        return f"sha256:{hashlib.sha256(self.canonical()).hexdigest()}"

    def step(self, name: str) -> Step:
        """The step of that name. Raises `RefusedError`."""
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(step.name for step in self.steps)
        raise RefusedError(f"the plan has no step {name!r}", cure=f"it has: {names}")

    @property
    def total(self) -> int:
        """The number of units of all steps."""
        return sum(step.total for step in self.steps)
