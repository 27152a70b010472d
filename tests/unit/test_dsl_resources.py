"""Requests and offers in exact integers (rows 54, 55, 59)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.resources import format_resources, memory_mib, parse_offer, parse_resources


@pytest.mark.parametrize(
    ("value", "units"),
    [
        ({"cpu": 1}, {"cpu": 10000}),
        ({}, {"cpu": 10000}),
        ({"cpu": 0.5}, {"cpu": 5000}),
        ({"cpu": 0.29}, {"cpu": 2900}),
        ({"cpu": 1 / 3}, {"cpu": 3333}),
        ({"cpu": 0.0001}, {"cpu": 1}),
        ({"license": 1}, {"license": 10000}),
        ({"cpu": 0, "license": 2}, {"license": 20000}),
        ({"cpu": 2, "license": 0}, {"cpu": 20000}),
        ({"license": 0}, {"cpu": 10000}),
        ({"cpu": np.int64(2)}, {"cpu": 20000}),
        ({"cpu": np.float64(0.5)}, {"cpu": 5000}),
        ({"z": 1, "a-b_c": 1}, {"a-b_c": 10000, "z": 10000}),
    ],
)
def test_a_request_is_exact(value: dict[str, Any], units: dict[str, int]) -> None:
    request = parse_resources(value)

    assert request == units
    assert list(request) == sorted(request)


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
        ({"gpu": 1.5}, "resources.gpu: is 1.5; above 1"),
        ({"CPU": 1}, "write 'cpu'"),
        ({"GPU": 1}, "write 'gpu'"),
        ({"num_gpus": 1}, "write 'gpu'"),
        ({"License": 1}, "'License' cannot name"),
        ({"a b": 1}, "cannot name"),
        ({"1a": 1}, "cannot name"),
        ({"slot": 1}, "reserved"),
        ({1: 1}, "is not text"),
        (3, "not a dictionary"),
        ("cpu=1", "not a dictionary"),
        (None, "not a dictionary"),
        ({"memory": "16 apples"}, "not an amount of memory"),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_key(value: Any, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_resources(value, place="digits.py:3")

    assert words in str(caught.value)
    assert str(caught.value).startswith("digits.py:3: resources")
    assert not isinstance(caught.value, NotYetError)


@pytest.mark.parametrize("value", [{"gpu": 1}, {"cpu": 1, "memory": "16GiB"}, lambda config: {"cpu": 1}, [{"cpu": 1}]])
def test_devices_memory_functions_and_bundles_are_not_yet(value: Any) -> None:
    with pytest.raises(NotYetError, match="not yet"):
        parse_resources(value)


def test_memory_is_read_in_mib_rounded_up() -> None:
    amounts = {"16GiB": 16384, "500MB": 477, "1.5 Gi": 1536, 2**20: 1, 1: 1, "1k": 1}

    assert {amount: memory_mib(amount, place="m") for amount in amounts} == amounts


def test_an_offer_is_read_from_text() -> None:
    assert parse_offer("cpu=2, license=1,cpu2=0.5") == {"cpu": 20000, "cpu2": 5000, "license": 10000}
    for wrong, words in {
        "cpu": "NAME=AMOUNT",
        "": "offers nothing",
        "cpu=x": "not a number",
        "cpu=1,cpu=2": "twice",
    }.items():
        with pytest.raises(DeclarationError, match=words):
            parse_offer(wrong)
    with pytest.raises(DeclarationError, match="write 'cpu'"):
        parse_offer("CPU=2")
    with pytest.raises(NotYetError):
        parse_offer("gpu=1")


@given(st.integers(1, 10**9))
def test_every_four_digit_fraction_is_kept_exactly(units: int) -> None:
    assert parse_resources({"cpu": units / 10000}) == {"cpu": units}


def test_amounts_read_as_written() -> None:
    assert format_resources({"cpu": 10000, "license": 2500, "slot": 10000}) == "cpu=1, license=0.25"
    assert format_resources({"slot": 10000}) == "a slot"
    assert format_resources({"memory": 2048}) == "memory=2GiB"
