"""User functions as bytes: what travels by value, and how a refusal names what is at fault."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from flowctl.dsl.compile import StepCode, compile_target
from flowctl.storage.errors import PayloadError
from flowctl.storage.payload import pickle_code, unpickle_code
from flowctl.storage.script_modules import modules_of

Import = Callable[..., ModuleType]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Writes modules into one folder and imports the first."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**sources: str) -> ModuleType:
        for name, text in sources.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(sources)))

    yield make
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def run_elsewhere(data: bytes, tmp_path: Path, argument: object) -> object:
    """The result of the pickled function in a fresh process that sees no script."""
    (tmp_path / "payload").write_bytes(data)
    code = (
        "import json, sys; from flowctl.storage.payload import unpickle_code; "
        "f, stop = unpickle_code(open(sys.argv[1], 'rb').read()); print(json.dumps(f(json.loads(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "payload"), json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_script_and_its_neighbours_travel_by_value(script: Import, tmp_path: Path) -> None:
    sources = {
        "script_a": "from helper_a import twice\nfrom pack_a.inner import K\n"
        "def train(c):\n    return twice(c), K().go()",
        "helper_a": "import json\nN = 2\ndef twice(x):\n    return json.loads(json.dumps(x)) * N\n",
        "pack_a/__init__": "",
        "pack_a/inner": "class K:\n    def go(self):\n        return 'inner'\n",
    }
    module = script(**sources)

    data = pickle_code({"train": StepCode(module.train, ())}, module)["train"]

    assert run_elsewhere(data, tmp_path, 21) == [42, "inner"]
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_installed_modules_beside_the_script_travel_by_reference(script: Import, tmp_path: Path) -> None:
    (tmp_path / "venv/lib/site-packages").mkdir(parents=True)
    (tmp_path / "venv/lib/site-packages/installed_b.py").write_text("def f(x):\n    return x\n")
    sys.path.append(str(tmp_path / "venv/lib/site-packages"))
    try:
        module = script(script_b="import installed_b, numpy, flowctl\ndef train(c):\n    return installed_b.f(c)\n")
        names = [one.__name__ for one in modules_of(module)]
    finally:
        sys.path.remove(str(tmp_path / "venv/lib/site-packages"))

    assert names == ["script_b"]


def test_flowctl_itself_travels_by_reference() -> None:
    root = ModuleType("script_c")
    root.__file__ = str(Path(importlib.import_module("flowctl").__file__ or "").parents[2] / "script_c.py")

    assert not [one for one in modules_of(root) if one.__name__.partition(".")[0] == "flowctl"]


def test_stop_functions_travel_with_their_step(script: Import) -> None:
    module = script(script_d="def train(c): ...\ndef stop(row):\n    return row['loss'] < 1\n")

    _, stop = unpickle_code(pickle_code({"train": StepCode(module.train, (module.stop,))}, module)["train"])

    assert [one({"loss": 0}) for one in stop] == [True]


CULPRITS = [
    ("import threading\nlock = threading.Lock()\ndef train(c):\n    return lock", "global 'lock' (_thread.lock)"),
    ("def make(f):\n    def train(c):\n        return f\n    return train\ntrain = make(x for x in ())",
     "closure variable 'f' (generator)"),
    ("import threading\nlocks = {'a': [1, threading.Lock()]}\ndef train(c):\n    return locks",
     "global 'locks', item 'a', item 1 (_thread.lock)"),
    ("import threading\nclass M:\n    def __init__(self):\n        self.lock = threading.Lock()\nm = M()\n"
     "def train(c):\n    return m", "global 'm', attribute 'lock' (_thread.lock)"),
    ("import threading\nlock = threading.Lock()\ndef helper():\n    return lock\ndef train(c):\n    return helper()",
     "global 'helper', global 'lock' (_thread.lock)"),
    ("def train(c, rows=(x for x in ())):\n    return rows", "default of argument 'rows' (generator)"),
    ("class Own:\n    def __reduce__(self):\n        raise RuntimeError('no')\nown = Own()\n"
     "def train(c):\n    return own",
     "global 'own' (script_e.Own)"),
    ("import threading\nlock = threading.Lock()\ndef train(c):\n    def inner():\n        return lock\n"
     "    return inner",
     "global 'lock' (_thread.lock)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "culprit"), CULPRITS)
def test_culprit_is_named(script: Import, source: str, culprit: str) -> None:
    module = script(script_e=source)

    with pytest.raises(PayloadError) as caught:
        pickle_code({"train": StepCode(module.train, ())}, module)

    assert str(caught.value) == f"step 'train': {culprit} cannot be pickled; create it inside the function"
    assert caught.value.exit_code == 2
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_culprit_in_a_stop_function_is_named(script: Import) -> None:
    module = script(
        script_f="import threading\nlock = threading.Lock()\ndef train(c): ...\ndef stop(row):\n    return lock\n"
    )

    with pytest.raises(PayloadError, match=r"its stop function: global 'lock'"):
        pickle_code({"train": StepCode(module.train, (module.stop,))}, module)


def test_endless_structure_ends(script: Import) -> None:
    module = script(
        script_g="import threading\nring = [threading.Lock()]\nring.insert(0, ring)\n"
        "wide = [ring] * 10000\ndef train(c):\n    return wide\n"
    )

    with pytest.raises(PayloadError, match=r"global 'wide'.*_thread\.lock"):
        pickle_code({"train": StepCode(module.train, ())}, module)


FLOW = """
from flowctl.dsl.experiment import experiment
from flowctl.dsl.stage import stage
from flowctl.dsl.flow import flow

@experiment(param_space={"lr": 0.1}, num_samples=2)
def train(config):
    return [type(one).__name__ for one in (train, prepare, pipeline)]

@stage()
def prepare():
    return str(train)

@flow()
def pipeline():
    prepare()
    return train()
"""


def test_declared_objects_as_globals_travel(script: Import, tmp_path: Path) -> None:
    module = script(script_h=FLOW)
    compiled = compile_target(module.pipeline)

    payload = pickle_code(compiled.code, module)

    assert set(payload) == {step.code for step in compiled.plan.steps}
    key = next(step.code for step in compiled.plan.steps if step.kind == "experiment")
    assert run_elsewhere(payload[key], tmp_path, {}) == ["Experiment", "Stage", "Flow"]
    assert pickle.loads(payload[key])


def test_modules_that_import_each_other_travel(script: Import, tmp_path: Path) -> None:
    module = script(
        script_i="import circle_a\ndef train(c):\n    return circle_a.go()",
        circle_a="import circle_b\nK = 3\ndef go():\n    return circle_b.go()",
        circle_b="import circle_a\ndef go():\n    return circle_a.K",
    )

    assert run_elsewhere(pickle_code({"train": StepCode(module.train, ())}, module)["train"], tmp_path, 0) == 3


LATE = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import only_typed
def train(c):
    import late_a
    from late_pack.sub import inner
    return [late_a.N, inner.V, late_a.__file__]
if __name__ == "__main__":
    import only_main
"""


def test_what_a_function_imports_travels_as_text(script: Import, tmp_path: Path) -> None:
    """Nothing of it is imported where the script is submitted."""
    sources = {
        "script_j": LATE,
        "late_a": "import late_b\nN = late_b.N\nif __name__ == '__main__':\n    raise SystemExit(3)\n",
        "late_b": "import json, absent_here\nN = 5\n",
        "late_pack/sub/__init__": "from ..base import V as W\n",
        "late_pack/sub/inner": "from . import W\nV = W\n",
        "late_pack/base": "V = 7\n",
        "only_typed": "",
        "only_main": "",
        "json": "",
        "unrelated": "",
    }
    module = script(**sources)

    data = pickle_code({"train": StepCode(module.train, ())}, module)["train"]

    assert "late_a" not in sys.modules
    travelled = set(pickle.loads(data)[1])
    assert travelled == {
        "script_j.py",
        "late_a.py",
        "late_b.py",
        "late_pack/sub/__init__.py",
        "late_pack/sub/inner.py",
        "late_pack/base.py",
    }
    (tmp_path / "payload").write_bytes(data)
    code = (
        "import json, pickle, sys, types; sys.modules['absent_here'] = types.ModuleType('absent_here'); "
        "from flowctl.workers.script_finder import install; "
        "code, sources, names = pickle.load(open(sys.argv[1], 'rb')); install(sources, names); "
        "print(json.dumps(pickle.loads(code)[0]({})))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "payload")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)
    assert done.stdout == '[5, 7, "late_a.py"]\n', done.stderr


HOLDS_A_LOCK = "import threading, other_k\nLOCK = threading.Lock()\nclass K: ...\ndef go():\n    return other_k.N\n"


@pytest.mark.parametrize(
    "text",
    [
        "import holder_k\nfrom holder_k import K\ndef train(c):\n"
        "    import holder_k as again\n"
        "    with holder_k.LOCK:\n        return [holder_k.go(), K is holder_k.K is again.K, holder_k.__file__]\n",
        "from pack_k import inner\ndef train(c):\n"
        "    with inner.holder_k.LOCK:\n        return [inner.holder_k.go(), True, inner.holder_k.__file__]\n",
    ],
)
def test_a_module_that_holds_a_lock_is_imported_anew(script: Import, tmp_path: Path, text: str) -> None:
    """Also where the worker has another module of that name."""
    sources = {"script_k": text, "holder_k": HOLDS_A_LOCK, "other_k": "N = 4\n", "pack_k/__init__": ""}
    module = script(**sources, **{"pack_k/inner": "import holder_k\n"})

    data = pickle_code({"train": StepCode(module.train, ())}, module)["train"]

    assert cloudpickle.list_registry_pickle_by_value() == set()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "holder_k.py").write_text("raise SystemExit('the wrong module')\n")
    (foreign / "payload").write_bytes(data)
    code = (
        "import json, pickle, sys; from flowctl.workers.script_finder import install; "
        "code, sources, names = pickle.load(open('payload', 'rb')); install(sources, names); "
        "print(json.dumps(pickle.loads(code)[0]({})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=foreign, timeout=60)
    assert done.stdout == '[4, true, "holder_k.py"]\n', done.stderr


def test_what_holds_a_lock_in_the_script_is_named_beside_a_module_that_does(script: Import) -> None:
    module = script(
        script_l="import threading, holder_l\nmine = threading.Lock()\ndef train(c):\n    return holder_l.LOCK, mine\n",
        holder_l="import threading\nLOCK = threading.Lock()\n",
    )

    with pytest.raises(PayloadError, match=r"global 'mine' \(_thread\.lock\)"):
        pickle_code({"train": StepCode(module.train, ())}, module)
