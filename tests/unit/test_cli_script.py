"""Loading a script: its own name, one line with the place for whatever is wrong, and the choice of what to run."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowctl.dsl.errors import DeclarationError, FlowctlError, ScriptError
from flowctl.script import compile_script, load_script

Write = Callable[[str], str]
HEAD = "from flowctl import experiment, flow, stage, grid\n"


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes `candidate.py` and gives its path; what it changed in the interpreter is undone."""
    path, modules = list(sys.path), set(sys.modules)

    def write(text: str) -> str:
        file = tmp_path / "candidate.py"
        file.write_text(text)
        return str(file)

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("candidate", "beside"):
            del sys.modules[name]


ONE = f"{HEAD}@experiment(param_space={{'x': grid([1, 2])}})\ndef train(config): pass\n"


def test_script_is_imported_under_its_own_name(write: Write) -> None:
    loaded = load_script(write(f"{ONE}name = __name__\nif __name__ == '__main__': raise SystemExit(3)\n"))

    assert loaded.module.name == "candidate"
    assert loaded.name == "train"
    assert sys.modules["candidate"] is loaded.module


def test_script_imports_modules_beside_it(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7\n")

    assert load_script(write(f"import beside\n{ONE}")).module.beside.VALUE == 7


def test_what_a_script_prints_goes_to_stderr(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    load_script(write(f"print('loading')\n{ONE}"))

    assert capsys.readouterr() == ("", "loading\n")


def test_script_sees_its_own_arguments_only(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flowctl", "run", "--name", "x"])
    path = write(f"import sys\nseen = list(sys.argv)\n{ONE}")

    assert load_script(path).module.seen == [path]
    assert sys.argv == ["flowctl", "run", "--name", "x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\ndef broken(:\n", r"candidate.py:2: syntax error"),
        ("x = 1\n\nx.append(2)\n", r"candidate.py:3: AttributeError: 'int' object has no attribute 'append'"),
        ("import json\n\njson.loads('{')\n", r"candidate.py:3: JSONDecodeError"),
        ("import not_installed_anywhere\n", r"candidate.py:1: ModuleNotFoundError: .*not_installed_anywhere"),
        ("x = 1\nraise SystemExit(4)\n", r"candidate.py:2: the script ends itself at import \(exit 4\)"),
        ("x = 1\n", r"candidate.py: it holds no experiment and no flow; decorate a function with @experiment"),
        (f"{ONE}train.submit()\n", r"candidate.py:4: a run is submitted while the script is imported; put it under"),
        (f"{ONE}train.run()\n", r"candidate.py:4: a run is submitted while the script is imported"),
        (
            f"{ONE}@experiment(param_space={{'x': 1}})\ndef other(config): pass\n",
            r"candidate.py: it holds 2 experiments: train, other; choose one, such as .*candidate.py:train",
        ),
        (f"{HEAD}@stage\ndef clean(): pass\n", r"only stages: clean; choose one, such as .*candidate.py:clean"),
    ],
)
def test_wrong_script_is_one_line_with_its_place(write: Write, text: str, expected: str) -> None:
    with pytest.raises(ScriptError, match=expected) as caught:
        load_script(write(text))

    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_unknown_keyword_names_line_and_nearest(write: Write) -> None:
    """B129."""
    text = f"{HEAD}@experiment(param_space={{}}, resoruces={{'gpu': 1}})\ndef train(config): pass\n"

    with pytest.raises(DeclarationError, match=r"candidate.py:2: .*'resoruces'.*did you mean 'resources'"):
        load_script(write(text))


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="there is no such file"):
        load_script(str(tmp_path / "absent.py"))
    with pytest.raises(ScriptError, match="this is a folder"):
        load_script(str(tmp_path))


def test_script_named_like_a_module_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(ONE)

    with pytest.raises(ScriptError, match="the name 'json' belongs to a module in use; rename the script"):
        load_script(str(tmp_path / "json.py"))


def test_name_chooses_among_several(write: Write) -> None:
    path = write(f"{ONE}@experiment(param_space={{'x': 1}})\ndef other(config): pass\n")

    assert load_script(f"{path}:other").name == "other"
    with pytest.raises(ScriptError, match="it holds no 'othr'; did you mean 'other'"):
        load_script(f"{path}:othr")
    with pytest.raises(ScriptError, match="'HEAD' is not an experiment"):
        load_script(f"{write('HEAD = 1' + chr(10) + ONE)}:HEAD")


def test_the_only_flow_wins_over_experiments(write: Write) -> None:
    path = write(f"{ONE}@flow\ndef whole(): train()\n")

    assert load_script(path).name == "whole"


def test_imported_experiments_are_not_the_scripts_own(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(ONE.replace("train", "borrowed"))

    assert load_script(write(f"from beside import borrowed\n{ONE}")).name == "train"


def test_error_in_a_flow_names_the_line(write: Write) -> None:
    loaded = load_script(write(f"{ONE}@flow\ndef whole():\n    train()\n    [][1]\n"))

    with pytest.raises(ScriptError, match=r"candidate.py:7: IndexError"):
        compile_script(loaded, overrides={}, parameters={})


def test_a_failed_import_leaves_no_module(write: Write) -> None:
    with pytest.raises(FlowctlError):
        load_script(write("1 / 0\n"))

    assert "candidate" not in sys.modules


@pytest.mark.parametrize("name", ["redis.py", "celery/__init__.py"])
def test_a_file_that_hides_a_library_of_flowctl_is_named(write: Write, tmp_path: Path, name: str) -> None:
    script = write(ONE)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    hiding = tmp_path / name.removesuffix("/__init__.py")

    with pytest.raises(ScriptError) as caught:
        load_script(script)

    assert str(caught.value) == f"{hiding}: it hides a library that flowctl uses; rename {hiding}"
    assert str(tmp_path) not in sys.path
