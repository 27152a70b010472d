"""From a plan's step and a number to a configuration, without user code and without state.

Trials are numbered sample by sample: all grid points of the first sample, then all of the second, … The first grid in
the text varies slowest, as in nested loops. Distributions are drawn anew for every trial.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

from flowctl.dsl.draws import KINDS, Draws, Path, draw
from flowctl.dsl.errors import RefusedError
from flowctl.dsl.jsonvalue import JSON, decode_float
from flowctl.dsl.plan import Step


@dataclass(frozen=True)
class _Constant:
    value: Any
    points: ClassVar[int] = 1

    def resolve(self, point: int, path: Path, trial: _Trial) -> Any:
        return self.value


@dataclass(frozen=True)
class _Domain:
    kind: str
    numbers: list[float]
    points: ClassVar[int] = 1

    def resolve(self, point: int, path: Path, trial: _Trial) -> Any:
        return draw(self.kind, self.numbers, Draws(trial.seed, trial.index, path))


@dataclass(frozen=True)
class _Choice:
    entries: list[_Node]
    points: ClassVar[int] = 1

    def resolve(self, point: int, path: Path, trial: _Trial) -> Any:
        chosen = Draws(trial.seed, trial.index, path).below(len(self.entries))
        return self.entries[chosen].resolve(0, (*path, chosen), trial)


class _Grid:
    def __init__(self, entries: list[_Node]) -> None:
        self.entries = entries
        self._starts = list(accumulate((entry.points for entry in entries), initial=0))
        self.points: int = self._starts.pop()

    def resolve(self, point: int, path: Path, trial: _Trial) -> Any:
        number = bisect_right(self._starts, point) - 1
        return self.entries[number].resolve(point - self._starts[number], (*path, number), trial)


class _Container:
    """A dictionary or list: the product of its parts, the last varying fastest."""

    def __init__(self, parts: list[tuple[str | int, _Node]], *, is_list: bool) -> None:
        self.is_list = is_list
        self._parts: list[tuple[str | int, _Node, int]] = []
        points = 1
        for key, node in reversed(parts):
            self._parts.append((key, node, points))
            points *= node.points
        self._parts.reverse()
        self.points: int = points

    def resolve(self, point: int, path: Path, trial: _Trial) -> Any:
        values = {
            key: node.resolve(point // stride % node.points, (*path, key), trial) for key, node, stride in self._parts
        }
        return list(values.values()) if self.is_list else values


_Node: TypeAlias = "_Constant | _Domain | _Choice | _Grid | _Container"


@dataclass(frozen=True)
class _Trial:
    seed: str
    index: int


class Sampler:
    """The configurations of one encoded space; build it once to read many. `total` is grid points × samples."""

    def __init__(self, space: JSON, *, num_samples: int, seed: str) -> None:
        self._root = _read(space)
        self._seed = seed
        self.grid_points = self._root.points
        self.total = self.grid_points * num_samples

    def config_at(self, index: int) -> dict[str, Any]:
        """The configuration of trial `index`, counted from 0: new containers, plain values, keys as written."""
        if not 0 <= index < self.total:
            raise RefusedError(f"there is no trial {index}", cure=f"trials are numbered 0 to {self.total - 1}")
        trial = _Trial(self._seed, index)
        config: dict[str, Any] = self._root.resolve(index % self.grid_points, (), trial)
        return config


_recent: deque[tuple[Step, Sampler]] = deque(maxlen=8)


def config_at(step: Step, index: int) -> dict[str, Any]:
    """The configuration of one trial of a step."""
    return sampler(step).config_at(index)


def configs(step: Step, start: int, stop: int) -> Iterator[dict[str, Any]]:
    """The configurations of trials start ≤ index < stop."""
    source = sampler(step)
    return (source.config_at(index) for index in range(start, min(stop, source.total)))


def sampler(step: Step) -> Sampler:
    """The sampler of an experiment's step, read once. Raises `RefusedError` for a stage and a damaged space."""
    if step.space is None:
        raise RefusedError(f"the step {step.name!r} is a stage and has no configurations")
    for known, source in tuple(_recent):
        if known is step:
            return source
    source = Sampler(step.space, num_samples=step.num_samples, seed=step.seed)
    _recent.append((step, source))
    return source


def grid_points(space: JSON) -> int:
    """The number of combinations of all grids in an encoded space; no grid is one."""
    return _read(space).points


def _read(value: JSON) -> _Node:
    if isinstance(value, list):
        return _Container([(number, _read(entry)) for number, entry in enumerate(value)], is_list=True)
    if not isinstance(value, dict):
        return _Constant(value)
    if len(value) == 1:
        tag, inner = next(iter(value.items()))
        if tag == "$dict":
            return _Container([(key, _read(entry)) for key, entry in inner], is_list=False)
        if tag == "$grid":
            return _Grid([_read(entry) for entry in inner])
        if tag == "$choice":
            return _Choice([_read(entry) for entry in inner])
        if tag == "$float":
            return _Constant(decode_float(value))
        if tag[1:] in KINDS:
            return _Domain(tag[1:], inner)
    raise RefusedError(f"the plan holds a damaged search space: {sorted(value)}", cure="submit the script again")
