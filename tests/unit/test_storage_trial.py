"""A trial's folder: claims, outcomes, checkpoints and rows, also when some of it is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from run_folders import (
    RUN,
    STEP,
    attempt_of,
    checkpoint_dir,
    claim,
    commit,
    finish,
    keyring,
    make_run,
    nonce,
    row,
    tree,
)

from flowctl.storage.errors import CheckpointError, DamagedRecord, NotFound, StorageRefused
from flowctl.storage.host_log import HostLog, bundles_with_log, read_host_log, write_host_log
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.trial_files import Fence, HostPart, host_log_name, name_of, parse
from flowctl.storage.trial_reader import TrialReader


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "store")


@pytest.fixture
def trial(run: RunFolder, tmp_path: Path) -> Path:
    return tmp_path / "store" / RUN / "steps" / STEP / "0000" / "000000"


def reader_of(run: RunFolder) -> TrialReader:
    return TrialReader(run, STEP, 0)


def iterations(rows: list[dict[str, object]]) -> list[object]:
    return [one["training_iteration"] for one in rows]


def spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


# ---- names


def test_file_names_read_back() -> None:
    fence = Fence(3, nonce(7))

    for kind, number in (("claim", None), ("outcome", None), ("rows", 12), ("manifest", 4), ("log", 4096)):
        found = parse(name_of(kind, fence, number))
        assert found is not None
        assert (found.kind, found.fence, found.number) == (kind, fence, number)
    assert parse(name_of("claim", Fence(1234567, nonce(1)))) is not None


@pytest.mark.parametrize(
    "name",
    [
        ".tmp-1-abc",
        "objects",
        "claim-1-0.json",
        f"claim-000001-{nonce(1)}.json.tmp",
        f"claim-000001-{nonce(1)}-00000001.json",
        f"rows-000001-{nonce(1)}.jsonl",
        f"rows-000001-{nonce(1)}-00000001.json",
        f"claim-000001-{'G' * 16}.json",
    ],
)
def test_other_names_are_no_records(name: str) -> None:
    assert parse(name) is None


def test_unsafe_attempts_are_refused(run: RunFolder) -> None:
    for epoch, text in ((1, "../../x"), (1, ""), (-1, nonce(1)), (1, "G" * 16)):
        with pytest.raises(StorageRefused):
            from flowctl.storage.attempt import AttemptFolder

            AttemptFolder(run, STEP, 0, epoch, text)


# ---- claims and outcomes


def test_trial_without_reports_is_two_files(run: RunFolder, trial: Path) -> None:
    attempt = attempt_of(run, 1)
    claim(attempt)
    finish(attempt, last={"loss": math.nan}, output={"a": math.inf})

    assert tree(trial) == [f"claim-000001-{nonce(1)}.json", f"outcome-000001-{nonce(1)}.json"]
    reader = reader_of(run)
    assert [(one.fence, one.attempt, one.base) for one in reader.claims()] == [(Fence(1, nonce(1)), 1, None)]
    outcome = reader.final_outcome()
    assert outcome is not None
    assert outcome.status == "completed"
    assert outcome.output == {"a": math.inf}
    assert outcome.last is not None
    assert math.isnan(outcome.last["loss"])
    assert reader.chain() is None
    assert reader.rows() == []
    assert reader.warnings == []


def test_empty_trial_says_nothing(run: RunFolder) -> None:
    reader = reader_of(run)

    assert (reader.claims(), reader.outcomes(), reader.manifests(), reader.rows()) == ([], [], [], [])
    assert (reader.final_outcome(), reader.chain(), reader.log(), reader.highest_epoch()) == (None, None, b"", 0)


def test_outcome_counts_if_the_next_claim_names_it(run: RunFolder) -> None:
    first, second, third = (attempt_of(run, epoch) for epoch in (1, 2, 3))
    claim(first)
    finish(first)
    claim(second, number=2, saw=[first.fence])
    claim(third, number=3)  # only the next claim matters

    outcome = reader_of(run).final_outcome()
    assert outcome is not None
    assert outcome.fence == first.fence


def test_claim_that_did_not_see_an_outcome_makes_it_void(run: RunFolder) -> None:
    first, second = attempt_of(run, 1), attempt_of(run, 2)
    claim(first)
    claim(second, number=2)
    finish(first)
    assert reader_of(run).final_outcome() is None

    finish(second, status="failed")

    outcome = reader_of(run).final_outcome()
    assert outcome is not None
    assert (outcome.fence, outcome.status) == (second.fence, "failed")


def test_outcome_that_is_to_be_retried_is_not_final(run: RunFolder) -> None:
    claim(attempt_of(run, 1))
    finish(attempt_of(run, 1), status="pending", cause={"kind": "exception", "type": "ValueError"})

    reader = reader_of(run)
    assert reader.final_outcome() is None
    assert [one.cause for one in reader.outcomes()] == [{"kind": "exception", "type": "ValueError"}]


def test_one_epoch_twice_after_a_rewind(run: RunFolder, tmp_path: Path) -> None:
    older, newer = attempt_of(run, 4, nonce_of=9), attempt_of(run, 4, nonce_of=2)
    claim(older, number=1)
    claim(newer, number=2)
    finish(older)
    files = checkpoint_dir(tmp_path / "c", model="1")
    commit(older, files, 5)
    ref = commit(newer, files, 3)

    reader = reader_of(run)
    assert reader.final_outcome() is None
    assert reader.chain() == ref


# ---- checkpoints


def test_checkpoint_comes_back_as_it_was(run: RunFolder, trial: Path, tmp_path: Path) -> None:
    source = checkpoint_dir(tmp_path / "c", model="weights", same="weights", **{".metadata.json": "{}", "ünï x": ""})
    (source / "sub" / "deeper").mkdir(parents=True)
    (source / "sub" / "deeper" / "file").write_bytes(bytes(3_000_000))
    (source / "empty" / "inner").mkdir(parents=True)
    (source / "run.sh").write_text("#!")
    (source / "run.sh").chmod(0o755)
    (source / "last").symlink_to("model")
    attempt = attempt_of(run, 1)
    claim(attempt)

    ref = attempt.commit_checkpoint(source, seq=4, metrics={"loss": math.nan}, iteration=4, server_ms=5, segments=())
    reader_of(run).restore(ref, tmp_path / "back")

    back = tmp_path / "back"
    assert tree(back) == tree(source)
    for name in tree(source):
        if (source / name).is_file():
            assert (back / name).read_bytes() == (source / name).read_bytes()
    assert (back / "run.sh").stat().st_mode & 0o100
    assert not (back / "last").is_symlink()
    manifest = reader_of(run).load_manifest(ref)
    assert math.isnan(manifest.metrics["loss"])
    assert manifest.folders == ("empty/inner",)
    assert len(list((trial / "objects").iterdir())) == 5  # equal files are one object
    assert [path for path in tree(trial) if ".tmp-" in path] == []


def test_unchanged_files_are_stored_once(run: RunFolder, trial: Path, tmp_path: Path) -> None:
    attempt = attempt_of(run, 1)
    claim(attempt)
    source = checkpoint_dir(tmp_path / "c", frozen="a" * 1000, head="1")
    commit(attempt, source, 1)
    before = {path.name: path.stat().st_mtime_ns for path in (trial / "objects").iterdir()}

    (source / "head").write_text("2")
    ref = commit(attempt, source, 2)

    after = {path.name: path.stat().st_mtime_ns for path in (trial / "objects").iterdir()}
    assert len(after) == 3
    assert before.items() <= after.items()
    assert reader_of(run).chain() == ref


@pytest.mark.parametrize("case", ["missing", "file", "empty", "socket", "outside", "broken", "circle"])
def test_what_cannot_be_a_checkpoint_is_named(run: RunFolder, trial: Path, tmp_path: Path, case: str) -> None:
    import socket

    source: Path | str = checkpoint_dir(tmp_path / "c", model="1")
    assert isinstance(source, Path)
    if case == "missing":
        source = tmp_path / "absent"
    elif case == "file":
        source = source / "model"
    elif case == "empty":
        source = ""
    elif case == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(source / "s"))
    else:
        target = {"outside": "/etc/passwd", "broken": "absent", "circle": "."}[case]
        (source / "link").symlink_to(target)

    with pytest.raises(CheckpointError) as caught:
        commit(attempt_of(run, 1), source, 1)  # type: ignore[arg-type]

    assert str(source) in str(caught.value)
    assert list(trial.glob("manifest-*")) == []


def test_chain_follows_the_newest_claim_and_its_base(run: RunFolder, tmp_path: Path) -> None:
    files = checkpoint_dir(tmp_path / "c", model="1")
    first, second = attempt_of(run, 1), attempt_of(run, 2)
    claim(first)
    commit(first, files, 2)
    base = commit(first, files, 4)
    assert reader_of(run).chain() == base

    claim(second, number=2, base=base)
    assert reader_of(run).chain() == base

    commit(first, files, 9)  # a late commit of the lost attempt is garbage
    assert reader_of(run).chain() == base

    newest = commit(second, files, 6)
    assert reader_of(run).chain() == newest


def test_claim_without_base_starts_anew(run: RunFolder, tmp_path: Path) -> None:
    claim(attempt_of(run, 1))
    commit(attempt_of(run, 1), checkpoint_dir(tmp_path / "c", model="1"), 2)
    claim(attempt_of(run, 2), number=2, base=None)

    assert reader_of(run).chain() is None


def test_damaged_checkpoint_gives_the_one_before_with_a_warning(run: RunFolder, trial: Path, tmp_path: Path) -> None:
    first, second = attempt_of(run, 1), attempt_of(run, 2)
    claim(first)
    oldest = commit(first, checkpoint_dir(tmp_path / "1", model="one"), 1)
    base = commit(first, checkpoint_dir(tmp_path / "2", model="two"), 2)
    claim(second, number=2, base=base)
    newest = commit(second, checkpoint_dir(tmp_path / "3", model="three"), 3)
    reader = reader_of(run)

    spoil(trial / newest.name)
    assert reader.chain() == base
    assert [one.path.rpartition("/")[2] for one in reader.warnings] == [newest.name]

    object_of_base = reader.load_manifest(base).files[0].object
    (trial / "objects" / object_of_base).unlink()
    assert reader_of(run).chain() == oldest

    spoil(trial / oldest.name)
    assert reader_of(run).chain() is None
    with pytest.raises(DamagedRecord, match="every checkpoint is damaged"):
        reader_of(run).chain(strict=True)


def test_changed_content_is_found_while_restoring(run: RunFolder, trial: Path, tmp_path: Path) -> None:
    attempt = attempt_of(run, 1)
    claim(attempt)
    older = commit(attempt, checkpoint_dir(tmp_path / "1", model="one"), 1)
    newer = commit(attempt, checkpoint_dir(tmp_path / "2", model="two"), 2)
    (trial / "objects" / reader_of(run).load_manifest(newer).files[0].object).write_text("TWO")
    reader = reader_of(run)

    with pytest.raises(DamagedRecord):
        reader.restore(newer, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert list(tmp_path.glob(".tmp-*")) == []

    assert reader.restore_newest(tmp_path / "back") == older
    assert (tmp_path / "back" / "model").read_text() == "one"
    assert len(reader.warnings) == 1


def test_restore_does_not_overwrite(run: RunFolder, tmp_path: Path) -> None:
    claim(attempt_of(run, 1))
    ref = commit(attempt_of(run, 1), checkpoint_dir(tmp_path / "c", model="1"), 1)
    there = checkpoint_dir(tmp_path / "there", mine="1")

    with pytest.raises(CheckpointError, match="absent or empty"):
        reader_of(run).restore(ref, there)
    assert tree(there) == ["mine"]
    assert reader_of(run).restore_newest(tmp_path / "new") == ref
    assert TrialReader(run, STEP, 1).restore_newest(tmp_path / "none") is None
    with pytest.raises(NotFound):
        TrialReader(run, STEP, 1).restore(ref, tmp_path / "none")


def test_manifest_of_another_trial_or_path_is_not_believed(run: RunFolder, trial: Path, tmp_path: Path) -> None:
    from flowctl.storage.records import encode_record

    attempt = attempt_of(run, 1)
    claim(attempt)
    ref = commit(attempt, checkpoint_dir(tmp_path / "c", model="1"), 1)
    record = json.loads((trial / ref.name).read_text())

    other = trial.parent / "000001"
    other.mkdir()
    (other / ref.name).write_bytes((trial / ref.name).read_bytes())
    stranger = TrialReader(run, STEP, 1)
    assert stranger.manifests() == []
    assert "index" in stranger.warnings[0].reason

    record["files"][0]["path"] = "../../evil"
    fields = {key: value for key, value in record.items() if key not in ("format", "kind", "run", "sig")}
    (trial / ref.name).write_bytes(encode_record(keyring(), kind="manifest", run=RUN, fields=fields))
    with pytest.raises(DamagedRecord, match="evil"):
        reader_of(run).restore(ref, tmp_path / "back")


# ---- rows


def test_rows_are_merged_along_the_chain(run: RunFolder, tmp_path: Path) -> None:
    first, second, third = (attempt_of(run, epoch) for epoch in (1, 2, 3))
    files = checkpoint_dir(tmp_path / "c", model="1")
    claim(first)
    first.write_rows(1, [row(i, source=1) for i in (1, 2, 3)])
    first.write_rows(4, [row(i, source=1) for i in (4, 5)])
    base = commit(first, files, 3)
    claim(second, number=2, base=base)
    second.write_rows(1, [row(4, seq=1, attempt=2, source=2)])  # lost without a checkpoint of its own
    claim(third, number=3, base=base)
    third.write_rows(1, [row(i, seq=i - 3, attempt=3, source=3) for i in (4, 5, 6)])

    rows = reader_of(run).rows()

    assert iterations(rows) == [1, 2, 3, 4, 5, 6]
    assert [one["metrics"]["source"] for one in rows] == [1, 1, 1, 3, 3, 3]
    assert rows[3] == {**row(4, seq=1, attempt=3, source=3), "epoch": 3, "nonce": nonce(3)}


def test_rows_of_an_adopted_outcome_all_count(run: RunFolder, tmp_path: Path) -> None:
    first = attempt_of(run, 1)
    claim(first)
    first.write_rows(1, [row(i) for i in (1, 2, 3, 4)])
    base = commit(first, checkpoint_dir(tmp_path / "c", model="1"), 2)
    finish(first)
    claim(attempt_of(run, 2), number=2, base=base, saw=[first.fence])

    assert iterations(reader_of(run).rows()) == [1, 2, 3, 4]


def test_tail_and_segments_overlap_harmlessly(run: RunFolder) -> None:
    first = attempt_of(run, 1)
    claim(first)
    first.write_rows(1, [row(1), row(2)])
    tail = [{**row(i, value={"$float": "nan"} if i == 4 else i), "epoch": 1, "nonce": nonce(1)} for i in (2, 3, 4)]

    rows = reader_of(run).rows(tail=tail)

    assert iterations(rows) == [1, 2, 3, 4]
    assert math.isnan(rows[3]["metrics"]["value"])
    first.write_rows(3, tail[1:])
    again = reader_of(run).rows(tail=tail)
    assert iterations(again) == [1, 2, 3, 4]


def test_tail_of_a_superseded_attempt_is_dropped(run: RunFolder) -> None:
    claim(attempt_of(run, 1))
    attempt_of(run, 1).write_rows(1, [row(1), row(2)])
    claim(attempt_of(run, 2), number=2)
    tail = [{**row(3), "epoch": 1, "nonce": nonce(1)}, {**row(1, attempt=2), "epoch": 2, "nonce": nonce(2)}]

    rows = reader_of(run).rows(tail=tail)

    assert [(one["epoch"], one["training_iteration"]) for one in rows] == [(2, 1)]


def test_odd_tail_rows_are_warned_about(run: RunFolder) -> None:
    reader = reader_of(run)

    assert reader.rows(tail=[{"seq": 1}, {"epoch": 1, "nonce": nonce(1), "seq": "x", "metrics": {}}]) == []
    assert len(reader.warnings) == 2


def test_segment_is_never_changed(run: RunFolder, trial: Path) -> None:
    attempt = attempt_of(run, 1)
    claim(attempt)
    first = attempt.write_rows(1, [row(1), row(2)])

    assert attempt.write_rows(1, [row(1), row(2)]) == first
    longer = attempt.write_rows(1, [row(1), row(2), row(3)])
    assert (longer.first, longer.count) == (3, 1)
    assert attempt.write_rows(1, [row(1)]) == first

    assert iterations(reader_of(run).rows()) == [1, 2, 3]
    assert len(list(trial.glob("rows-*"))) == 2
    with pytest.raises(ValueError, match="seq 5"):
        attempt.write_rows(5, [row(1)])


def test_special_floats_and_big_integers_stay_strict_json(run: RunFolder, trial: Path) -> None:
    attempt = attempt_of(run, 1)
    claim(attempt)
    attempt.write_rows(1, [row(1, n=math.nan, p=math.inf, m=-math.inf, big=2**80, text="ünï\n测试")])

    text = next(trial.glob("rows-*")).read_text("utf-8")
    assert text.count("\n") == 1
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    metrics = reader_of(run).rows()[0]["metrics"]
    assert math.isnan(metrics.pop("n"))
    assert metrics == {"p": math.inf, "m": -math.inf, "big": 2**80, "text": "ünï\n测试"}


def test_damaged_segments_and_records_are_passed_over(run: RunFolder, trial: Path) -> None:
    attempt = attempt_of(run, 1)
    claim(attempt)
    signed = attempt.write_rows(1, [row(1), row(2)])
    attempt.write_rows(3, [row(3), row(4)])
    finish(attempt, segments=[signed])
    spoil(trial / name_of("rows", attempt.fence, 3))
    reader = reader_of(run)
    assert iterations(reader.rows()) == [1, 2, 3][: len(iterations(reader.rows()))]
    assert len(reader.warnings) == 1

    path = trial / signed.path
    path.write_text(path.read_text().replace("0.5", "0.9"))
    reader = reader_of(run)
    assert 1 not in iterations(reader.rows())
    assert "not what was written" in str(reader.warnings[0])

    for kind in ("claim", "outcome"):
        spoil(trial / name_of(kind, attempt.fence))
    reader = reader_of(run)
    assert (reader.claims(), reader.outcomes(), reader.final_outcome()) == ([], [], None)
    assert len(reader.warnings) == 2
    assert reader.highest_epoch() == 1


def test_lost_claim_does_not_lose_the_chain(run: RunFolder, trial: Path, tmp_path: Path) -> None:
    first, second = attempt_of(run, 1), attempt_of(run, 2)
    claim(first)
    first.write_rows(1, [row(i, source=1) for i in (1, 2, 3)])
    base = commit(first, checkpoint_dir(tmp_path / "c", model="1"), 2)
    claim(second, number=2, base=base)
    second.write_rows(1, [row(i, seq=i - 2, source=2) for i in (3, 4)])
    spoil(trial / name_of("claim", second.fence))

    reader = reader_of(run)
    assert reader.chain() == base
    assert [one["metrics"]["source"] for one in reader.rows()] == [1, 1, 2, 2]


# ---- log


def test_log_of_an_attempt(run: RunFolder) -> None:
    first, second = attempt_of(run, 1), attempt_of(run, 2)
    claim(first, number=1)
    first.write_log(0, b"hello ")
    first.write_log(6, b"world\n")
    claim(second, number=2)
    second.write_log(0, b"again\n")
    second.write_log(16, b"later\n")

    reader = reader_of(run)
    assert reader.log(1) == b"hello world\n"
    assert reader.log() == b"again\n\n[10 bytes of the log are missing]\nlater\n"
    assert reader.log(1, start=8) == b"rld\n"
    assert reader.log(1, start=100) == b""
    assert reader.log(3) == b""


def test_over_memory_storage(tmp_path: Path) -> None:
    run = make_run(f"memory://{tmp_path.as_posix().strip('/')}")
    attempt = attempt_of(run, 1)
    claim(attempt)
    attempt.write_rows(1, [row(1)])
    ref = commit(attempt, checkpoint_dir(tmp_path / "c", model="1"), 1)
    finish(attempt)

    reader = TrialReader(RunFolder(Location.open(run.location.url), RUN, keyring()), STEP, 0)

    assert reader.chain() == ref
    assert reader.final_outcome() is not None
    assert iterations(reader.rows()) == [1]
    assert reader.restore_newest(tmp_path / "back") == ref
    assert (tmp_path / "back" / "model").read_text() == "1"


def test_a_row_that_only_its_manifest_holds_is_not_lost(run: RunFolder, tmp_path: Path) -> None:
    """Given a guardian that died between the manifest and the report, the row is read from the manifest, once."""
    attempt = attempt_of(run, 1)
    claim(attempt)
    source = checkpoint_dir(tmp_path / "source", model="weights")
    attempt.write_rows(1, [row(1)])
    for iteration in (1, 2):
        whole = row(iteration)
        attempt.commit_checkpoint(
            source, seq=iteration, metrics=whole["metrics"], iteration=iteration, server_ms=5, segments=(), row=whole
        )

    assert iterations(reader_of(run).rows()) == [1, 2]


# ---- what ran on other bundles


def test_logs_of_other_bundles_are_found_and_are_not_the_trials_own(run: RunFolder) -> None:
    first, second = attempt_of(run, 1), attempt_of(run, 2)
    claim(first, number=1)
    claim(second, number=2)
    write_host_log(first, HostPart(1, 1, nonce(91)), 0, b"first\n")
    write_host_log(first, HostPart(2, 2, nonce(92)), 0, b"two")
    write_host_log(second, HostPart(1, 1, nonce(93)), 0, b"old\n")
    write_host_log(second, HostPart(1, 2, nonce(94)), 4, b"new\n")
    write_host_log(second, HostPart(1, 2, nonce(94)), 0, b"the ")
    reader = reader_of(run)

    assert reader.log() == b"" and reader.warnings == []
    assert bundles_with_log(reader) == [1, 2] and bundles_with_log(reader, 2) == [1]
    assert read_host_log(reader, 1) == HostLog(attempt=2, number=2, of=2, text=b"the new\n")
    assert read_host_log(reader, 1, 1) == HostLog(1, 1, 1, b"first\n")
    assert read_host_log(reader, 2) == HostLog(1, 2, 1, b"two")
    assert read_host_log(reader, 3) is None and read_host_log(reader, 2, 2) is None


def test_name_of_a_bundles_log_reads_back() -> None:
    host = HostPart(3, 12, nonce(5))
    name = host_log_name(Fence(7, nonce(1)), host, 4096)

    found = parse(name)

    assert name == f"hostlog-000007-{nonce(1)}-0003-00000012-{nonce(5)}-000000004096.txt"
    assert found is not None and (found.kind, found.fence, found.number) == ("hostlog", Fence(7, nonce(1)), 4096)
    assert found.host == host
    assert parse(name.replace("-0003-", "-3-")) is None
