"""Bad input is told in one line that names the place and the cure, and leaves no trace on server and storage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import celery
import pytest
from cluster import Cluster
from script import script, trains

import flowctl

pytestmark = pytest.mark.xdist_group("bad-input")

PACKAGES = os.pathsep.join(str(Path(module.__file__ or "").parents[1]) for module in (flowctl, celery))

GOOD = """
@experiment(param_space={"x": grid([1, 2]), "net": {"lr": 0.1}}, metric="m", mode="max")
def train(config):
    report({"m": config.x})
"""
TWO = """
@experiment
def first(config): pass

@experiment
def second(config): pass
"""
FLOW = """
@stage
def prepare(size): return size

@flow
def pipeline(size=3): prepare(size)
"""


class Bad(NamedTuple):
    """A script, what is said on the command line, and what the one line must name."""

    text: str
    words: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    code: int = 2
    part: str = ""


def declared(keywords: str, *words: str) -> Bad:
    """An experiment with these keywords."""
    return Bad(script(f"@experiment({keywords})\ndef train(config): pass\n"), words)


def given(*arguments: str, words: tuple[str, ...], code: int = 2, text: str = GOOD, part: str = "") -> Bad:
    """A good script with something bad on the command line."""
    return Bad(script(text), words, arguments, code, part)


SCRIPTS = {
    "syntax error": Bad("x = 1\ndef train(:\n", ("bad.py:2", "syntax error")),
    "bad indentation": Bad("def f():\nreturn 1\n", ("bad.py:2", "syntax error")),
    "no text": Bad("x = '\x00'\n", ("bad.py",)),
    "missing module": Bad("\nimport no_such_module\n", ("bad.py:2", "no_such_module")),
    "raises at import": Bad("x = 1\ny = x / 0\n", ("bad.py:2", "ZeroDivisionError")),
    "ends itself": Bad("import sys\nsys.exit(0)\n", ("bad.py:2", "__main__")),
    "nothing in it": Bad("x = 1\n", ("bad.py", "no experiment", "flowctl example")),
    "only a plain function": Bad("def train(config): pass\n", ("bad.py", "@experiment")),
    "only stages": Bad(script("@stage\ndef prepare(): pass\n"), ("only stages", "bad.py:prepare")),
    "two without a name": Bad(script(TWO), ("first, second", "bad.py:first")),
    "unknown name": Bad(script(TWO), ("'secnd'", "second"), part=":secnd"),
    "name of something else": Bad(script(TWO), ("'mark'", "first"), part=":mark"),
    "submits at import": Bad(script(f"{GOOD}\ntrain.submit()\n"), ("bad.py:", "imported", "__main__")),
    "submits in a flow": Bad(
        script(f"{GOOD}\n@flow\ndef pipeline():\n    train.submit()\n"), ("bad.py:", "inside the flow")
    ),
    "an output as a condition": Bad(
        script("@stage\ndef a(): pass\n@flow\ndef pipeline():\n    if a(): a()\n"), ("bad.py:", "condition", "stage")
    ),
    "a flow without steps": Bad(script("@flow\ndef pipeline(): pass\n"), ("bad.py:", "no stage")),
    "inputs without a flow": Bad(script("@experiment\ndef train(config, data): pass\n"), ("bad.py:", "@flow")),
    "no configuration": Bad(script("@experiment\ndef train(): pass\n"), ("bad.py:", "def train(config)")),
}

DECLARATIONS = {
    "unknown keyword": declared("max_retries=4", "'max_retries'", "max_failures"),
    "misspelt keyword": declared("resoruces={'gpu': 1}", "'resoruces'", "did you mean 'resources'"),
    "empty grid": declared("param_space={'x': grid([])}", "grid", "empty", "give it a value"),
    "grid of no list": declared("param_space={'x': grid(3)}", "grid", "list", "grid([1, 2])"),
    "empty choice": declared("param_space={'x': choice([])}", "choice", "empty"),
    "empty range": declared("param_space={'x': uniform(1, 1)}", "uniform", "range is empty", "lower < upper"),
    "range turned round": declared("param_space={'x': randint(5, 2)}", "randint", "range is empty", "lower < upper"),
    "logarithm of zero": declared("param_space={'x': loguniform(0, 1)}", "loguniform", "above 0"),
    "bound off the steps": declared("param_space={'x': quniform(0, 1, 0.3)}", "quniform", "not a multiple"),
    "no samples": declared("num_samples=0", "num_samples", "at least 1"),
    "half a sample": declared("num_samples=1.5", "num_samples", "whole number"),
    "metric without mode": declared("metric='acc'", "metric", "'acc'", 'mode="max"'),
    "mode without metric": declared("mode='max'", "mode", "metric"),
    "unknown mode": declared("metric='acc', mode='maximum'", "mode", 'mode="max"'),
    "negative resources": declared("resources={'cpu': -1}", "resources.cpu", "negative"),
    "no resources": declared("resources={'cpu': 0}", "resources", "nothing", '{"cpu": 1}'),
    "resources as a number": declared("resources=2", "resources", '{"cpu": 1}'),
    "resources as text": declared("resources={'cpu': '2'}", "resources.cpu", "not a number"),
    "upper case resource": declared("resources={'CPU': 1}", "'CPU'", "'cpu'"),
    "smaller than a token": declared("resources={'cpu': 0.00001}", "resources.cpu", "0.0001"),
    "resources that are no number": declared("resources={'cpu': float('nan')}", "resources.cpu", "finite"),
    "fraction above a device": declared("resources={'gpu': 1.5}", "resources.gpu", "whole devices"),
    "memory as words": declared("resources={'memory': '16 apples'}", "resources.memory", "16GiB"),
    "a list as resources": declared("resources=[{'cpu': 1}]", "resources", "placement_group"),
    "a function without a configuration": declared("resources=lambda: {}", "resources", "configuration"),
    "a group of nothing": Bad(
        script("from flowctl import placement_group\nplacement_group([{}, {}])\n"), ("bad.py:", "bundles[1]", "nothing")
    ),
    "unknown strategy": Bad(
        script("from flowctl import placement_group\nplacement_group([{'cpu': 1}], strategy='PAK')\n"),
        ("bad.py:", "'PAK'", "did you mean 'PACK'"),
    ),
    "no label": declared("labels=['a b']", "labels", "'a b'"),
    "a label and its opposite": declared("labels=['spot', '!spot']", "labels", "'spot'", "leave one"),
    "negative concurrency": declared("max_concurrent_trials=-1", "max_concurrent_trials", "0 means no limit"),
    "priority out of bounds": declared("priority=5000", "priority", "at most 1000"),
    "no patience": declared("pending_timeout_s=0", "pending_timeout_s", "above 0"),
    "enforcing what is not asked for": declared("enforce={'memory'}", "enforce", "'memory'", "ask for it"),
    "negative failures": declared("max_failures=-2", "max_failures", "-1"),
    "half a failure": declared("max_failures=1.5", "max_failures", "whole number"),
    "failures as text": declared("max_failures='3'", "max_failures", "whole number"),
    "stop that is never reached": declared("stop={'epoch': float('nan')}", "stop.epoch", "reaches"),
    "stop of no condition": declared("stop=5", "stop", '{"epoch": 50}'),
    "object in the space": declared("param_space={'net': {'opt': object()}}", "param_space.net.opt", "object"),
    "set in the space": declared("param_space={'x': {1, 2}}", "param_space.x", "sorted list"),
    "not yet: a time limit": declared("timeout_s=5", "timeout_s", "not yet", "leave it out"),
}

COMMANDS = {
    "unknown --set key": given("--set", "num_sample=3", words=("--set num_sample=3", "did you mean 'num_samples'")),
    "unknown key of the space": given("--set", "param_space.net.lrr=1", words=("--set param_space.net.lrr=1", "'lr'")),
    "--set without a value": given("--set", "num_samples", words=("--set num_samples", "key=value")),
    "--set twice": given("--set", "num_samples=1", "--set", "num_samples=2", words=("num_samples", "twice")),
    "--set no samples": given("--set", "num_samples=0", words=("--set num_samples=0", "at least 1")),
    "--set no number": given("--set", "num_samples=many", words=("--set num_samples=many", "whole number")),
    "--set negative concurrency": given(
        "--set", "max_concurrent_trials=-1", words=("--set max_concurrent_trials=-1", "no limit")
    ),
    "--set negative resources": given("--set", "resources.cpu=-1", words=("--set resources.cpu=-1", "negative")),
    "--set of an unknown step": given("--set", "trial.num_samples=1", words=("--set trial.num_samples=1", "train")),
    "parameter without a flow": given("-p", "size=3", words=("bad.py:", "parameters", "--set")),
    "unknown parameter": given("-p", "sise=3", text=FLOW, words=("sise", "size")),
    "unknown option": given("--stroage", "/tmp", words=("--stroage", "--storage")),
    "unwritable storage": given("--storage", "/proc/flowctl", words=("file:///proc/flowctl", "storage"), code=5),
    "storage below a file": given("--storage", "FILE/runs", words=("FILE/runs", "a file stands"), code=5),
    "storage of an unknown kind": given("--storage", "nope://b/runs", words=("nope://", "file:///"), code=5),
    "storage of one process": given("--storage", "memory://b/runs", words=("memory://b/runs", "folder"), code=5),
    "storage with a query": given("--storage", "file:///tmp/x?a=1", words=("file:///tmp/x?a=1", "query"), code=5),
    "empty storage": given("--storage", "", words=("storage", "empty"), code=5),
    "name in use": given("--name", "taken", words=("'taken'", "exists already", "--name"), code=5),
    "name in use on storage": given("--name", "stored", words=("'stored'", "exists already", "--name"), code=5),
    "empty name": given("--name", "", words=("name", "1 to 200"), code=5),
    "long name": given("--name", "n" * 201, words=("name", "1 to 200"), code=5),
}

UNPICKLABLE = {
    "lock": ("import threading\nlock = threading.Lock()", "lock", "'lock'"),
    "socket": ("import socket\nplug = socket.socket()", "plug.close()", "'plug'"),
    "generator": ("numbers = (i for i in range(3))", "next(numbers)", "'numbers'"),
    "open file to write": ("out = open(os.devnull, 'w')", "out.write('x')", "'out'"),
    "inside an object": ("class Net: pass\nnet = Net()\nnet.lock = threading.Lock()", "print(net)", "'net'"),
}


class Trace(NamedTuple):
    """Everything that a submission could have left."""

    keys: list[str]
    files: list[Path]


def trace_of(cluster: Cluster) -> Trace:
    """The key list of the server, and the listing of the storage."""
    return Trace(sorted(cluster.client.keys("*")), sorted(cluster.root.joinpath("storage").rglob("*")))


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A server without a worker that knows a run named `taken`; on the storage there is also one named `stored`."""
    cluster = Cluster()
    good = script(GOOD)
    for name in ("taken", "stored"):
        cluster.submit(good, "--name", name)
    cluster.client.delete("fc:run:stored", "fc:name:stored")
    cluster.client.zrem("fc:runs", "stored")
    (cluster.root / "FILE").write_text("a file")
    yield cluster
    cluster.close(check=False)


def refused(site: Cluster, bad: Bad, command: str = "submit") -> str:
    """The one line that is said; nothing else has happened."""
    path = site.root / "bad.py"
    path.write_text(bad.text)
    before = trace_of(site)

    said = site.flowctl(command, f"bad.py{bad.part}", *bad.arguments)

    assert said.stdout == "" and len(said.stderr.splitlines()) == 1, said.stdout + said.stderr
    assert said.stderr.startswith("flowctl: ") and "Traceback" not in said.stderr, said.stderr
    assert "unexpected" not in said.stderr, said.stderr
    assert said.returncode == bad.code, said.stderr
    for word in bad.words:
        assert word in said.stderr, f"{word!r} is not in: {said.stderr}"
    assert trace_of(site) == before
    return said.stderr


def ids(cases: dict[str, Any]) -> dict[str, Any]:
    return {"argvalues": list(cases.values()), "ids": [name.replace(" ", "-") for name in cases]}


@pytest.mark.parametrize("bad", **ids(SCRIPTS))
def test_script_that_cannot_run_is_refused_with_its_place(site: Cluster, bad: Bad) -> None:
    """Acceptance 7."""
    refused(site, bad)


@pytest.mark.parametrize("bad", **ids(DECLARATIONS))
def test_wrong_declaration_is_refused_with_line_and_keyword(site: Cluster, bad: Bad) -> None:
    """Acceptance 7; B129: an option that would have no effect is an error."""
    assert "bad.py:" in refused(site, bad)


@pytest.mark.parametrize("bad", **ids(COMMANDS))
def test_wrong_command_line_is_refused_with_the_cure(site: Cluster, bad: Bad) -> None:
    """Acceptance 7."""
    refused(site, bad)


@pytest.mark.parametrize(("setup", "use", "name"), list(UNPICKLABLE.values()), ids=list(UNPICKLABLE))
def test_function_that_cannot_be_pickled_is_refused_naming_what_in_it(
    site: Cluster, setup: str, use: str, name: str
) -> None:
    """Acceptance 7."""
    text = script(f"{setup}\n@experiment\ndef train(config):\n    {use}\n")

    said = refused(site, Bad(text, ("'train'", name, "cannot be pickled", "inside the function")))

    assert "object at 0x" not in said


@pytest.mark.parametrize("case", ["syntax error", "nothing in it", "two without a name"])
def test_run_and_plan_refuse_what_submit_refuses(site: Cluster, case: str) -> None:
    """Acceptance 7."""
    for command in ("run", "plan"):
        refused(site, SCRIPTS[case], command)


def test_missing_script_and_folder_are_told_apart(site: Cluster) -> None:
    """Acceptance 7."""
    missing, folder = site.flowctl("submit", "nowhere.py"), site.flowctl("submit", "side")

    assert (missing.returncode, folder.returncode) == (2, 2)
    assert "nowhere.py" in missing.stderr and "no such file" in missing.stderr
    assert "folder" in folder.stderr
    assert [len(said.stderr.splitlines()) for said in (missing, folder)] == [1, 1]


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("FLOWCTL_BROKER_URL", "redis://127.0.0.1:1", 4, ("127.0.0.1:1", "refused")),
        ("FLOWCTL_BROKER_URL", "redis:/127.0.0.1", 2, ("FLOWCTL_BROKER_URL",)),
        ("FLOWCTL_LEASE_TTL_S", "1", 2, ("FLOWCTL_LEASE_TTL_S", "at least 5")),
        ("FLOWCTL_LEASE_TTL_S", "soon", 2, ("FLOWCTL_LEASE_TTL_S", "seconds")),
        ("FLOWCTL_STORAGE", "/proc/flowctl", 5, ("/proc/flowctl",)),
        ("FLOWCTL_JOIN", "no-token", 2, ("FLOWCTL_JOIN",)),
    ],
)
def test_setting_that_cannot_be_used_is_named(
    site: Cluster, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: int, words: tuple[str, ...]
) -> None:
    """Acceptance 7: exit code 4 for a server that cannot be reached."""
    monkeypatch.setitem(site.env, variable, value)

    refused(site, Bad(script(GOOD), words, code=code))


def test_space_with_keys_that_json_would_change_is_refused_naming_the_key(site: Cluster) -> None:
    """B128: keys keep their type or are refused, never changed in silence."""
    for space, key in (
        ("{'layers': {0: 64, 1: choice([32, 16])}}", "key 0"),
        ("{('a', 1): 5}", "('a', 1)"),
        ("{'a': {None: 1}}", "None"),
        ("{'a': [{True: 1}]}", "True"),
    ):
        text = script(f"@experiment(param_space={space})\ndef train(config): pass\n")
        said = refused(site, Bad(text, ("bad.py:", "param_space", key)))
        assert "int" in said or "tuple" in said or "None" in said or "bool" in said


def test_class_in_the_space_is_refused_naming_the_key(site: Cluster) -> None:
    """B126: a dataclass or an enum in the space is refused with what to write instead."""
    classes = """
    from dataclasses import dataclass
    from enum import Enum
    class Color(Enum): RED = 1
    @dataclass
    class Cfg:
        c: Color
        n: object
    @experiment(param_space={SPACE}, num_samples=4)
    def train(config): report({"n": 1})
    if __name__ == "__main__": print("must not run")
    """
    for space in ('{"cfg": Cfg(Color.RED, choice([1, 2]))}', '{"cfg": {"c": Color.RED}}', '{"cfg": grid([Color.RED])}'):
        refused(site, Bad(script(classes.replace("{SPACE}", space)), ("bad.py:", "param_space.cfg")))


def test_space_without_trials_is_refused(site: Cluster) -> None:
    """B61: an empty sweep is refused at submit, wherever the emptiness is; it never waits."""
    for keywords in ("param_space={'a': {'x': grid([])}}", "param_space={'x': grid([1, grid([])])}", "num_samples=0"):
        refused(site, declared(keywords))


@pytest.fixture(params=["registered", "real"])
def other_worker(site: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A worker named `other` under another minor version, which is given: as the server sees one, and a real one."""
    if request.param == "real":
        found = other_python()
        if found is None:
            pytest.skip("no other Python here can import what a worker needs")
        command = [f"python{found}", "-c", "from flowctl.cli.main import main; main()", "worker", "--name", "other"]
        worker = site.worker(cpu=1, name="other", command=command, env={"PYTHONPATH": PACKAGES})
        yield found
        worker.stop()
        return
    fields = {"worker": "other", "host": "h", "machine": "m", "pid": "1", "queue": "fcq.other", "template": "@@UNIT@@"}
    more = {"python": "3.9", "keys": "[]", "slots": "1", "version": "0", "only": ""}
    declared = {"cpu": 10_000, "slot": 10_000}
    calls = site.broker.calls
    calls.worker_register("b0", fields={**fields, **more}, detected={}, declared=declared, running=[], swept=True)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(1):
            calls.worker_beat("b0", accepting=True, running=[])

    calls.worker_beat("b0", accepting=True, running=[])
    beating = threading.Thread(target=beat)
    beating.start()
    yield "3.9"
    over.set()
    beating.join()
    calls.worker_leave("b0", text="over")


def test_run_of_another_python_is_accepted_and_its_trials_say_so(site: Cluster, other_worker: str) -> None:
    """Acceptance 7: the Python minor version is a constraint with a reason, not an error."""
    needed = f"{sys.version_info[0]}.{sys.version_info[1]}"

    said = site.flowctl("submit", str(site.script(trains("report({'m': 1})"))), check=True)
    run = said.stdout.split()[0]
    [reason] = site.status(run)["pending"]
    trial = site.trial(run, 0)

    assert reason["kind"] == "python" and reason["count"] == 1
    assert f"Python {needed}" in reason["text"] and f"other runs {other_worker}" in reason["text"]
    assert reason["text"] in said.stdout
    assert trial["state"] == "pending" and trial["pending"]["text"] == reason["text"]


def other_python() -> str | None:
    """Another minor version whose interpreter can import what a worker needs, if there is one."""
    for minor in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        if minor == f"{sys.version_info[0]}.{sys.version_info[1]}" or shutil.which(f"python{minor}") is None:
            continue
        command = [f"python{minor}", "-c", "import celery, psutil, redis, flowctl.workers.guardian"]
        tried = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": PACKAGES}, capture_output=True, check=False, timeout=60
        )
        if tried.returncode == 0:
            return minor
    return None
