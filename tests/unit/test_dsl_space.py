"""The search space: every distribution in range with its edges, grids, nesting, and every refusal (rows 72 to 74)."""

import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.dsl import space
from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.sample import Sampler
from flowctl.dsl.space import choice, grid, loguniform, qloguniform, qrandint, quniform, randint, randn, uniform
from flowctl.dsl.space_encoding import encode_space

DRAWS = 2000


def sampler(param_space: dict[str, Any], *, num_samples: int = 1, seed: str = "7") -> Sampler:
    return Sampler(encode_space(param_space, place="param_space"), num_samples=num_samples, seed=seed)


def drawn(domain: Any, count: int = DRAWS) -> list[Any]:
    source = sampler({"x": domain}, num_samples=count)
    return [source.config_at(index)["x"] for index in range(count)]


def test_uniform_draws_floats_with_the_upper_end_excluded() -> None:
    values = drawn(uniform(-1, 3))

    assert all(type(value) is float and -1 <= value < 3 for value in values)
    assert abs(sum(values) / DRAWS - 1) < 0.1
    assert len(set(values)) == DRAWS


def test_loguniform_is_uniform_in_the_logarithm() -> None:
    values = drawn(loguniform(1e-4, 1))

    assert all(type(value) is float and 1e-4 <= value < 1 for value in values)
    decades = Counter(math.floor(math.log10(value)) for value in values)
    assert all(abs(decades[decade] / DRAWS - 0.25) < 0.04 for decade in (-4, -3, -2, -1))


def test_quniform_gives_every_multiple_its_full_weight_also_at_the_edges() -> None:
    counts = Counter(drawn(quniform(0.1, 0.5, 0.1)))

    assert sorted(counts) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(abs(count / DRAWS - 0.2) < 0.04 for count in counts.values())


def test_qloguniform_draws_multiples_with_both_ends_and_log_weights() -> None:
    counts = Counter(drawn(qloguniform(1, 8, 1)))

    assert sorted(counts) == [float(k) for k in range(1, 9)]
    width = math.log(8.5 / 0.5)
    for k, count in counts.items():
        assert abs(count / DRAWS - math.log((k + 0.5) / (k - 0.5)) / width) < 0.04


def test_randint_excludes_the_upper_end() -> None:
    counts = Counter(drawn(randint(-2, 3)))

    assert sorted(counts) == [-2, -1, 0, 1, 2] and all(type(value) is int for value in counts)
    assert all(abs(count / DRAWS - 0.2) < 0.04 for count in counts.values())


def test_qrandint_includes_the_upper_end_also_for_steps_of_one() -> None:
    assert sorted(set(drawn(qrandint(1, 4)))) == [1, 2, 3, 4]
    counts = Counter(drawn(qrandint(10, 40, 10)))
    assert sorted(counts) == [10, 20, 30, 40] and all(type(value) is int for value in counts)
    assert all(abs(count / DRAWS - 0.25) < 0.04 for count in counts.values())


def test_lograndint_and_qlograndint_have_their_documented_ends() -> None:
    values = drawn(space.lograndint(1, 100))
    assert all(type(value) is int and 1 <= value < 100 for value in values)
    assert abs(sum(value < 10 for value in values) / DRAWS - 0.5) < 0.05

    assert sorted(set(drawn(space.lograndint(1, 2), 50))) == [1]
    quantised = drawn(space.qlograndint(2, 12, 2))
    assert sorted(set(quantised)) == [2, 4, 6, 8, 10, 12] and all(type(value) is int for value in quantised)


def test_randn_and_qrandn_are_normal() -> None:
    values = drawn(randn(5, 2))
    assert abs(sum(values) / DRAWS - 5) < 0.2
    assert abs(sum(abs(value - 5) < 2 for value in values) / DRAWS - 0.683) < 0.04

    quantised = drawn(space.qrandn(0, 1, 0.25))
    assert all((Fraction(repr(value)) / Fraction("0.25")).denominator == 1 for value in quantised)
    assert len(set(quantised)) > 10


def test_choice_takes_each_entry_and_resolves_what_is_inside_it() -> None:
    values = drawn(choice([0.0, uniform(0.1, 0.4), {"k": [randint(5, 7), choice(["a", "b"])]}]))

    kinds = Counter(type(value) for value in values)
    assert all(abs(count / DRAWS - share) < 0.04 for count, share in ((kinds[float], 2 / 3), (kinds[dict], 1 / 3)))
    assert {value["k"][0] for value in values if isinstance(value, dict)} == {5, 6}
    assert {value["k"][1] for value in values if isinstance(value, dict)} == {"a", "b"}


def test_nested_dictionaries_and_lists_keep_their_shape_and_order() -> None:
    source = sampler({"m": {"k": [choice([1, 2]), {"z": loguniform(1e-3, 1)}]}, "a": [1, [2, {"b": None}]]})

    config = source.config_at(0)

    assert list(config) == ["m", "a"]
    assert config["m"]["k"][0] in (1, 2) and 1e-3 <= config["m"]["k"][1]["z"] < 1
    assert config["a"] == [1, [2, {"b": None}]]
    assert config is not source.config_at(0) and config["a"] is not source.config_at(0)["a"]


def test_grid_product_times_samples_in_the_written_order() -> None:
    source = sampler({"b": grid([1, 2]), "a": grid(["x", "y", "z"])}, num_samples=2)

    configs = [source.config_at(index) for index in range(source.total)]

    assert source.total == 12
    assert configs[:6] == [{"b": b, "a": a} for b in (1, 2) for a in ("x", "y", "z")] == configs[6:]


def test_grids_inside_grids_and_deep_structures_are_expanded() -> None:
    source = sampler(
        {"opt": grid([{"name": "sgd", "mom": grid([0.0, 0.9])}, {"name": "adam"}]), "l": [{"n": grid([1, 2])}]}
    )

    configs = [source.config_at(index) for index in range(source.total)]

    opts = [{"name": "sgd", "mom": 0.0}, {"name": "sgd", "mom": 0.9}, {"name": "adam"}]
    assert configs == [{"opt": opt, "l": [{"n": n}]} for opt in opts for n in (1, 2)]


def test_distributions_are_drawn_anew_for_every_grid_point_and_sample() -> None:
    source = sampler({"g": grid([1, 2]), "x": uniform(0, 1), "y": uniform(0, 1)}, num_samples=3)
    configs = [source.config_at(index) for index in range(source.total)]

    assert len({config["x"] for config in configs} | {config["y"] for config in configs}) == 12


def test_draws_depend_on_seed_index_and_path_only() -> None:
    left = sampler({"a": uniform(0, 1), "b": {"c": randint(0, 100)}}, num_samples=9)
    right = sampler({"new": choice([1, 2]), "b": {"c": randint(0, 100)}, "a": uniform(0, 1)}, num_samples=9)

    for index in range(9):
        one, other = left.config_at(index), right.config_at(index)
        assert (one["a"], one["b"]) == (other["a"], other["b"])
    assert sampler({"a": uniform(0, 1)}, seed="8").config_at(0)["a"] != left.config_at(0)["a"]


def test_draws_are_pinned_for_every_machine_and_python() -> None:
    source = sampler(
        {
            "u": uniform(0, 1),
            "l": loguniform(1e-5, 1e-1),
            "q": quniform(0, 1, 0.05),
            "ql": qloguniform(0.01, 10, 0.01),
            "i": randint(0, 2**70),
            "n": randn(),
            "c": choice([10, 20, 30]),
        },
        num_samples=5,
        seed="pinned",
    )

    assert source.config_at(3) == PINNED


PINNED: dict[str, Any] = {
    "u": 0.5454413362086107,
    "l": 0.0012315579099707469,
    "q": 0.1,
    "ql": 0.4,
    "i": 677635737630794324740,
    "n": 0.29412126357018165,
    "c": 10,
}


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9), st.text(min_size=1, max_size=5))
def test_uniform_never_leaves_its_range(lower: float, width: float, seed: str) -> None:
    upper = lower + width
    if upper <= lower:
        return
    value = sampler({"x": uniform(lower, upper)}, seed=seed.encode("utf-8", "replace").decode()).config_at(0)["x"]

    assert lower <= value < upper


@given(st.integers(-50, 50), st.integers(1, 60), st.sampled_from([0.05, 0.1, 0.25, 1.0, 3.0, 1e-4]))
def test_quniform_draws_the_nearest_float_of_a_multiple(first: int, count: int, q: float) -> None:
    exact = Fraction(repr(q))
    lower, upper = float(first * exact), float((first + count) * exact)
    value = sampler({"x": quniform(lower, upper, q)}).config_at(0)["x"]

    assert lower <= value <= upper
    assert value == float(round(Fraction(repr(value)) / exact) * exact)


def test_constants_of_numpy_become_plain() -> None:
    config = sampler({"a": np.float64(0.5), "b": np.arange(2), "c": grid(np.array([1, 2])), "t": (1, 2)}).config_at(1)

    assert config == {"a": 0.5, "b": [0, 1], "c": 2, "t": [1, 2]} and type(config["c"]) is int


def test_special_floats_are_values_of_a_grid() -> None:
    source = sampler({"v": grid([float("nan"), 0.5, float("inf"), float("-inf")])})

    assert math.isnan(source.config_at(0)["v"])
    assert [source.config_at(index)["v"] for index in (1, 2, 3)] == [0.5, math.inf, -math.inf]


nan, inf = float("nan"), float("inf")
any_space: Any = space


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: grid([]), "grid: is empty"),
        (lambda: choice([]), "choice: is empty"),
        (lambda: any_space.grid("abc"), "list of values, not str"),
        (lambda: any_space.choice({1, 2}), "a set has no order"),
        (lambda: any_space.grid(3), "list of values, not int"),
        (lambda: uniform(2, 1), "range is empty"),
        (lambda: uniform(1.0, 1.0), "range is empty"),
        (lambda: uniform(nan, 1), "finite"),
        (lambda: uniform(0, inf), "finite"),
        (lambda: uniform(-1.7e308, 1.7e308), "too wide"),
        (lambda: any_space.uniform("0", 1), "lower is '0'"),
        (lambda: any_space.uniform(True, 2), "lower is True"),
        (lambda: loguniform(0, 1), "above 0"),
        (lambda: loguniform(-4, -1), "not its logarithm"),
        (lambda: randint(3, 3), "range is empty"),
        (lambda: any_space.randint(0, 2.5), "whole number"),
        (lambda: space.lograndint(0, 5), "above 0"),
        (lambda: quniform(0, 1, 0.3), "upper is 1, not a multiple"),
        (lambda: quniform(0.05, 1, 0.1), "lower is 0.05, not a multiple"),
        (lambda: quniform(0, 1, 0), "q is 0"),
        (lambda: quniform(0, 1, -0.1), "q is -0.1"),
        (lambda: quniform(0, 1e16, 0.1), "too small"),
        (lambda: qrandint(1, 10, 2), "not a multiple"),
        (lambda: qloguniform(0, 1, 0.1), "above 0"),
        (lambda: randn(0, 0), "sd is 0"),
        (lambda: randn(0, -1), "sd is -1"),
        (lambda: space.qrandn(0, 1, 0), "q is 0"),
    ],
)
def test_wrong_bounds_are_refused_where_they_are_declared(declare: Callable[[], Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare()

    assert words in str(caught.value)
    assert str(caught.value).startswith("test_dsl_space.py:")


def test_bounds_with_rounding_errors_are_still_multiples() -> None:
    assert sorted(set(drawn(quniform(0.1 + 0.2, 0.1 * 7, 0.1), 200))) == [0.3, 0.4, 0.5, 0.6, 0.7]


@dataclass
class Settings:
    n: int


@pytest.mark.parametrize(
    ("param_space", "kind", "words"),
    [
        ({"cfg": Settings(1)}, NotYetError, "param_space.cfg: a dataclass is not yet supported; use a dict"),
        ({"a": {"f": [len]}}, NotYetError, "param_space.a.f[0]: a function is not yet"),
        ({"a": object()}, DeclarationError, "param_space.a: not a JSON value: object"),
        ({"a": grid([1, object()])}, DeclarationError, "param_space.a[1]: not a JSON value"),
        ({"c": choice([1, {"g": grid([1])}])}, NotYetError, "param_space.c[1].g: a grid inside a choice is not yet"),
        ({"layers": {0: 64}}, DeclarationError, "param_space.layers: the key 0 is not text but int; write '0'"),
        ({("a", 1): 5}, DeclarationError, "the key ('a', 1) is not text"),
        ({"$x": 1}, DeclarationError, "reserved"),
        ([1], DeclarationError, "param_space: is list, not a dictionary"),
    ],
)
def test_values_that_are_not_json_are_refused_by_path(param_space: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        encode_space(param_space, place="param_space")

    assert words in str(caught.value)


@pytest.mark.parametrize("entries", [lambda n: list(range(n)), lambda n: [grid([i, -i]) for i in range(n)]])
def test_a_trial_of_a_long_grid_costs_what_one_of_a_short_grid_does(entries: Callable[[int], list[Any]]) -> None:
    def calls(length: int) -> int:
        source, seen = sampler({"x": grid(entries(length))}), []
        sys.setprofile(lambda _frame, event, _argument: seen.append(event))
        try:
            source.config_at(source.total - 1)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert calls(10) == calls(5000)


def test_points_of_uneven_grid_entries_are_in_order() -> None:
    source = sampler({"x": grid([1, grid([2, 3, 4]), {"y": grid([5, 6])}])})

    assert [source.config_at(index)["x"] for index in range(source.total)] == [1, 2, 3, 4, {"y": 5}, {"y": 6}]
