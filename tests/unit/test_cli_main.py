"""The command line without a server: help, usage errors, exit codes, plan, example, crashes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from flowctl.cli.main import ENTRIES, cli, run_command
from flowctl.dsl.errors import FlowctlError

SCHEMAS = Path(__file__).resolve().parents[2] / "src/flowctl/render/schemas"
SCRIPT = """
from flowctl import experiment, grid
@experiment(param_space={"x": grid([1, 2, 3]), "y": float("nan")}, num_samples=2, metric="loss", mode="min")
def train(config): pass
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A script of six trials; what importing it changed in the interpreter is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "sweep_of_six.py"
    path.write_text(SCRIPT)
    yield path
    sys.modules.pop("sweep_of_six", None)


def flowctl(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from flowctl.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=60)


def test_help_groups_commands_and_loads_none_of_them() -> None:
    code = "import sys\nfrom flowctl.cli.main import run_command\nrun_command(['--help'])\n"
    code += "print('LOADED', *[n for n in sys.modules if n in ('redis', 'celery', 'rich', 'fsspec')])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    sections = [
        line.rstrip(":") for line in done.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert [each for each in sections if each != "Options"] == ["Run", "See", "Steer", "Machines"]
    assert done.stdout.strip().splitlines()[-1] == "LOADED"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_command_teaches_with_an_example(entry: object, capsys: pytest.CaptureFixture[str]) -> None:
    name = entry.name  # type: ignore[attr-defined]

    assert run_command([name, "--help"]) == 0

    assert f"Example: flowctl {name}" in " ".join(capsys.readouterr().out.split())


READING = ("list", "status", "watch", "results", "best", "resources", "workers", "demand", "plan", "example")
LISTING = (*READING, "submit", "run", "cancel", "set")


@pytest.mark.parametrize("name", LISTING)
def test_command_that_lists_has_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command([name, "--help"])

    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["submt"], "no command 'submt'; did you mean 'submit'?"),
        (["plan", "--jsn", "x.py"], "--json"),
        (["plan"], "missing argument 'SCRIPT'"),
        (["run"], "give a SCRIPT, or --attach RUN"),
        (["run", "--attach", "x", "--name", "y"], "leave out --name"),
        (["plan", "no-such-file.py"], "there is no such file"),
        (["plan", "no-such-file.py", "--set", "x"], "there is no such file"),
        (["results", "--csv", "--json"], "choose one"),
        (["wait", "--timeout", "soon"], "not a valid float"),
    ],
)
def test_wrong_usage_exits_2_with_one_line(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("flowctl: ")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_set_without_value_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(script), "--set", "num_samples"]) == 2
    assert "write --set key=value" in capsys.readouterr().err

    assert run_command(["plan", str(script), "--set", "num_sample=3"]) == 2
    assert "did you mean 'num_samples'" in capsys.readouterr().err


def test_errors_exit_with_their_own_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Refused(FlowctlError):
        exit_code = 5

    def refuse(*_: object, **__: object) -> None:
        raise Refused("two\nlines", place="here", cure="do this")

    monkeypatch.setattr("flowctl.script.load_script", refuse)

    assert run_command(["plan", "x.py"]) == 5
    assert capsys.readouterr().err == "flowctl: here: two lines; do this\n"


def test_crash_is_one_line_and_a_report(tmp_path: Path) -> None:
    code = (
        "import flowctl.script\n"
        "def crash(*a, **k): raise ZeroDivisionError('by zero')\n"
        "flowctl.script.load_script = crash\n"
        "import sys; sys.argv = ['flowctl', 'plan', 'x.py']\n"
        "from flowctl.cli.main import main; main()\n"
    )

    def run(**env: str) -> "subprocess.CompletedProcess[str]":
        full = {**os.environ, "TMPDIR": str(tmp_path), **env}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=full, timeout=60)

    done = run()
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "unexpected ZeroDivisionError: by zero" in done.stderr
    reports = list(tmp_path.glob("flowctl-crash-*.txt"))
    assert len(reports) == 1 and str(reports[0]) in done.stderr
    assert "Traceback" in reports[0].read_text()

    assert "Traceback" in run(FLOWCTL_DEBUG="1").stderr


def test_plan_shows_trials_and_shapes(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(script)]) == 0

    out = capsys.readouterr().out
    assert "1 step, 6 trials" in out
    assert "6 × cpu 1" in out
    assert "sweep_of_six.py:3" in out


def test_plan_notes_a_list_of_numbers_that_was_meant_as_a_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = '{"lr": [0.1, 0.01], "layers": [64, 64], "names": ["a", "b"], "grid": grid([1, 2]), "in": {"x": [1, 2]}}'
    script = tmp_path / "lists_of_numbers.py"
    script.write_text(
        f"from flowctl import experiment, grid\n\n\n@experiment(param_space={space})\ndef train(config): ...\n"
    )

    assert run_command(["plan", str(script)]) == 0

    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert notes == [
        "note: lr is the list [0.1, 0.01] in every trial; to try each: grid([0.1, 0.01])",
        "note: in/x is the list [1, 2] in every trial; to try each: grid([1, 2])",
    ]


def test_plan_json_is_strict_and_has_its_shape(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(script), "--json"]) == 0

    text = capsys.readouterr().out
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    jsonschema.validate(document, json.loads((SCHEMAS / "plan.json").read_text()))
    assert document["trials"] == {"train": 6}


def test_plan_mermaid_is_a_graph(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(script), "--mermaid"]) == 0

    assert capsys.readouterr().out.splitlines() == ["flowchart TD", '    s_train[["train<br/>6 trials"]]']


def test_plan_needs_no_state_folder(script: Path, tmp_path: Path) -> None:
    home = tmp_path / "absent"

    assert flowctl("plan", str(script), env={"FLOWCTL_HOME": str(home)}).returncode == 0

    assert not home.exists()


def test_examples_are_listed_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["example"]) == 0
    assert "digits" in capsys.readouterr().out

    assert run_command(["example", "digits"]) == 0
    text = capsys.readouterr().out
    compile(text, "digits.py", "exec")

    assert run_command(["example", "digits", "--to", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new/digits.py").read_text() == text
    assert run_command(["example", "digits", "--to", str(tmp_path / "new")]) == 5
    assert run_command(["example", "digit"]) == 2
    assert "did you mean 'digits'" in capsys.readouterr().err


def test_every_entry_is_the_command_of_its_name() -> None:
    import click

    context = click.Context(cli)
    for entry in ENTRIES:
        command = cli.get_command(context, entry.name)
        assert command is not None and command.name == entry.name


ASKS = """
from flowctl import experiment, grid

def needs(config):
    print("asked")
    if config.n == 4:
        return "x"
    return {"cpu": config.n, "gpu": config.missing} if config.n == 3 else {"cpu": min(config.n, 1)}

@experiment(param_space={"n": grid([1, 2, 3, 4])}, num_samples=2, resources=needs)
def train(config): ...
"""


def test_plan_evaluates_a_resource_function_and_warns_where_it_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "asks.py"
    script.write_text(ASKS)

    assert run_command(["plan", str(script)]) == 0
    out = capsys.readouterr().out
    assert run_command(["plan", str(script), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert "4 × cpu 1" in out and "asked" not in out
    assert "warning: train: no request for 2 trials, the first is trial 2: " in out and "missing" in out
    assert "the first is trial 3: DeclarationError: in the function of its resources: resources: gave 'x'" in out
    jsonschema.validate(document, json.loads((SCHEMAS / "plan.json").read_text()))
    assert document["shapes"] == [{"needs": "cpu 1", "count": 4}]
    assert [(each["step"], each["trial"], each["count"]) for each in document["warnings"]] == [
        ("train", 2, 2),
        ("train", 3, 2),
    ]


def test_plan_looks_at_the_first_thousand_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "many.py"
    script.write_text(ASKS.replace("num_samples=2", "num_samples=300").replace("config.n == 4", "False"))

    assert run_command(["plan", str(script)]) == 0

    out = capsys.readouterr().out
    assert "200 × a function of the configuration, not looked at" in out
