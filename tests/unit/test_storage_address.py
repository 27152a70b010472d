"""Which spellings of a storage mean one place, and which are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowctl.storage import address
from flowctl.storage.errors import StorageRefused, StorageUnreachable
from flowctl.storage.location import Location


@pytest.mark.parametrize(
    "text", ["file:///tmp/s", "file:///tmp/s/", "file:///tmp//s/./", "/tmp/s", "//tmp/s", "file://localhost/tmp/s",
             "file:/tmp/s", "FILE:///tmp/x/../s", "/tmp/s/.", "file:///tmp/%73", "local:///tmp/s"],
)  # fmt: skip
def test_one_place_has_one_spelling(text: str) -> None:
    assert address.parse(text).url == "file:///tmp/s"


@pytest.mark.parametrize(
    ("text", "path", "url"),
    [
        ("file:///tmp/with space/ünï", "/tmp/with space/ünï", "file:///tmp/with space/ünï"),
        ("file:///tmp/with%20space", "/tmp/with space", "file:///tmp/with space"),
        ("file:///tmp/50%25%3F%23", "/tmp/50%?#", "file:///tmp/50%25%3F%23"),
        ("/tmp/a#b", "/tmp/a#b", "file:///tmp/a%23b"),
        ("/tmp/100%", "/tmp/100%", "file:///tmp/100%25"),
    ],
)
def test_percent_rule_of_file_urls(text: str, path: str, url: str) -> None:
    found = address.parse(text)

    assert (found.path, found.url) == (path, url)
    assert address.parse(found.url) == found


def test_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")

    assert address.parse("./res/").path == f"{tmp_path}/res"
    assert address.parse("~/results").path == "/home/me/results"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a//b/./c/", "s3://bucket/a/b/c"),
        ("S3A://bucket", "s3://bucket"),
        ("memory://b/p/", "memory://b/p"),
        ("sftp://me@host/a", "sftp://me@host/a"),
    ],
)
def test_other_urls_are_normalised(text: str, url: str) -> None:
    assert address.parse(text).url == url
    assert address.parse(url).url == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("memory://b/p/?x=1", "query"),
        ("file:///tmp/s?x=1", "query"),
        ("s3://b/p#top", "fragment"),
        ("/tmp/s/?x=1", "piece of a URL"),
        ("/tmp/a%20b", "piece of a URL"),
        ("s3://b/a%20b", "not decoded"),
        ("file://host/tmp", "host"),
        ("file:///", "root"),
        ("/", "root"),
        ("s3://", "no folder"),
        ("s3://../x", "no folder"),
        ("simplecache::s3://b/p", "wrapped"),
        ("sftp://me:secret@host/a", "password"),
        ("/tmp/a\nb", "control"),
        ("file:///tmp/%00", "control"),
        ("file:///tmp/%ff", "UTF-8"),
        ("/tmp/\udcff", "UTF-8"),
    ],
)
def test_refused_in_one_line_with_a_cure(text: str, reason: str) -> None:
    with pytest.raises(StorageRefused, match=reason) as caught:
        address.parse(text)

    assert caught.value.cure
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_unknown_scheme_is_refused_and_makes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StorageRefused, match="no storage is known as nowhere://"):
        Location.open("nowhere://a/b")

    assert list(tmp_path.iterdir()) == []


def test_memory_is_refused_for_runs() -> None:
    with pytest.raises(StorageRefused, match="one process"):
        Location.open("memory://b/p").require_shared()


def test_odd_folder_is_used_as_written(tmp_path: Path) -> None:
    location = Location.open(f"file://{tmp_path}/with space/ünï").require_shared()
    location.write("x", b"1")

    assert (tmp_path / "with space" / "ünï" / "x").read_bytes() == b"1"
    assert Location.open(location.url) == location


def test_open_makes_nothing(tmp_path: Path) -> None:
    Location.open(tmp_path / "a" / "b")

    assert list(tmp_path.iterdir()) == []


def test_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageRefused, match="a file stands where a folder must be"):
        Location.open(tmp_path / "file" / "store")


def test_unwritable_is_refused_and_leaves_no_trace() -> None:
    with pytest.raises((StorageRefused, StorageUnreachable)) as caught:
        Location.open("/proc/flowctl-store")

    assert "file:///proc/flowctl-store" in str(caught.value)
    assert caught.value.cure
    assert not Path("/proc/flowctl-store").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(StorageRefused, match="not permitted"):
        Location.open(tmp_path / "store")


def test_missing_shared_folder_is_not_made_anew(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with pytest.raises(StorageUnreachable, match="is not there"):
        Location.open(store, create=False)
    store.mkdir()
    location = Location.open(store, create=False)
    location.write("a/x", b"1")

    store.rename(tmp_path / "elsewhere")

    with pytest.raises(StorageUnreachable, match="is not there"):
        location.write("a/y", b"1")
    with pytest.raises(StorageUnreachable):
        location.exists("a/x")
    assert not store.exists()


def test_local_storage_does_not_import_fsspec(tmp_path: Path) -> None:
    code = (
        "import sys; from flowctl.storage.location import Location; import flowctl.storage.trial_reader, "
        "flowctl.storage.checkpoint, flowctl.storage.attempt, flowctl.storage.payload; "
        f"Location.open({str(tmp_path)!r}).write('x', b''); "
        "sys.exit(any(name in sys.modules for name in ('fsspec', 'redis', 'celery', 'cloudpickle')))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
