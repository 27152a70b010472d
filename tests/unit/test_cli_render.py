"""Texts that people read: durations, tables, causes, failures once each, lines per event, the live picture."""

import io
import json
from typing import Any

import pytest

from flowctl.broker.cause import Cause
from flowctl.broker.event_view import Event
from flowctl.broker.reason import Reason
from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import COUNTED, RunView, StepView, UnitView
from flowctl.broker.worker_view import WorkerView
from flowctl.cli.here import closing_lines, parting_line
from flowctl.render.clock import clock, span
from flowctl.render.failures import group_failures
from flowctl.render.lines import event_line
from flowctl.render.status_text import run_text
from flowctl.render.summary import best_lines, notice_lines, unreported_line
from flowctl.render.table import cut, number, pairs, table

NOW = 1_700_000_100_000


def step(name: str = "train", **more: Any) -> StepView:
    fields: dict[str, Any] = {
        "run": "r",
        "name": name,
        "kind": "experiment",
        "state": "running",
        "total": 4,
        "expanded": 4,
        "after": (),
        "metric": "loss",
        "mode": "min",
        "max_failures": 0,
        "max_worker_losses": 3,
        "counts": {**dict.fromkeys(COUNTED, 0), "running": 1, "failed": 2, "pending": 1},
        "reason": None,
        "started_ms": None,
        "ended_ms": None,
    }
    return StepView(**{**fields, **more})


def run(*steps: StepView, **more: Any) -> RunView:
    fields: dict[str, Any] = {
        "run": "r",
        "name": "r",
        "state": "running",
        "wanted": "run",
        "reason": None,
        "location": "file:///x",
        "key_id": "k",
        "python": "3.11",
        "flow": None,
        "created_ms": NOW - 65_000,
        "ended_ms": None,
        "steps": steps or (step(),),
    }
    return RunView(**{**fields, **more})


def unit(index: int, **more: Any) -> UnitView:
    fields: dict[str, Any] = dict.fromkeys(UnitView.__dataclass_fields__)
    fields.update(run="r", step="train", index=index, state="running", epoch=1, fails=0, losses=0, attempts=1)
    fields.update(wanted="run", rows=3, iteration=3, last={"loss": 0.25}, best_metrics={}, boot="b1")
    return UnitView(**{**fields, **more})


def worker(**more: Any) -> WorkerView:
    fields: dict[str, Any] = {
        "worker": "w1",
        "boot": "b1",
        "host": "h",
        "machine": "m",
        "pid": 1,
        "state": "up",
        "is_accepting": True,
        "python": "3.11",
        "keys": ("k",),
        "version": "0",
        "started_ms": 0,
        "last_ms": NOW,
        "offer": {"cpu": 10_000},
        "used": {"cpu": 10_000},
        "held": (),
        "fields": {},
    }
    return WorkerView(**{**fields, **more})


def snapshot(**more: Any) -> Snapshot:
    boom = Cause(kind="exception", type="ValueError", text="boom\nmore", place="digits.py:12")
    fields: dict[str, Any] = {
        "at_ms": NOW,
        "run": run(),
        "workers": (worker(),),
        "active": (unit(0, started_ms=NOW - 12_000),),
        "failed": (unit(1, state="failed", cause=boom), unit(2, state="failed", cause=boom)),
        "best": {"train": unit(0, best=0.25, best_iteration=3)},
        "reasons": (Reason("busy", "waits for cpu: needs 1, w1 has 0 of 1 free", 1, "train"),),
    }
    return Snapshot(**{**fields, **more})


def config_of(step: str, index: int) -> dict[str, Any]:
    return {"lr": 0.1 * (index + 1)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (59.9, "59s"),
        (65, "1m 05s"),
        (7_620, "2h 07m"),
        (360_000, "4d 04h"),
        (-1, "0.0s"),
    ],
)
def test_span_has_at_most_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_table_aligns_and_pads_nothing_at_the_end() -> None:
    assert table(["a", "long"], [["xyz", ""], ["x", "1"]]) == "a    long\nxyz\nx    1"
    assert (number(0.123456789), number(1795985515.5), number(True), number([1])) == (
        "0.12346",
        "1795985516",
        "True",
        "[1]",
    )
    assert pairs({"a": {"b": 1}, "c": 2, "d": 3}, limit=2) == "a/b=1 c=2 (+1)"
    assert cut("one\ntwo three", 9) == "one two …"


def test_causes_read_as_one_line() -> None:
    assert Cause.parse(None) is Cause.parse("") is None
    assert Cause.of({"kind": "signal", "signal": 9}).headline() == "killed by signal 9 (SIGKILL)"
    assert Cause.of({"kind": "exit", "code": 3}).headline() == "the process exited with code 3 and gave no outcome"
    assert Cause.of({"kind": "exception", "type": "E", "text": "a\n b"}).headline() == "E: a b"
    assert Cause.of({"kind": "worker_lost", "text": "lost contact with w"}).headline() == "lost contact with w"
    assert Cause.of({"kind": "timed_out"}).headline() == "timed out"
    assert Cause.of({"kind": "of_a_later_version"}).headline() == "of a later version"


def test_equal_failures_are_told_once_with_their_count() -> None:
    groups = group_failures(run(), snapshot().failed)

    assert [(each.count, each.labels) for each in groups] == [(2, ("r/1", "r/2"))]
    assert groups[0].lines() == ["2 × r/1: ValueError: boom more  at digits.py:12", "    flowctl logs r/1"]


def test_labels_name_the_step_only_where_it_is_needed() -> None:
    several = run(step(), step("other"))

    assert run().label("train", 7) == "r/7"
    assert several.label("train", 7) == "r/train/7"
    assert run(step(), step("prepare", kind="stage")).label("prepare", 0) == "r/prepare"


def test_status_tells_everything_that_matters() -> None:
    """Features 111 and 112."""
    text = run_text(snapshot(workers=(worker(last_ms=NOW - 4_000),)), config_of)

    assert "r  running  1m 05s  2 failed, 1 running, 1 pending of 4" in text
    assert "best loss 0.25  r/0 (iteration 3)  lr=0.1" in text
    assert f"lost contact with w1 since {clock(NOW - 4_000)}" in text
    assert "1 pending: waits for cpu: needs 1, w1 has 0 of 1 free" in text
    assert "2 × r/1: ValueError: boom more  at digits.py:12" in text
    assert "flowctl logs r/1" in text


def test_iteration_of_the_best_is_said_only_where_there_are_several() -> None:
    once = unit(0, best=0.25, best_iteration=1, iteration=1)

    assert best_lines(snapshot(best={"train": once}, active=()), config_of) == ["best loss 0.25  r/0  lr=0.1"]
    assert "(iteration 1)" in best_lines(snapshot(best={"train": once}), config_of)[0]


def test_live_picture_shows_the_same() -> None:
    from rich.console import Console

    from flowctl.render.live import picture

    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(picture(snapshot(), config_of, rows=5))

    text = out.getvalue()
    for expected in (
        "r  running  1m 05s",
        "2 failed, 1 running, 1 pending of 4",
        "r/0",
        "loss=0.25",
        "w1",
        "12s",
        "2 × r/1",
    ):
        assert expected in text
    assert "1 pending: waits for cpu" in text


def event(**more: Any) -> Event:
    cause = more.pop("cause", None)
    fields: dict[str, Any] = {"id": "1-1", "at_ms": NOW, "kind": "trial", "step": "train", "index": 1}
    fields.update(source="running", to="failed", reason="error", cause=cause, fields={})
    return Event(**{**fields, **more})


def test_lines_say_what_changed() -> None:
    boom = snapshot().failed[0]

    def line(what: Event, unit: UnitView | None = None) -> str | None:
        told = event_line(what, run(), unit=unit, worker="w1")
        return told and told.removeprefix(f"{clock(NOW)}  ")

    assert line(event(), boom) == "r/1 failed: ValueError: boom more  at digits.py:12; flowctl logs r/1"
    assert line(event(to="running", source="placed", fields={"attempt": "2"})) == "r/1 running on w1, attempt 2"
    assert line(event(to="placed", source="pending")) is None
    assert line(event(to="completed", reason="stop condition"), unit(1)) == "r/1 completed (stop condition)  loss=0.25"
    assert line(event(to="pending", reason="lost contact with w1")) == "r/1 pending again: lost contact with w1"
    assert line(event(kind="run", step=None, index=None, to="completed", reason="")) == "run r completed"
    assert line(event(kind="step", index=None, to="completed", reason="")) is None


def test_causes_survive_json() -> None:
    body = snapshot().failed[0].cause
    assert body is not None
    assert Cause.of(json.loads(json.dumps(body.to_json()))) == body


def test_failures_that_differ_by_numbers_alone_are_one_group_where_the_place_is_the_same() -> None:
    def failed(index: int, text: str, place: str | None = "digits.py:12") -> UnitView:
        return unit(index, state="failed", cause=Cause(kind="exception", type="E", text=text, place=place))

    alike = [failed(0, "lr=0.1 is too large"), failed(1, "lr=1e-05 is too large"), failed(2, "w1 is too large")]
    groups = group_failures(run(), alike)
    assert [group.labels for group in groups] == [("r/0", "r/1"), ("r/2",)]
    assert groups[0].lines()[0] == "2 × r/0: E: lr=0.1 is too large  at digits.py:12  (the numbers differ)"

    elsewhere = group_failures(run(), [failed(0, "code 1", None), failed(1, "code 2", None)])
    assert [group.count for group in elsewhere] == [1, 1]


def test_no_cause_says_its_outcome_twice() -> None:
    assert Cause.of({"kind": "cancelled", "text": "cancelled"}).headline() == "cancelled"
    assert Cause.of({"kind": "preempted", "text": "its worker stopped"}).headline() == "preempted: its worker stopped"
    assert (
        Cause.of({"kind": "signal", "signal": 9})
        .told()
        .endswith("; often the kernel's out-of-memory killer: see dmesg")
    )
    told = event_line(
        event(kind="step", index=None, to="failed", reason="failed"), run(step(), step("b")), unit=None, worker=None
    )
    assert told is not None and told.endswith("step train failed")


def test_a_metric_that_nobody_reports_is_noticed_while_trials_run() -> None:
    typo = snapshot(run=run(step(metric="los")), best={}, active=(unit(0), unit(3, last={})))
    assert notice_lines(typo) == {"train": "r/0 reports loss; not the metric 'los'; did you mean 'loss'?"}

    assert notice_lines(snapshot()) == {}
    assert notice_lines(snapshot(run=run(step(metric="other")))) == {}, "some trial has reported it"
    assert notice_lines(snapshot(best={}, active=(unit(0, last={}),))) == {}


def test_what_trials_reported_instead_of_the_metric_is_said_at_the_end() -> None:
    missing = Cause(kind="no_metric", type="MissingMetric", text="never reported")
    failed = (unit(1, state="failed", cause=missing, last={"epoch": 1, "loss": 2}),)
    silent = (unit(1, state="failed", cause=missing, last={}),)
    los = step(metric="los", state="failed")

    line = unreported_line(snapshot(run=run(los), failed=failed, best={}), los)
    assert line == "no trial reported 'los'; they reported: epoch, loss; did you mean 'loss'?"
    nothing = unreported_line(snapshot(run=run(los), failed=silent, best={}), los)
    assert nothing == "nothing was reported: call report({'los': …}) in the trial"


def test_no_finite_value_is_said_where_the_best_would_stand() -> None:
    over = step(state="completed", counts={**dict.fromkeys(COUNTED, 0), "completed": 4})

    assert best_lines(snapshot(run=run(over), best={}), config_of) == ["no trial has a finite loss"]
    assert best_lines(snapshot(best={}), config_of) == []


def test_closing_lines_name_the_log_of_what_failed_the_run() -> None:
    stage = step("final", kind="stage", state="failed", metric=None, mode=None)
    boom = Cause(kind="exception", type="E", text="bad", place="x.py:3")
    several = run(step(state="completed"), stage, state="failed")
    failed = (unit(1, state="failed", cause=boom), unit(0, step="final", state="failed", cause=boom))

    lines = closing_lines(snapshot(run=several, failed=failed))

    assert lines == ["failed: r/final: E: bad  at x.py:3", "results: flowctl results r", "log: flowctl logs r/final"]
    assert closing_lines(snapshot(run=run(state="completed")))[-1] == "log: flowctl logs r/0"


@pytest.mark.parametrize(
    ("own", "others", "line"),
    [
        (False, ["a"], "detached; the run goes on on worker a; end it: flowctl cancel r"),
        (False, [], "detached; no worker is up that could take it; go on with: flowctl run --attach r"),
        (True, [], "stopped; go on with: flowctl run --attach r"),
        (True, list("abcd"), "stopped here; the run goes on on workers a, b, c, …; end it: flowctl cancel r"),
    ],
)
def test_who_leaves_a_run_is_told_what_becomes_of_it(own: bool, others: list[str], line: str) -> None:
    assert parting_line("r", own=own, others=others) == line


def test_live_picture_fits_eighty_columns() -> None:
    from rich.console import Console

    from flowctl.render.live import picture

    counts = dict(zip(COUNTED, (100, 3, 12, 34, 20, 2), strict=True))
    metrics = {"loss": 0.123456, "accuracy": 0.98765, "epoch": 3}
    killed = Cause(kind="signal", signal=9)
    active = (unit(0, last=metrics, attempts=2, cause=killed, started_ms=NOW - 12_000), unit(11, last=metrics))
    snap = snapshot(run=run(step(counts=counts, total=171)), active=active)
    out = io.StringIO()

    Console(file=out, width=80, color_system=None).print(picture(snap, config_of, rows=5, width=80))

    text = out.getvalue()
    assert "34 completed, 20 failed, 2 cancelled, 12 running, 3 placed, 100 pending of 171" in text
    row = next(line for line in text.splitlines() if line.startswith("0 "))
    assert "running (attempt 2)" in row and row.rstrip().endswith("w1      12s")
    assert "tried again: r/0, after killed by signal 9 (SIGKILL)" in text
