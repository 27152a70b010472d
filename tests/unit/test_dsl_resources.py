"""Amounts and offers in exact integers; requests are in test_dsl_request.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.resources import format_resources, memory_mib, parse_amounts, parse_offer


def test_memory_is_read_in_mib_rounded_up() -> None:
    amounts = {"16GiB": 16384, "500MB": 477, "1.5 Gi": 1536, 2**20: 1, "2000KiB": 2, "0": 0, 0: 0}

    assert {amount: memory_mib(amount, place="m") for amount in amounts} == amounts


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("16", "'16' has no unit; did you mean \"16GiB\"?"),
        ("16gb", "'16gb' is not an amount of memory; did you mean \"16GB\"?"),
        (" 2.5 gib", 'did you mean "2.5GiB"?'),
        ("16m", 'did you mean "16MB"?'),
        (2, 'is 2 bytes, less than 1 MiB; a number is bytes: write "16GiB"'),
        (2**20 - 1, "less than 1 MiB"),
        ("100kB", "is '100kB', less than 1 MiB"),
        ("5B", "less than 1 MiB"),
    ],
)
def test_memory_that_was_meant_otherwise_is_refused(amount: object, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_amounts({"memory": amount}, place="resources")
    assert words in str(caught.value)
    with pytest.raises(DeclarationError, match="has no unit"):
        parse_offer("memory=16")


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


def test_an_offer_of_devices_and_memory_is_read() -> None:
    assert parse_offer("gpu=2,memory=16GiB,cpu=0") == {"cpu": 0, "gpu": 20000, "memory": 16384}
    assert parse_offer("gpu=auto,memory=auto,cpu=auto,license=2") == {"license": 20000}
    assert parse_offer("gpu=auto") == {}
    for wrong, words in {
        "gpu=0.5": "whole devices",
        "gpu=inf": "whole devices",
        "license=auto": "not a number",
        "memory=much": "not an amount of memory",
        "cpu=-1": "must not be negative",
    }.items():
        with pytest.raises(DeclarationError, match=words):
            parse_offer(wrong)


@given(st.integers(1, 10**9))
def test_every_four_digit_fraction_is_kept_exactly(units: int) -> None:
    assert parse_amounts({"cpu": units / 10000}, place="resources") == {"cpu": units}


def test_amounts_read_as_written() -> None:
    assert format_resources({"cpu": 10000, "license": 2500, "slot": 10000}) == "cpu=1, license=0.25"
    assert format_resources({"slot": 10000}) == "a slot"
    assert format_resources({"memory": 2048}) == "memory=2GiB"
