"""How trials end: by themselves, badly, by force; and what is known of each end."""

from __future__ import annotations

import inspect

from cluster import Cluster
from script import trains

import flowctl


def test_default_budget_is_the_documented_one(shared: Cluster) -> None:
    """B08: no retry with 0 and without the keyword, which the help says too."""
    runs = {
        name: shared.submit(trains(f"mark('default-{name}')\nraise ValueError('always')", **keywords))
        for name, keywords in (("zero", {"max_failures": 0}), ("left-out", {}))
    }
    for run in runs.values():
        shared.wait(run, state="failed")

    default = inspect.signature(flowctl.experiment).parameters["max_failures"].default
    assert default == 0
    assert len(shared.lines("default-zero")) == 1
    assert len(shared.lines("default-left-out")) == default + 1
    assert f"max_failures is {default} by default" in " ".join(shared.flowctl("submit", "--help").stdout.split())


def test_every_way_of_leaving_ends_the_trial_and_the_worker_serves_the_next(shared: Cluster) -> None:
    """B09: sys.exit(0) is completion; any other exit is a failure with its cause."""
    body = """
    import ctypes
    def interrupt(): raise KeyboardInterrupt
    {"exit0": lambda: sys.exit(0), "exit": lambda: sys.exit(), "exit3": lambda: sys.exit(3),
     "exit-text": lambda: sys.exit("gave up"), "_exit0": lambda: os._exit(0), "_exit7": lambda: os._exit(7),
     "kbd": interrupt, "abort": os.abort, "segv": lambda: ctypes.string_at(0),
     "term": lambda: os.kill(os.getpid(), 15), "base": lambda: (_ for _ in ()).throw(GeneratorExit())}[config.how]()
    """
    ways = ["exit0", "exit", "exit3", "exit-text", "_exit0", "_exit7", "kbd", "abort", "segv", "term", "base"]
    run = shared.submit(trains(body, param_space=f"{{'how': grid({ways})}}"))
    after = shared.submit(trains("report({'m': 1})"))
    shared.wait(run)
    shared.wait(after)

    trials = {trial["config"]["how"]: trial for trial in shared.results(run)}
    assert [way for way in ways if trials[way]["status"] == "completed"] == ["exit0", "exit"]
    causes = {way: trials[way]["cause"] for way in ways[2:]}
    assert (causes["exit3"]["kind"], causes["exit3"]["code"]) == ("exit", 3)
    assert causes["exit-text"]["kind"] == "exit" and "gave up" in causes["exit-text"]["text"]
    assert (causes["_exit0"]["kind"], causes["_exit0"]["code"]) == ("exit", 0)
    assert (causes["_exit7"]["kind"], causes["_exit7"]["code"]) == ("exit", 7)
    assert causes["kbd"]["type"] == "KeyboardInterrupt" and causes["base"]["type"] == "GeneratorExit"
    assert [causes[way]["signal"] for way in ("abort", "segv", "term")] == [6, 11, 15]
    assert all(trial["attempts"] == 1 for trial in trials.values())


def test_exception_of_any_kind_is_told_and_harms_nobody_else(shared: Cluster) -> None:
    """B11: with a lock in it, with more arguments than its text, without a text that can be made, very long."""
    body = """
    class Odd(Exception):
        def __init__(self, a, b): super().__init__(f"{a}/{b}"); self.lock = threading.Lock()
    class Mute(Exception):
        def __str__(self): raise RuntimeError("no text")
    class Sly(Exception):
        __reduce__ = None
    if config.i == 1: raise Odd(1, 2)
    if config.i == 3: raise Odd(1, 2) from ValueError("the root")
    if config.i == 4: raise Mute()
    if config.i == 5: raise Sly("x" * 100_000)
    if config.i == 6: raise Odd("\\ud800", "\\0")
    if config.i == 7: raise type("", (Odd,), {})(3, 4)
    mark("odd"); wait_for("odd-go"); report({"ok": 1})
    """
    run = shared.submit(trains(body, param_space="{'i': grid(range(8))}"))
    shared.until(lambda: shared.status(run)["counts"]["failed"] == 6, what="six failures")
    shared.side.joinpath("odd-go").touch()
    shared.wait(run)

    trials = shared.results(run)
    assert [trial["status"] for trial in trials] == ["completed", "failed", "completed"] + ["failed"] * 5
    assert [trial["attempts"] for trial in trials] == [1] * 8
    for index in (1, 3):
        cause = trials[index]["cause"]
        assert (cause["type"], cause["text"]) == ("Odd", "1/2") and "raise Odd(1, 2)" in cause["traceback"]
    assert "the root" in trials[3]["cause"]["traceback"]
    assert trials[4]["cause"]["type"] == "Mute" and "RuntimeError" in trials[4]["cause"]["text"]
    assert trials[5]["cause"]["type"] == "Sly" and 0 < len(trials[5]["cause"]["text"]) < 10_000
    assert trials[6]["cause"]["type"] == "Odd"
    assert len(shared.lines("odd")) == 2


def test_success_after_a_retry_keeps_no_error_but_its_history(shared: Cluster) -> None:
    """B15."""
    body = "if get_context().attempt == 1: raise RuntimeError('flaky')\nreport({'loss': 0.5})"
    run = shared.submit(trains(body, max_failures=1, metric="'loss'", mode="'min'"))
    shared.wait(run)

    [result], trial = shared.results(run), shared.trial(run, 0)
    assert (result["status"], result["error"], result["cause"]) == ("completed", None, None)
    assert (trial["state"], trial["cause"], trial["attempts"]) == ("completed", None, 2)
    assert [past["outcome"] for past in trial["history"]] == ["failed", "completed"]
    assert trial["history"][0]["cause"]["text"] == "flaky"
    assert shared.flowctl("wait", run).returncode == 0
    assert shared.status(run)["failed"] == []
    assert shared.json("best", run)["best"]["best"]["value"] == 0.5


def test_last_report_is_known_however_badly_the_trial_ends(shared: Cluster) -> None:
    """B113: with and without a metric, for each way to die."""
    body = """
    for s in range(50): report({"s": s})
    {"kill": lambda: os.kill(os.getpid(), 9), "_exit": lambda: os._exit(1), "raise": lambda: 1 / 0}[config.how]()
    """
    run = shared.submit(trains(body, param_space="{'how': grid(['kill', '_exit', 'raise'])}"))
    shared.wait(run, state="failed")

    for index in range(3):
        trial = shared.trial(run, index)
        assert (trial["state"], trial["iteration"], trial["metrics"]) == ("failed", 50, {"s": 49})
    rows = shared.results(run, "--rows")
    assert [row["metrics"]["s"] for row in rows] == list(range(50)) * 3


def test_trial_is_a_fresh_interpreter_whose_parent_never_imported_the_script(shared: Cluster) -> None:
    """B36, with a core instead of a device: a module that starts a thread and takes a lock when it is imported."""
    library = shared.root / "lib" / "site-packages"
    library.mkdir(parents=True, exist_ok=True)
    library.joinpath("heavy.py").write_text(
        "import os, threading, time\n"
        "from pathlib import Path\n"
        "with open(Path(os.environ['SIDE']) / 'heavy', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "lock = threading.Lock()\n"
        "lock.acquire()\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), lock.release()), daemon=True).start()\n"
        "def available(): return True\n"
    )
    text = f"""
    import sys
    sys.path.append({str(library)!r})
    import heavy
    with heavy.lock: pass
    mark("heavy-parents", os.getppid())
    report({{"s": 8.0, "has": HAS}})
    """
    script = trains(text, param_space="{'i': grid(range(4))}", resources="{'cpu': 0.5}")
    top = f"import sys\nsys.path.append({str(library)!r})\nimport heavy\nHAS = heavy.available()\n"
    run = shared.submit(top + script)
    shared.wait(run)

    importers = {int(line) for line in shared.lines("heavy")}
    parents = {int(line.split()[2]) for line in shared.lines("heavy-parents")}
    assert all(trial["metrics"] == {"s": 8.0, "has": True} for trial in shared.results(run))
    assert len(importers) == 1 + 4 and not importers & parents
    pids = {int(line.split()[0]) for line in shared.lines("heavy-parents")}
    assert len(pids) == 4 and pids < importers
