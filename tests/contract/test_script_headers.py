"""The headers of the scripts are true: held against the source, and against what the typed face passes."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import lua_scan
import pytest

from flowctl.broker import calls, scripts
from flowctl.broker.keys import KEYS

NAMES = scripts.names()
PARTS = sorted(path.stem for path in (Path(scripts.__file__).parent / "include").glob("*.lua"))
FUNCTIONS = [name for part in PARTS for name in re.findall(r"^local function (\w+)", lua_scan.included(part), re.M)]
ALL_FUNCTIONS = set(FUNCTIONS)


def passed_arguments() -> dict[str, list[str]]:
    """Per script the expressions that calls.py passes, as source text."""
    tree = ast.parse(inspect.getsource(calls))
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_run":
            name, *rest = node.args
            assert isinstance(name, ast.Constant) and name.value not in found
            found[str(name.value)] = [ast.unparse(argument) for argument in rest]
    return found


PASSED = passed_arguments()


def test_every_script_has_one_typed_method() -> None:
    assert sorted(PASSED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_args_are_what_the_typed_face_passes(name: str) -> None:
    declared = scripts.header(name).args

    assert len(PASSED[name]) == len(declared)
    for word, expression in zip(declared, PASSED[name], strict=True):
        noun = word.removesuffix("_json")
        assert re.search(rf"\b{noun}\b", expression), f"{name}: {word} is passed as {expression}"


@pytest.mark.parametrize("name", NAMES)
def test_args_are_what_the_script_reads(name: str) -> None:
    assert lua_scan.arguments(name) == list(range(1, len(scripts.header(name).args) + 1))


@pytest.mark.parametrize("name", NAMES)
def test_returns_are_the_words_that_the_script_answers(name: str) -> None:
    returns = scripts.header(name).returns

    assert len(set(returns)) == len(returns)
    assert set(returns) == lua_scan.replies(name)


@pytest.mark.parametrize("name", NAMES)
def test_uses_names_every_key_that_the_script_touches(name: str) -> None:
    uses = scripts.header(name).uses

    assert len(set(uses)) == len(uses)
    assert set(uses) == lua_scan.keys(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_a_script_touches_has_an_owner(name: str) -> None:
    owned = {re.sub(r"<.*", "*", key.pattern) for key in KEYS} | {"_kombu.*"}

    assert set(scripts.header(name).uses) <= owned


@pytest.mark.parametrize("name", NAMES)
def test_includes_resolve_and_come_before_what_stands_on_them(name: str) -> None:
    text = scripts.text(name)

    assert "@@TRANSITIONS@@" not in text
    assert scripts.header(name).summary.endswith(".")
    for function, source in lua_scan.reached(name).items():
        place = text.index(f"local function {function}(")
        first_use = min(match.start() for match in re.finditer(rf"\b{function}\(", text))
        assert place <= first_use, f"{name}: {function} is used before it is defined"
        assert source


@pytest.mark.parametrize("name", NAMES)
def test_what_a_script_calls_is_included(name: str) -> None:
    text = "\n".join([lua_scan.code(name), *lua_scan.reached(name).values()])
    called = set(re.findall(r"(?<![.:\w])(\w+)\(", text))

    assert not called & (ALL_FUNCTIONS - set(lua_scan.reached(name)))


def test_included_parts_hold_no_name_twice() -> None:
    assert len(FUNCTIONS) == len(ALL_FUNCTIONS)


def test_scripts_take_time_from_the_server_alone() -> None:
    for name in NAMES:
        assert "os.time" not in scripts.text(name)
        assert not [word for word in scripts.header(name).args if word == "now_ms"]
