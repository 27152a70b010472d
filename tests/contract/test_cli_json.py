"""What `--json` prints has the pinned shapes, on a run made of keys on a real server and of a real run folder."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from run_folders import attempt_of, claim, commit, row
from view_keys import TOKEN, Keys

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.event_view import read_events
from flowctl.cli.main import run_command
from flowctl.dsl.plan import Plan
from flowctl.render.strict_json import dumps
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring

SCHEMAS = Path(__file__).resolve().parents[2] / "src/flowctl/render/schemas"
NAN: Mapping[str, Any] = {"$float": "nan"}
Ask = Callable[..., dict[str, Any]]


def check(text: str) -> dict[str, Any]:
    """The document of one strict JSON text, checked against the schema of its kind."""
    document: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    jsonschema.validate(document, json.loads((SCHEMAS / f"{document['kind']}.json").read_text()))
    return document


@pytest.fixture
def sweep(client: Any, server: BrokerURL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keys]:
    """A run `r` with six trials, one in each state that matters, and its folder; the command line sees both."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("FLOWCTL_HOME", str(home))
    monkeypatch.setenv("FLOWCTL_BROKER_URL", server.url())
    location = Location.open(tmp_path / "storage")
    folder = RunFolder(location, "r", Keyring.from_env(os.environ, home, create=True))
    folder.create({"name": "r", "created_ms": 1, "python": "3.11"}, Plan(name="r", steps=()), {"train": b"code"})
    configs = [{"lr": 0.1 * index, "opt": {"name": "sgd"}} for index in range(6)]
    folder.write_shard("train", 0, [*configs[:5], {"lr": float("nan")}])
    keys = Keys(client)
    keys.add_run(location=location.url)
    keys.add_step(total=6)
    keys.add_shape({"cpu": TOKEN, "slot": TOKEN})
    boot = keys.add_worker("w1", {"cpu": TOKEN, "slot": 10 * TOKEN}, {"cpu": TOKEN})
    _trials(keys, folder, boot, tmp_path)
    yield keys


def _trials(keys: Keys, folder: RunFolder, boot: str, tmp_path: Path) -> None:
    ran: dict[str, Any] = {"attempts": 1, "worker": "w1", "boot": boot, "first_started_ms": 1_000, "started_ms": 1_000}
    attempt = attempt_of(folder, 1, index=0)
    claim(attempt)
    attempt.write_rows(1, [row(1, loss=0.9), row(2, loss=0.5)])
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/weights").write_text("w")
    ref = commit(attempt, tmp_path / "ckpt", 2).to_json()
    best: dict[str, Any] = {
        "best": 0.5,
        "best_iteration": 2,
        "best_metrics": {"loss": 0.5},
        "best_checkpoint": ref,
        "checkpoint": ref,
    }
    done: dict[str, Any] = {"ended_ms": 3_500, "rows": 2, "iteration": 2, "last": {"loss": 0.5}, "reason": "finished"}
    keys.client.zadd("fc:rank:r:train", {keys.add_unit(0, "completed", **ran, **best, **done): 0.5})
    killed: dict[str, Any] = {
        "ended_ms": 9_000,
        "rows": 1,
        "iteration": 1,
        "last": {"loss": NAN, "late": 1},
        "reason": "error",
    }
    unit = keys.add_unit(1, "failed", **ran, **killed, cause={"kind": "signal", "signal": 9}, fails=1)
    tail = {**row(1, loss=NAN, late=1), "epoch": 1, "nonce": "0" * 15 + "7"}
    keys.client.rpush(f"fc:tail:{unit}", json.dumps(tail))
    record = {"attempt": 1, "epoch": 1, "worker": "w1", "started_ms": 1, "ended_ms": 9, "outcome": "failed"}
    keys.client.rpush(f"fc:attempts:{unit}", json.dumps({**record, "cause": {"kind": "signal", "signal": 9}}))
    keys.book(boot, keys.add_unit(2, "running", **ran, iteration=0), {"cpu": TOKEN})
    keys.add_unit(3, "cancelled", reason="cancelled")
    keys.add_unit(4, "pending")
    keys.add_unit(5, "pending")


@pytest.fixture
def ask(sweep: Keys, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command with `--json` and gives the checked document."""

    def ask(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert run_command([*arguments, "--json"]) == code, capsys.readouterr().err
        return check(capsys.readouterr().out)

    return ask


def test_list_and_workers(ask: Ask) -> None:
    listed = ask("list")
    assert listed["runs"][0]["best"] == {"trial": "r/0", "metric": "loss", "value": 0.5}
    assert listed["more"] == 0
    worker = ask("workers")["workers"][0]
    assert (worker["offer"], worker["units"]) == ({"cpu": 1, "slot": 10}, ["r:train:2"])
    assert (worker["labels"], worker["devices"], worker["reason"]) == ([], [], None)


def test_workers_show_labels_devices_and_quarantine(
    client: Any, sweep: Keys, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = [{"id": "GPU-a", "name": "H200", "memory_mib": 141_000, "visible": "0"}]
    devices.append({"id": "GPU-b", "name": "H200", "memory_mib": 141_000, "visible": "1"})
    fields: dict[str, Any] = {"state": "quarantined", "reason": "3 trials in a row failed", "quarantined_ms": 5}
    offer = {"cpu": TOKEN, "gpu:GPU-a": TOKEN}
    fields |= {"labels": '["spot", "zone=a"]', "devices": json.dumps(devices)}
    sweep.add_worker("w2", offer, {"gpu:GPU-a": 5_000}, **fields)

    worker = ask("workers")["workers"][1]

    assert (worker["offer"], worker["used"]) == ({"cpu": 1, "gpu": 1}, {"cpu": 0, "gpu": 0.5})
    assert (worker["labels"], worker["state"], worker["quarantined_ms"]) == (["spot", "zone=a"], "quarantined", 5)
    assert [(each["id"], each["offered"], each["used"]) for each in worker["devices"]] == [
        ("GPU-a", 1, 0.5),
        ("GPU-b", 0, 0),
    ]
    assert run_command(["workers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gpu 0.5/1" in lines[2] and "spot, zone=a" in lines[2]
    assert [re.sub(r"for \d+ days", "for N days", line) for line in lines[3:]] == [
        "w2: gpu 0 H200 (GPU-a, 137.7 GiB): 0.5 of 1 in use",
        "w2: gpu 1 H200 (GPU-b, 137.7 GiB): offered by another worker, or beyond its limit",
        "w2 is out of service for N days: 3 trials in a row failed; bring it back: flowctl workers --restore w2",
    ]


def test_status_of_a_run(ask: Ask) -> None:
    document = ask("status")

    assert document["counts"] == {
        "pending": 2,
        "placed": 0,
        "running": 1,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
        "total": 6,
    }
    assert document["failed"] == [
        {"error": "killed by signal 9 (SIGKILL)", "place": None, "count": 1, "trials": ["r/1"]}
    ]
    (reason,) = document["pending"]
    assert (reason["kind"], reason["count"], reason["impossible"], reason["nearest"]) == ("busy", 2, False, "w1")
    assert reason["lacking"] == {"cpu": {"asked": 1, "offered": 1, "free": 0}}
    assert [(each["trial"], each["tokens"], each["orphan"]) for each in reason["holders"]] == [("r/2", 1, False)]
    assert document["best"][0]["config"] == {"lr": 0.0, "opt": {"name": "sgd"}}


def test_status_of_a_trial(ask: Ask) -> None:
    """B113: the last report of a killed trial is there."""
    failed = ask("status", "r/1")

    assert failed["metrics"] == {"loss": "NaN", "late": 1}
    assert [attempt["outcome"] for attempt in failed["history"]] == ["failed"]
    assert ask("status", "5")["pending"]["kind"] == "busy"


def test_results_and_best(ask: Ask) -> None:
    trials = ask("results", "r")["trials"]

    assert [trial["status"] for trial in trials] == [
        "completed",
        "failed",
        "running",
        "cancelled",
        "pending",
        "pending",
    ]
    assert trials[0]["checkpoint"]["of"] == "latest"
    assert trials[5]["config"] == {"lr": "NaN"}
    assert [trial["verified"] for trial in ask("results", "--verify")["trials"]] == [True, None, None, None, None, None]
    best = ask("best")["best"]
    assert (best["trial"], best["checkpoint"]["of"], best["metrics"]) == ("r/0", "best", {"loss": 0.5})


def test_list_shows_the_newest_runs_and_how_many_more_there_are(
    client: Any, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        client.hset(f"fc:run:n{number:02}", mapping={"name": f"n{number:02}", "state": "completed", "wanted": "run"})
        client.zadd("fc:runs", {f"n{number:02}": number})

    assert [run["run"] for run in ask("list")["runs"]] == ["r", *(f"n{number}" for number in range(29, 10, -1))]
    assert ask("list", "--limit", "3")["more"] == 28
    assert (len(ask("list", "--limit", "0")["runs"]), ask("list", "--limit", "0")["more"]) == (31, 0)
    assert run_command(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "and 11 more; all: flowctl list --limit 0"
    assert run_command(["status", "n2"]) == 2
    assert "there is no run 'n2'; did you mean 'n2" in capsys.readouterr().err


def test_best_says_how_to_save_the_checkpoint_and_saves_it(
    ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["best", "r"]) == 0
    assert "save it: flowctl best r --save DIR" in capsys.readouterr().out
    found = ask("best", "--metric", "loss", "--mode", "min")["best"]["checkpoint"]
    assert (found["save"], found["saved"]) == ("flowctl best r --metric loss --mode min --save DIR", None)

    target = tmp_path / "new" / "model"
    assert ask("best", "r", "--save", str(target))["best"]["checkpoint"]["saved"] == str(target)
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("weights", "w")]
    assert [path.name for path in target.parent.iterdir()] == ["model"]

    assert run_command(["best", "r", "--save", str(target)]) == 5
    assert "the folder is not empty; name one that is empty" in capsys.readouterr().err
    assert run_command(["best", "r", "--save", str(target / "weights")]) == 5


def test_best_without_a_checkpoint_saves_nothing(client: Any, ask: Ask, tmp_path: Path) -> None:
    client.hdel("fc:unit:r:train:0", "checkpoint", "best_checkpoint")

    assert run_command(["best", "--save", str(tmp_path / "none")]) == 5
    assert not (tmp_path / "none").exists()


def test_log_of_a_trial_that_wrote_nothing_tells_the_cause(
    client: Any, sweep: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = {"kind": "exception", "type": "ValueError", "text": "no rows", "place": "train.py:7"}
    client.hset("fc:unit:r:train:1", "cause", json.dumps(cause))

    assert run_command(["logs", "r/1"]) == 0
    assert run_command(["logs", "r/1", "--attempt", "1"]) == 0

    newest, first = capsys.readouterr().err.splitlines()
    assert newest == "flowctl: r/1 has written nothing (failed); ValueError: no rows at train.py:7"
    assert first == "flowctl: attempt 1 of r/1 has written nothing (failed); killed by signal 9 (SIGKILL)"


def test_reports_come_from_storage_and_from_the_servers_tail(ask: Ask) -> None:
    """B113 and feature 108."""
    rows = ask("results", "--rows")["rows"]

    assert [(each["trial"], each["training_iteration"], each["metrics"]) for each in rows] == [
        ("r/0", 1, {"loss": 0.9}),
        ("r/0", 2, {"loss": 0.5}),
        ("r/1", 1, {"loss": "NaN", "late": 1}),
    ]


def test_csv_has_every_column_and_every_trial(sweep: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    """Features 107 and 109."""
    assert run_command(["results", "r", "--csv"]) == 0

    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [each["trial"] for each in rows] == [f"r/{index}" for index in range(6)]
    assert rows[0]["metrics.late"] == ""
    assert (rows[1]["metrics.late"], rows[1]["metrics.loss"], rows[1]["error"]) == (
        "1",
        "NaN",
        "killed by signal 9 (SIGKILL)",
    )
    assert (rows[0]["config.opt.name"], rows[0]["duration_s"], rows[5]["config.lr"]) == ("sgd", "2.5", "NaN")


def test_texts_are_printed_without_control_codes(sweep: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["list"],
        ["status"],
        ["status", "r/1"],
        ["results"],
        ["results", "--rows"],
        ["best"],
        ["workers"],
        ["resources"],
    ):
        assert run_command(arguments) == 0
        out = capsys.readouterr().out
        assert "r" in out
        assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["status", "rr"], 2, "there is no run 'rr'; did you mean 'r'?"),
        (["status", ""], 2, "the name of a run is empty; 'flowctl list' shows the runs"),
        (["status", "r/6"], 2, "there is no trial 'r/6'; train has r/0 to r/5"),
        (["status", "r/trian"], 2, "r has no step 'trian'; did you mean 'train'?"),
        (["watch", "r/1"], 2, "'r/1' names a part of a run; name the run: r"),
        (["logs", "r"], 2, "'r' has several trials; name one, such as r/0"),
        (["best", "--metric", "late"], 2, "mode of 'late' is missing"),
        (["best", "--metric", "lote", "--mode", "max"], 1, "no trial has a finite lote; they reported loss"),
        (["wait", "r", "--timeout", "0"], 6, "r is still running after 0 s: 2 pending: waits for"),
        (
            ["logs", "r/1", "--attempt", "7"],
            2,
            "r/1: there is no attempt 7: there was 1 attempt; see them: flowctl status r/1",
        ),
    ],
)
def test_what_is_not_there_is_one_line(
    sweep: Keys, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, expected: str
) -> None:
    assert run_command(arguments) == code

    err = capsys.readouterr().err
    assert err.startswith("flowctl: ") and expected in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("state", "counts", "code"),
    [
        ("completed", {"completed": 6}, 0),
        ("completed", {"failed": 1}, 3),
        ("failed", {"failed": 6}, 1),
        ("cancelled", {}, 1),
    ],
)
def test_wait_and_watch_exit_by_the_runs_end(
    client: Any,
    sweep: Keys,
    capsys: pytest.CaptureFixture[str],
    state: str,
    counts: dict[str, int],
    code: int,
) -> None:
    client.hset(
        "fc:step:r:train", mapping={**dict.fromkeys(("failed", "completed", "pending", "running"), 0), **counts}
    )
    client.hset("fc:run:r", mapping={"state": state, "ended_ms": sweep.now_ms()})
    client.hset("fc:step:r:train", "state", state)

    assert run_command(["wait"]) == code
    capsys.readouterr()
    assert run_command(["watch"]) == code
    assert capsys.readouterr().out.count(f"r  {state}") == 1


def test_follow_mode_is_json_lines(client: Any, sweep: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    client.hset("fc:run:r", mapping={"state": "failed", "ended_ms": sweep.now_ms()})
    client.xadd("fc:events:r", {"at": 5, "kind": "trial", "unit": "r:train:1", "from": "running", "to": "failed"})

    assert run_command(["watch", "--json"]) == 1

    lines = [check(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["kind"] == "ended"
    assert [each["trial"] for each in lines[-1]["best"]] == ["r/0"]
    from flowctl.broker.view import load_run
    from flowctl.render.lines import event_body

    run = load_run(client, "r")
    assert run is not None
    event = read_events(client, "r", "0-0", block_ms=None)[0]
    assert check(dumps("event", event_body(event, run, unit=None, worker="w1"), indent=None))["trial"] == "r/1"
    assert check(dumps("notice", {"run": "r", "at_ms": 1, "text": "x"}))["text"] == "x"


def test_logs_and_wait_as_json(client: Any, sweep: Keys, ask: Ask) -> None:
    log = ask("logs", "r/1")
    assert (log["trial"], log["attempt"], log["attempts"], log["text"], log["state"]) == ("r/1", 1, 1, "", "failed")
    assert log["cause"]["headline"] == "killed by signal 9 (SIGKILL)"

    waited = ask("wait", "r", "--timeout", "0", code=6)
    assert (waited["kind"], [reason["kind"] for reason in waited["pending"]]) == ("run", ["busy"])
    client.hset("fc:run:r", mapping={"state": "failed", "ended_ms": sweep.now_ms()})
    assert ask("wait", "r", code=1)["state"] == "failed"


def test_the_log_of_one_of_several_attempts_says_which_it_is(
    client: Any, sweep: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    client.hset("fc:unit:r:train:0", "attempts", 2)
    client.hdel("fc:unit:r:train:2", "cause")

    assert run_command(["logs", "r/0"]) == 0
    assert run_command(["logs", "r/2"]) == 0

    newest, _, running = capsys.readouterr().err.splitlines()
    assert newest == "flowctl: attempt 2 of 2; flowctl logs r/0 --attempt 1 shows the first"
    assert running == "flowctl: r/2 has written nothing yet (running)"


def test_what_a_trial_that_waits_again_has_reported_stays_the_best(client: Any, sweep: Keys, ask: Ask) -> None:
    """After Ctrl-C every trial is pending, and what was found so far is still true."""
    client.zrem("fc:rank:r:train", "r:train:0")
    client.hset("fc:step:r:train", "started_ms", 1)
    client.hset("fc:unit:r:train:4", mapping={"best": "0.25", "best_iteration": 1, "best_metrics": "{}"})

    assert [each["trial"] for each in ask("status")["best"]] == ["r/4"]
    assert ask("list")["runs"][0]["best"]["value"] == 0.25


def test_cancel(client: Any, ask: Ask) -> None:
    assert ask("cancel", "r/1") == {
        "format": 1,
        "kind": "cancelled",
        "target": "r/1",
        "state": "failed",
        "had_ended": True,
    }


def test_pending_too_long_is_told_with_what_lacks(
    client: Any, sweep: Keys, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    """B23: the same text on stderr, and in what is looked at later."""
    sweep.add_shape({"npu": TOKEN, "slot": TOKEN}, shape="s2")
    cause = {"kind": "infeasible", "text": "was pending for 10 s"}
    sweep.add_unit(5, "failed", reason="infeasible", ended_ms=1, cause=cause, shape="s2")
    client.hset("fc:run:r", mapping={"state": "failed", "ended_ms": sweep.now_ms()})
    told = "was pending for 10 s: no live worker offers npu (asked 1)"

    for command in ("wait", "watch"):
        assert run_command([command]) == 1
        assert capsys.readouterr().err == f"flowctl: r/5: {told}\n"
    assert ask("status", "r/5")["cause"]["headline"] == told
    assert told in [group["error"] for group in ask("status")["failed"]]
    assert ask("results")["trials"][5]["cause"]["headline"] == told


def test_every_schema_is_used_by_a_document() -> None:
    kinds = {path.stem for path in SCHEMAS.glob("*.json")}

    for path in SCHEMAS.glob("*.json"):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]["kind"]["const"] == path.stem
        assert schema["properties"]["format"]["const"] == 1
    assert kinds >= {
        "runs",
        "run",
        "trial",
        "plan",
        "submitted",
        "results",
        "reports",
        "best",
        "workers",
        "resources",
        "demand",
        "pools",
        "set",
        "restored",
        "event",
        "ended",
    }
