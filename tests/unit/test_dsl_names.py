"""Names and ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.dsl.errors import DeclarationError, RefusedError
from flowctl.dsl.names import (
    RUN_ID,
    STEP_NAME,
    check_run_id,
    check_step_name,
    did_you_mean,
    nearest,
    parse_reference,
    parse_unit,
    run_id,
    unit_id,
)


@pytest.mark.parametrize("name", ["digits", "a.b_c-1", "x" * 80, "7a", "_7"])
def test_run_id_of_a_safe_name_is_the_name(name: str) -> None:
    assert run_id(name) == name


@pytest.mark.parametrize(
    "name", ["naïve/测试:run", "..", ".", "../../etc", "x" * 81, "a b", "ключ", "a\n", "-x", "--json", ".hidden", "7"]
)
def test_run_id_of_any_other_name_is_a_slug_with_a_digest(name: str) -> None:
    identity = run_id(name)

    assert RUN_ID.fullmatch(identity)
    assert identity.rpartition("-")[2].isalnum() and len(identity.rpartition("-")[2]) == 8


@given(st.text(min_size=1, max_size=200))
def test_run_id_is_safe_short_and_idempotent(name: str) -> None:
    identity = run_id(name)

    assert RUN_ID.fullmatch(identity) and identity[0] not in "-." and not identity.isdigit()
    assert run_id(identity) == identity == check_run_id(identity)


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_run_id_refuses_empty_and_endless_names(name: str) -> None:
    with pytest.raises(RefusedError, match="1 to 200"):
        run_id(name)


@given(st.from_regex(RUN_ID, fullmatch=True), st.from_regex(STEP_NAME, fullmatch=True), st.integers(0, 10**8))
def test_unit_id_reads_back(run: str, step: str, index: int) -> None:
    if not run.strip("."):
        return

    assert parse_unit(unit_id(run, step, index)) == (run, step, index)


@pytest.mark.parametrize("text", ["", "a:b", "a:b:-1", "a:b:01", "a:b:1\n", "a/b:c:1", "a:b:c:1", "..:b:1", "a:é:1"])
def test_parse_unit_refuses_what_was_not_written_by_us(text: str) -> None:
    with pytest.raises(RefusedError, match="unit"):
        parse_unit(text)


def test_parse_reference_reads_what_a_person_types() -> None:
    assert parse_reference("7") == (None, None, 7)
    assert parse_reference("digits/7") == ("digits", None, 7)
    assert parse_reference("digits/train-2/7") == ("digits", "train-2", 7)
    for wrong in ("", "digits", "digits/", "a/b/c/1", "/7", "a//7"):
        with pytest.raises(RefusedError):
            parse_reference(wrong)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "é", "x" * 61, "a\n", "<lambda>"])
def test_check_step_name_refuses(name: str) -> None:
    with pytest.raises(DeclarationError, match="name a step"):
        check_step_name(name)


def test_nearest_name_ignores_case_and_swapped_letters() -> None:
    assert nearest("resoruces", ["resources", "retry"]) == "resources"
    assert nearest("GPU", ["cpu", "gpu"]) == "gpu"
    assert nearest("zzz", ["cpu", "gpu"]) is None
    assert did_you_mean("zzz", ["b", "a"], kind="keys") == "known keys: a, b"
    assert did_you_mean("zzz", [], kind="keys") == "there are no keys"
