"""What a trial asks for: dictionaries, placement groups, functions, labels, and wrapping (rows 54-64)."""

import json
import pickle
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.dsl.config import Config
from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.experiment import Experiment, experiment
from flowctl.dsl.flow import flow
from flowctl.dsl.labels import is_label, parse_labels, show_labels
from flowctl.dsl.request import evaluate, parse_resources, placement_group, with_labels
from flowctl.dsl.resources import STRATEGIES, Bundle, Request, as_declared, format_request
from flowctl.dsl.stage import Stage, stage
from flowctl.dsl.with_resources import with_resources

any_group: Any = placement_group
any_wrap: Any = with_resources
SLOT = {"slot": 10_000}


def request(value: Any, place: str | None = None) -> Request:
    parsed = parse_resources(value, place=place)
    assert isinstance(parsed, Request)
    return parsed


def need(value: Mapping[str, Any]) -> Mapping[str, int]:
    (bundle,) = request(value).bundles
    return bundle.need


# --- a dictionary ---


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ({"cpu": 1}, {"cpu": 10000}),
        ({}, {"cpu": 10000}),
        ({"cpu": 0.5}, {"cpu": 5000}),
        ({"cpu": 0.29}, {"cpu": 2900}),
        ({"cpu": 1 / 3}, {"cpu": 3333}),
        ({"cpu": Fraction(1, 3)}, {"cpu": 3333}),
        ({"cpu": 0.0001}, {"cpu": 1}),
        ({"license": 1}, {"license": 10000}),
        ({"cpu": 0, "license": 2}, {"license": 20000}),
        ({"cpu": 2, "license": 0}, {"cpu": 20000}),
        ({"license": 0}, {"cpu": 10000}),
        ({"cpu": np.int64(2)}, {"cpu": 20000}),
        ({"cpu": np.float64(0.5)}, {"cpu": 5000}),
        ({"z": 1, "a-b_c": 1}, {"a-b_c": 10000, "z": 10000}),
        ({"gpu": 1}, {"gpu": 10000}),
        ({"gpu": 0.3}, {"gpu": 3000}),
        ({"gpu": 4}, {"gpu": 40000}),
        ({"gpu": 2.0, "cpu": 1}, {"cpu": 10000, "gpu": 20000}),
        ({"memory": "16GiB"}, {"cpu": 10000, "memory": 16384}),
        ({"memory": 2**30, "cpu": 0}, {"memory": 1024}),
        ({"memory": "500MB"}, {"cpu": 10000, "memory": 477}),
    ],
)
def test_a_dictionary_is_one_bundle_of_exact_units(value: dict[str, Any], units: dict[str, int]) -> None:
    found = request(value)

    assert found == Request((Bundle({**units, **SLOT}),), "PACK")
    assert list(found.bundles[0].need) == sorted(found.bundles[0].need)
    assert not found.is_group


def test_three_thirds_of_a_device_fit_on_one() -> None:
    assert 3 * need({"gpu": 1 / 3})["gpu"] <= 10_000
    assert [count * need({"gpu": 1 / count})["gpu"] <= 10_000 for count in range(1, 60)] == [True] * 59


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"cpu": -1}, "resources.cpu: is -1, must not be negative"),
        ({"cpu": float("nan")}, "finite"),
        ({"cpu": float("inf")}, "finite"),
        ({"cpu": 1e-5}, "smallest amount is 0.0001"),
        ({"cpu": 1e12}, "more than"),
        ({"cpu": "2"}, "is '2' (str), not a number"),
        ({"cpu": True}, "is True (bool)"),
        ({"cpu": None}, "not a number"),
        ({"cpu": 0}, "asks for nothing"),
        ({"gpu": 0, "cpu": 0}, "asks for nothing"),
        ({"gpu": 1.5}, "resources.gpu: is 1.5; above 1"),
        ({"gpu": -1}, "resources.gpu: is -1"),
        ({"CPU": 1}, "write 'cpu'"),
        ({"GPU": 1}, "write 'gpu'"),
        ({"CPU": 1, "cpu": 2}, "write 'cpu'"),
        ({"num_gpus": 1}, "write 'gpu'"),
        ({"License": 1}, "'License' cannot name"),
        ({"a b": 1}, "cannot name"),
        ({"1a": 1}, "cannot name"),
        ({"slot": 1}, "reserved"),
        ({"custom_resources": {"a": 1}}, "resources.custom_resources: is {'a': 1} (dict), not a number"),
        ({1: 1}, "is not text"),
        (3, "not a dictionary"),
        ("cpu=1", "not a dictionary"),
        (None, "not a dictionary"),
        ([{"cpu": 1}], "write placement_group("),
        ({"memory": "16 apples"}, "not an amount of memory"),
        ({"memory": -1}, "resources.memory: is -1"),
        ({"memory": "9999999PiB"}, "more than an exbibyte"),
        ({"memory": 10**40}, "more than an exbibyte"),
        ({"cpu": 1, "labels": ["a b"]}, "resources.labels: 'a b' is not a label"),
        (Config, "is the class Config"),
        (lambda: {"cpu": 1}, "must take the configuration as its only argument"),
        (lambda config, more: {"cpu": 1}, "must take the configuration as its only argument"),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_key(value: Any, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_resources(value, place="digits.py:3")

    assert words in str(caught.value)
    assert str(caught.value).startswith("digits.py:3: resources")
    assert not isinstance(caught.value, NotYetError)


@given(st.dictionaries(st.sampled_from(["cpu", "gpu", "license", "x"]), st.integers(1, 10_000), min_size=1))
def test_every_four_digit_fraction_is_kept_exactly(units: dict[str, int]) -> None:
    assert need({name: n / 10_000 for name, n in units.items()} | {"cpu": units.get("cpu", 0) / 10_000}) == units | SLOT


# --- placement groups ---


def test_a_group_keeps_its_bundles_and_adds_nothing_to_them() -> None:
    group = placement_group([{}, {"cpu": 1, "gpu": 0.5}, {"gpu": 1, "cpu": 0}], strategy="SPREAD")

    assert group == Request(
        (Bundle(SLOT), Bundle({"cpu": 10000, "gpu": 5000, **SLOT}), Bundle({"gpu": 10000, **SLOT})), "SPREAD"
    )
    assert request(group) is group and group.is_group
    assert placement_group([{"cpu": 1}]).strategy == "PACK"
    assert placement_group({"cpu": 1} for _ in range(3)).bundles == (Bundle({"cpu": 10000, **SLOT}),) * 3
    assert [any_group([{"cpu": 1}], strategy).strategy for strategy in STRATEGIES] == list(STRATEGIES)


def test_a_bundle_may_want_labels_of_its_own_worker() -> None:
    group = placement_group([{"cpu": 1}, {"gpu": 1, "labels": ["!spot", "zone=a"]}])

    assert [bundle.labels for bundle in group.bundles] == [(), ("!spot", "zone=a")]
    assert group.bundles[1].need == {"gpu": 10000, **SLOT}


@pytest.mark.parametrize(
    ("bundles", "strategy", "words"),
    [
        ([], "PACK", "has no bundles"),
        ([{}], "PACK", "bundles[0]: asks for nothing"),
        ([{"cpu": 0}], "PACK", "bundles[0]: asks for nothing"),
        ([{}, {}], "PACK", "bundles[1]: asks for nothing; only the first"),
        ([{"cpu": 1}, {"gpu": 0}], "PACK", "bundles[1]: asks for nothing"),
        ([{"cpu": 1}, {"gpu": 1.5}], "PACK", "bundles[1].gpu: is 1.5; above 1"),
        ([{"cpu": 1}, {"GPU": 1}], "PACK", "bundles[1]: unknown name 'GPU'; write 'gpu'"),
        ([{"cpu": 1}, 3], "PACK", "bundles[1]: is 3 (int), not a dictionary"),
        ([{"cpu": 1, "labels": {"zone": 3}}], "PACK", "bundles[0].labels: 'zone': 3"),
        ({"cpu": 1}, "PACK", "is given dict, not a list"),
        ("cpu", "PACK", "is given str, not a list"),
        (3, "PACK", "is given int, not a list"),
        ([{"cpu": 1}] * 1001, "PACK", "has 1,001 bundles"),
        ([{"cpu": 1}], "STRICT_SPRED", "there is no strategy 'STRICT_SPRED'; did you mean 'STRICT_SPREAD'?"),
        ([{"cpu": 1}], "pack", "did you mean 'PACK'?"),
        ([{"cpu": 1}], None, "there is no strategy None; known strategies: PACK"),
    ],
)
def test_a_group_that_cannot_be_is_refused_at_its_own_line(bundles: Any, strategy: Any, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        any_group(bundles, strategy=strategy)

    assert words in str(caught.value)
    assert str(caught.value).startswith("test_dsl_request.py:")


BUNDLES = st.fixed_dictionaries(
    {"cpu": st.integers(1, 64), "gpu": st.integers(0, 8)},
    optional={"memory": st.integers(2**20, 2**40), "labels": st.lists(st.sampled_from(["spot", "!slow", "zone=a"]))},
)


@given(st.lists(BUNDLES, min_size=1, max_size=6), st.sampled_from(STRATEGIES))
def test_a_request_survives_json_and_pickle(bundles: list[dict[str, Any]], strategy: str) -> None:
    group = placement_group(bundles, strategy)

    assert Request.from_json(json.loads(json.dumps(group.to_json()))) == group
    assert pickle.loads(pickle.dumps(group)) == group
    assert all(n > 0 for bundle in group.bundles for n in bundle.need.values())
    assert all(bundle.need["slot"] == 10_000 for bundle in group.bundles)


@pytest.mark.parametrize(
    "damage",
    [
        {"bundles": []},
        {"strategy": "pack"},
        {"bundles": [{"need": {"cpu": 1}, "labels": []}]},
        {"bundles": [{"need": {"cpu": 1.5, **SLOT}, "labels": []}]},
        {"bundles": [{"need": {"cpu": True, **SLOT}, "labels": []}]},
        {"bundles": [{"need": {"cpu:x": 1, **SLOT}, "labels": []}]},
        {"bundles": [{"need": SLOT, "labels": ["a:b c"]}]},
        {"bundles": [{"need": SLOT}]},
    ],
)
def test_a_damaged_request_is_not_read(damage: dict[str, Any]) -> None:
    whole = placement_group([{"cpu": 1}]).to_json()

    with pytest.raises((ValueError, KeyError)):
        Request.from_json({**whole, **damage})


def test_a_request_reads_as_written() -> None:
    assert format_request(request({"cpu": 1, "gpu": 0.5})) == "cpu=1, gpu=0.5"
    assert format_request(request({"cpu": 1, "labels": ["zone=a", "!spot"]})) == "cpu=1 on zone=a, not spot"
    group = placement_group([{}, {"cpu": 1, "gpu": 1}, {"cpu": 1, "gpu": 1}, {"cpu": 2}], "STRICT_SPREAD")
    assert format_request(group) == "STRICT_SPREAD of a slot + 2 × (cpu=1, gpu=1) + cpu=2"


def test_a_vector_of_tokens_reads_in_the_units_of_the_declaration() -> None:
    held = {"cpu": 5000, "memory": 2048, "slot": 10000, "gpu:GPU-a": 10000, "gpu:GPU-b": 10000, "license": 20000}

    assert as_declared(held) == {"cpu": 0.5, "gpu": 2.0, "license": 2.0, "memory": 2 * 2**30}


# --- labels ---


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (None, ()),
        ([], ()),
        (["spot"], ("spot",)),
        (["zone=a", "spot", "spot"], ("spot", "zone=a")),
        (("!spot",), ("!spot",)),
        ({"zone": "a"}, ("zone=a",)),
        ({"zone": "a", "spot": False, "fast": True}, ("!spot", "fast", "zone=a")),
        ("spot,zone=a", ("spot", "zone=a")),
        ("", ()),
        (["!zone=a", "zone=b"], ("!zone=a", "zone=b")),
    ],
)
def test_labels_are_read_from_a_list_a_dictionary_and_text(value: Any, labels: tuple[str, ...]) -> None:
    assert parse_labels(value, place="labels") == labels


@pytest.mark.parametrize("value", [3, [3], [""], ["a b"], ["=a"], ["a="], ["!!a"], {"zone": 3}, {3: "a"}, {"!a": "b"}])
def test_what_is_no_label_is_refused(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^labels: "):
        parse_labels(value, place="labels")


def test_a_label_wanted_and_not_wanted_is_refused() -> None:
    with pytest.raises(DeclarationError, match="'spot' is wanted and not wanted"):
        parse_labels(["spot", "!spot"], place="labels")
    with pytest.raises(DeclarationError, match="'spot' is wanted and not wanted"):
        with_labels(request({"cpu": 1, "labels": ["spot"]}), ("!spot",), place="labels")


def test_labels_are_shown_with_what_is_not_wanted_last() -> None:
    assert show_labels(["!a", "zone=a", "b"]) == "b, zone=a, not a"
    assert (is_label("zone=a"), is_label("!spot"), is_label(3)) == (True, False, False)


def test_labels_of_the_decorator_are_wanted_of_every_bundle() -> None:
    group = placement_group([{"cpu": 1}, {"cpu": 1, "labels": ["zone=a"]}])
    declared = experiment(resources=group, labels=["!spot"])(train).declaration

    assert declared.request is not None
    assert [bundle.labels for bundle in declared.request.bundles] == [("!spot",), ("!spot", "zone=a")]
    assert [bundle.labels for bundle in group.bundles] == [(), ("zone=a",)]


# --- functions of the configuration ---


def train(config: Any) -> Any:
    return config.lr


def other(config: Any) -> Any:
    return config


def test_a_function_of_the_configuration_gives_each_trial_its_request() -> None:
    config = Config(n=2, inner={"list": [1]})

    assert evaluate(lambda config: {"cpu": config.n}, config) == request({"cpu": 2})
    assert evaluate(lambda config: None, config) == request({"cpu": 1})
    assert evaluate(lambda config: {}, config) == request({"cpu": 1})
    group = placement_group([{"cpu": 1}, {"gpu": 1}])
    assert evaluate(lambda config: group, config) == group
    labelled = evaluate(lambda config: group, config, labels=("spot",))
    assert [bundle.labels for bundle in labelled.bundles] == [("spot",), ("spot",)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3, "resources: gave 3 (int), not a dictionary"),
        ([{"cpu": 1}], "gave [{'cpu': 1}] (list)"),
        ("cpu=1", "gave 'cpu=1' (str)"),
        ({"cpu": -1}, "resources.cpu: is -1"),
        ({"gpu": 1.5}, "resources.gpu: is 1.5"),
        ({"cpu": 0}, "asks for nothing"),
        (lambda config: {}, "gave <function"),
    ],
)
def test_what_a_function_gave_is_checked_like_a_declaration(answer: Any, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        evaluate(lambda config: answer, Config())

    assert words in str(caught.value)


def test_a_function_is_declared_and_not_called() -> None:
    def asks(config: Any) -> Any:
        raise AssertionError

    declared = experiment(resources=asks, labels=["spot"])(train).declaration

    assert (declared.request, declared.resource_function, declared.labels) == (None, asks, ("spot",))
    any_stage: Any = stage
    with pytest.raises(DeclarationError, match="resources: is a function of the configuration, which a stage"):
        any_stage(resources=asks)(train)


def test_an_async_function_is_not_yet() -> None:
    async def asks(config: Any) -> Any: ...

    with pytest.raises(NotYetError):
        parse_resources(asks)


# --- wrapping (row 64) ---


def test_wrapping_twice_leaves_the_original_and_the_first_as_they_are() -> None:
    original = experiment(param_space={"lr": 1}, labels=["spot"])(train)

    first = with_resources(original, {"cpu": 2})
    second = with_resources(original, placement_group([{"cpu": 1}, {"gpu": 1}]))
    third = with_resources(first, lambda config: {"cpu": 3})

    assert original.declaration.request == with_labels(request({"cpu": 1}), ("spot",), place="")
    assert first.declaration.request == with_labels(request({"cpu": 2}), ("spot",), place="")
    assert second.declaration.request is not None and len(second.declaration.request.bundles) == 2
    assert third.declaration.request is None
    assert {each.function for each in (original, first, second, third)} == {train}
    assert first.declaration.space == original.declaration.space


def test_wrapping_a_plain_function_gives_an_experiment_and_leaves_the_function() -> None:
    before = dict(vars(train))

    first, second = with_resources(train, {"cpu": 2}), with_resources(train, {"cpu": 3})

    assert type(first) is Experiment and first({"lr": 5}) == 5
    assert [each.declaration.request for each in (first, second)] == [request({"cpu": 2}), request({"cpu": 3})]
    assert vars(train) == before
    assert type(with_resources(stage(other), {"cpu": 2})) is Stage


def test_what_has_no_resources_is_not_wrapped() -> None:
    @flow
    def both() -> None: ...

    for target in (both, 3, Config):
        with pytest.raises(DeclarationError, match=r"with_resources takes|decorates a function"):
            any_wrap(target, {"cpu": 1})


def test_a_wrapped_experiment_travels_by_value() -> None:
    wrapped = with_resources(train, placement_group([{}, {"gpu": 1}]))

    assert cloudpickle.loads(cloudpickle.dumps(wrapped)).declaration == wrapped.declaration
