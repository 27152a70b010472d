"""A checkpoint in the hands of user code."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_folders import checkpoint_dir, tree

from flowctl.dsl.errors import ValueRefused
from flowctl.storage.checkpoint import Checkpoint
from flowctl.storage.errors import CheckpointError
from flowctl.storage.snapshot import take


def test_directory_is_a_reference_and_to_directory_a_copy(tmp_path: Path) -> None:
    source = checkpoint_dir(tmp_path / "c", model="1")
    checkpoint = Checkpoint.from_directory(source)

    assert checkpoint.path == str(source)
    with checkpoint.as_directory() as folder:
        assert folder == str(source)
    copy = checkpoint.to_directory(tmp_path / "d" / "copy")
    (source / "model").write_text("2")

    assert Path(copy, "model").read_text() == "1"
    temporary = Path(checkpoint.to_directory())
    assert tree(temporary) == ["model"]
    (temporary / "model").unlink()
    temporary.rmdir()


def test_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint_dir(tmp_path / "c", model="1")
    monkeypatch.chdir(tmp_path)

    assert Checkpoint.from_directory("c").path == str(tmp_path / "c")


@pytest.mark.parametrize(("path", "word"), [("", "empty"), ("/absent/folder", "does not exist"), (__file__, "file")])
def test_what_is_no_folder_is_refused_at_once(path: str, word: str) -> None:
    with pytest.raises(CheckpointError, match=word) as caught:
        Checkpoint.from_directory(path)

    assert path in str(caught.value)


def test_metadata_is_json_beside_the_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(checkpoint_dir(tmp_path / "c"))
    assert checkpoint.metadata == {}

    checkpoint.set_metadata({"epoch": np.int64(3), "loss": float("inf")})
    checkpoint.update_metadata({"more": [1]})

    assert Checkpoint.from_directory(tmp_path / "c").get_metadata() == {"epoch": 3, "loss": float("inf"), "more": [1]}
    assert tree(tmp_path / "c") == [".metadata.json"]
    checkpoint.set_metadata({})
    assert checkpoint.metadata == {}
    with pytest.raises(ValueRefused, match=r"metadata\.bad"):
        checkpoint.set_metadata({"bad": object()})


def test_damaged_metadata_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(checkpoint_dir(tmp_path / "c", **{".metadata.json": "[1"}))

    with pytest.raises(CheckpointError, match=r"\.metadata\.json"):
        checkpoint.get_metadata()


def test_fetched_once_and_only_when_looked_at(tmp_path: Path) -> None:
    calls: list[int] = []

    def fetch() -> Path:
        calls.append(1)
        return checkpoint_dir(tmp_path / "fetched", model="1")

    checkpoint = Checkpoint(fetch=fetch)
    assert (repr(checkpoint), calls) == ("Checkpoint(not fetched yet)", [])

    with checkpoint.as_directory() as folder:
        assert tree(Path(folder)) == ["model"]
    assert checkpoint.path == folder
    assert calls == [1]


def test_it_travels_as_its_path(tmp_path: Path) -> None:
    checkpoint = Checkpoint(fetch=lambda: checkpoint_dir(tmp_path / "c", model="1"))

    assert pickle.loads(pickle.dumps(checkpoint)).path == str(tmp_path / "c")


def test_needs_a_path_or_a_way_to_fetch() -> None:
    with pytest.raises(CheckpointError, match="from_directory"):
        Checkpoint()


def test_imports_nothing_heavy() -> None:
    code = (
        "import sys; import flowctl.storage.checkpoint; "
        "sys.exit(any(n in sys.modules for n in ('fsspec', 'redis', 'celery', 'numpy', 'cloudpickle')))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("loop", "leads to itself; remove it"),
        (".", "leads in a circle; remove it"),
        ("absent", "leads nowhere; remove it"),
    ],
)
def test_a_link_that_leads_nowhere_is_refused_with_a_cure(tmp_path: Path, target: str, said: str) -> None:
    (checkpoint_dir(tmp_path / "c", model="1") / "loop").symlink_to(target)

    with pytest.raises(CheckpointError, match=f"c/loop: the link {said}"):
        take(tmp_path / "c")
