"""The run folder: what a run is, what is refused, and the records of plan, payload, trials and journal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from run_folders import RUN, STEP, keyring, make_run, tree

from flowctl.dsl.errors import RefusedError, ValueRefused
from flowctl.dsl.plan import Plan
from flowctl.storage.errors import (
    AlreadyExists,
    BadSignature,
    DamagedRecord,
    NotFound,
    StorageRefused,
    UnknownKey,
)
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder, TrialShard


def reopened(root: Path, run: str = RUN, key: str | None = None) -> RunFolder:
    return RunFolder(Location.open(root), run, keyring() if key is None else keyring(key))


def test_created_run_reads_back(tmp_path: Path) -> None:
    make_run(tmp_path, payload={"train": b"code", "train.stop": b"more"})

    folder = reopened(tmp_path)
    record = folder.load_run()
    assert (record["format"], record["kind"], record["run"], record["created_ms"]) == (1, "run", RUN, 1)
    assert record["location"] == f"file://{tmp_path}"
    assert folder.load_plan() == Plan(name=RUN, steps=())
    assert record["plan_digest"] == folder.load_plan().digest
    assert folder.load_payload("train") == b"code"
    assert folder.load_payload("train.stop") == b"more"
    assert tree(tmp_path / RUN) == ["payload", "payload/train.pkl", "payload/train.stop.pkl", "plan.json", "run.json"]


ASK: dict[str, Any] = {"request": {"bundles": [{"need": {"slot": 10000}, "labels": []}], "strategy": "PACK"}}
FAILED: dict[str, Any] = {"failed": {"kind": "exception", "type": "ValueError", "text": "half a pair \\udc80"}}


def created_with(root: Path, *shards: TrialShard, name: str = RUN) -> RunFolder:
    folder = reopened(root)
    folder.create({"name": name}, Plan(name=name, steps=()), {}, shards=shards)
    return reopened(root)


def test_what_trials_ask_for_is_recorded_with_their_configurations(tmp_path: Path) -> None:
    asks: list[dict[str, Any]] = [ASK, ASK, FAILED, ASK]
    folder = created_with(tmp_path, TrialShard(STEP, 0, [{"x": i} for i in range(4)], asks))

    assert folder.read_asks(STEP, 0) == asks
    assert folder.read_shard(STEP, 0) == [{"x": i} for i in range(4)]
    assert folder.read_config(STEP, 3) == {"x": 3}
    record = json.loads((tmp_path / RUN / "steps" / STEP / "trials-000000.json").read_text())
    assert (record["answers"], record["asks"]) == ([ASK, FAILED], [0, 0, 1, 0])
    with pytest.raises(NotFound):
        folder.read_asks(STEP, 1)
    folder.write_shard(STEP, 1, [{"x": 9}])
    with pytest.raises(NotFound, match="not recorded"):
        folder.read_asks(STEP, 1)


def test_shards_of_a_submission_that_was_cut_short_are_not_the_next_ones(tmp_path: Path) -> None:
    created_with(tmp_path, TrialShard(STEP, 0, [{"x": 1}], [ASK]), name="one")
    (tmp_path / RUN / "run.json").unlink()

    folder = created_with(tmp_path, name="two")

    with pytest.raises(NotFound):
        folder.read_shard(STEP, 0)
    with pytest.raises(NotFound):
        folder.read_asks(STEP, 0)


def test_a_submission_that_fails_while_shards_are_written_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused, match="1 to 1000"):
        created_with(tmp_path, TrialShard(STEP, 0, [{"x": 1}], [ASK]), TrialShard(STEP, 1, [], []))

    assert tree(tmp_path) == []


def test_a_changed_request_is_not_believed(tmp_path: Path) -> None:
    created_with(tmp_path, TrialShard(STEP, 0, [{"x": 1}], [ASK]))
    path = tmp_path / RUN / "steps" / STEP / "trials-000000.json"
    path.write_text(path.read_text().replace("10000", "20000"))

    with pytest.raises(BadSignature):
        reopened(tmp_path).read_asks(STEP, 0)


def test_folder_without_run_json_is_no_run(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / RUN / "run.json").unlink()

    assert not reopened(tmp_path).exists()
    with pytest.raises(NotFound, match="no run 'sweep-1'"):
        reopened(tmp_path).load_run()

    make_run(tmp_path)  # what was left of it is no obstacle
    assert reopened(tmp_path).exists()


def test_name_in_use_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    make_run(tmp_path)
    before = {name: (tmp_path / RUN / name).stat() for name in tree(tmp_path / RUN)}

    with pytest.raises(AlreadyExists, match="exists already") as caught:
        make_run(tmp_path, payload={"other": b"else"})

    assert caught.value.exit_code == 5
    assert {name: (tmp_path / RUN / name).stat() for name in tree(tmp_path / RUN)} == before


def test_failed_create_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(StorageRefused):
        make_run(tmp_path, payload={"good": b"1", "../evil": b"2"})
    assert tree(tmp_path) == []

    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "plan.json").mkdir()
    with pytest.raises(StorageRefused):
        make_run(tmp_path)
    assert "run.json" not in tree(tmp_path / RUN)
    assert "payload" not in tree(tmp_path / RUN)


@pytest.mark.parametrize("run", ["", "..", ".", "a/b", "../x", "naïve", "x" * 81])
def test_unsafe_run_ids_are_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(RefusedError):
        RunFolder(Location.open(tmp_path), run, keyring())


def test_changed_payload_is_not_given_out(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / RUN / "payload" / "train.pkl").write_bytes(b"evil")

    with pytest.raises(DamagedRecord, match="not what was signed"):
        reopened(tmp_path).load_payload("train")
    with pytest.raises(NotFound):
        reopened(tmp_path).load_payload("absent")


def test_changed_plan_is_not_given_out(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / RUN / "plan.json").write_bytes(Plan(name="other", steps=()).canonical())

    # The process-wide cache is by digest, so a reader with another address does not find the good one in it.
    (tmp_path / RUN).rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved").rename(tmp_path / "elsewhere" / RUN)
    with pytest.raises(DamagedRecord, match="not what was signed"):
        reopened(tmp_path / "elsewhere").load_plan()


def test_changed_or_foreign_run_is_not_believed(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(UnknownKey):
        reopened(tmp_path, key="o" * 40).load_run()

    file = tmp_path / RUN / "run.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "plan_digest": "sha256:00"}))
    with pytest.raises(BadSignature):
        reopened(tmp_path).load_run()


def test_run_copied_under_another_name_is_not_believed(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / RUN).rename(tmp_path / "copy")

    with pytest.raises(DamagedRecord, match="copy"):
        reopened(tmp_path, run="copy").load_run()


def test_configs_keep_every_value(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    values = {"nan": math.nan, "inf": -math.inf, "big": 2**80, "path": "../../etc", "ключ": "测试", "deep": {"a": [1]}}
    folder.write_shard(STEP, 0, [{"i": i} for i in range(1000)])
    folder.write_shard(STEP, 1, [values])

    config = folder.read_config(STEP, 1000)

    assert math.isnan(config.pop("nan"))
    assert config == {key: value for key, value in values.items() if key != "nan"}
    assert folder.read_config(STEP, 999) == {"i": 999}
    assert len(folder.read_shard(STEP, 0)) == 1000
    json.loads(
        (tmp_path / RUN / "steps" / STEP / "trials-000001.json").read_text(),
        parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"),
    )
    assert tree(tmp_path / RUN / "steps") == [STEP, f"{STEP}/trials-000000.json", f"{STEP}/trials-000001.json"]


def test_shard_is_read_once_per_process_and_copies_are_given(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.write_shard(STEP, 0, [{"deep": {"a": 1}}, {"deep": {"a": 2}}])
    folder.read_config(STEP, 0)["deep"]["a"] = 9
    (tmp_path / RUN / "steps" / STEP / "trials-000000.json").unlink()

    assert folder.read_config(STEP, 0) == {"deep": {"a": 1}}
    assert reopened(tmp_path).read_config(STEP, 1) == {"deep": {"a": 2}}


def test_run_made_anew_is_not_read_from_the_cache(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.write_shard(STEP, 0, [{"a": 1}])
    assert folder.read_config(STEP, 0) == {"a": 1}

    folder.location.delete(RUN)
    again = RunFolder(Location.open(tmp_path), RUN, keyring())
    again.create({"created_ms": 2}, Plan(name=RUN, steps=()), {})
    again.write_shard(STEP, 0, [{"a": 2}])

    assert again.read_config(STEP, 0) == {"a": 2}


def test_configs_that_are_not_there(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.write_shard(STEP, 0, [{"a": 1}])

    for index in (1, 999, 1000, -1):
        with pytest.raises(NotFound):
            folder.read_config(STEP, index)
    with pytest.raises(StorageRefused):
        folder.write_shard(STEP, 0, [])
    with pytest.raises(ValueRefused, match=r"train/0\.bad"):
        folder.write_shard(STEP, 0, [{"bad": object()}])


def test_journal_reads_in_order_and_each_event_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    assert folder.journal_read() == []
    first, second, third = ({"id": f"{i}-0", "kind": "k", "value": math.inf} for i in range(3))

    folder.journal_write(2, [second, third])
    folder.journal_write(1, [first, second])
    folder.journal_write(1, [first, second])

    assert folder.journal_numbers() == [1, 2]
    assert folder.journal_read() == [first, second, third]


def test_late_journal_holder_changes_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.journal_write(1, [{"id": "1-0"}, {"id": "2-0"}])

    with pytest.raises(AlreadyExists):
        folder.journal_write(1, [{"id": "1-0"}])

    assert len(folder.journal_read()) == 2


def test_damaged_journal_segment_is_passed_over(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    for number in (1, 2, 3):
        folder.journal_write(number, [{"id": f"{number}-0"}])
    (tmp_path / RUN / "journal" / "00000002.json").write_bytes(b'{"cut')
    (tmp_path / RUN / "journal" / "00000003.json").replace(tmp_path / RUN / "journal" / "00000004.json")

    assert folder.journal_read() == [{"id": "1-0"}]
    assert [one.path for one in folder.warnings] == ["journal/00000002.json", "journal/00000004.json"]


def test_making_a_folder_and_reader_touches_nothing(tmp_path: Path) -> None:
    from flowctl.storage.attempt import AttemptFolder
    from flowctl.storage.trial_reader import TrialReader

    folder = RunFolder(Location.open(tmp_path), RUN, keyring())
    TrialReader(folder, STEP, 7)
    AttemptFolder(folder, STEP, 7, 1, "0" * 16)

    assert tree(tmp_path) == []
