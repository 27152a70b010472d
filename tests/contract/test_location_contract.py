"""What every storage must do, run over a local folder, fsspec's `memory://`, and fsspec over real folders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from flowctl.storage.address import Address
from flowctl.storage.errors import AlreadyExists, NotFound, StorageRefused, StorageUnreachable
from flowctl.storage.location import Location
from flowctl.storage.remote import RemoteBackend


@pytest.fixture(params=["local", "memory", "remote folder"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "local":
        return Location.open(tmp_path / "store")
    if request.param == "remote folder":  # fsspec over real folders, as sftp and the like have them
        place = Address("file", str(tmp_path / "store"))
        return Location(RemoteBackend(place), place)
    return Location.open(f"memory://{tmp_path.as_posix().strip('/')}/store")


@pytest.mark.skipif(find_spec("s3fs") is not None, reason="s3fs is installed here")
def test_a_storage_whose_package_is_missing_says_what_to_install() -> None:
    with pytest.raises(StorageUnreachable, match=r"s3fs.*; install s3fs \(pip install s3fs\)$") as caught:
        Location.open("s3://bucket/runs")

    assert caught.value.exit_code == 4


def test_write_then_read(location: Location) -> None:
    location.write("a/b/c.json", b"one")
    location.write("a/b/c.json", b"two")

    assert location.read("a/b/c.json") == b"two"
    assert b"".join(location.chunks("a/b/c.json")) == b"two"
    assert location.size("a/b/c.json") == 3


def test_write_of_nothing_is_a_file(location: Location) -> None:
    location.write("empty", b"")

    assert location.exists("empty")
    assert location.read("empty") == b""


def test_exclusive_write_leaves_what_is_there(location: Location) -> None:
    location.write("run.json", b"first", exclusive=True)

    with pytest.raises(AlreadyExists):
        location.write("run.json", b"second", exclusive=True)

    assert location.read("run.json") == b"first"
    assert location.list() == ["run.json"]


def test_list_is_sorted_names_of_one_level(location: Location) -> None:
    for name in ("b.json", "a.json", "d/x", "d/y"):
        location.write(name, b"1")

    assert location.list() == ["a.json", "b.json", "d"]
    assert location.list("d") == ["x", "y"]
    assert location.list("absent") == []


def test_list_sees_what_another_one_wrote_at_once(location: Location) -> None:
    other = Location.open(location.url)
    assert other.list("d") == []

    location.write("d/x", b"1")

    assert other.list("d") == ["x"]
    assert other.exists("d/x")


def test_list_hides_unfinished_writes(location: Location) -> None:
    location.write(".tmp-1-abc", b"cut")
    location.write("x", b"1")

    assert location.list() == ["x"]


def test_absent_is_said(location: Location) -> None:
    assert not location.exists("a")
    assert location.size("a") is None
    with pytest.raises(NotFound, match="a"):
        location.read("a")
    with pytest.raises(NotFound):
        list(location.chunks("a"))


def test_delete_of_file_folder_and_nothing(location: Location) -> None:
    location.write("d/x", b"1")
    location.write("d/e/y", b"1")
    location.write("z", b"1")

    location.delete("z")
    location.delete("d")
    location.delete("d")

    assert location.list() == []


def test_child_is_a_folder_below(location: Location) -> None:
    child = location.child("a", "b/c")
    child.write("x", b"1")

    assert location.read("a/b/c/x") == b"1"
    assert child.url == f"{location.url}/a/b/c"
    assert child == Location.open(child.url)


def test_files_go_and_come(location: Location, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)

    location.put_file(source, "d/file")
    location.get_file("d/file", tmp_path / "copy")

    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_objects_are_named_by_content(location: Location, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"same")

    first = location.put_object(tmp_path / "one", "objects")
    second = location.put_object(tmp_path / "two", "objects")
    location.sync("objects")

    assert first == second
    assert location.list("objects") == [first[0]]
    assert location.size(f"objects/{first[0]}") == first[1] == 4


def test_object_of_wrong_length_is_replaced(location: Location, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    name, _ = location.put_object(tmp_path / "one", "objects")
    location.write(f"objects/{name}", b"cut")

    location.put_object(tmp_path / "one", "objects")

    assert location.read(f"objects/{name}") == b"content"


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../x", "a//b", "./a", "a/.", "a\0b"])
def test_unsafe_paths_are_refused(location: Location, path: str) -> None:
    with pytest.raises(StorageRefused, match="safe path"):
        location.write(path, b"1")


def test_odd_names_are_kept_letter_by_letter(location: Location) -> None:
    location.write("with space/ünï%20", b"1")

    assert location.list() == ["with space"]
    assert location.list("with space") == ["ünï%20"]


def test_exclusive_writers_agree_on_one(location: Location) -> None:
    def attempt(number: int) -> bool:
        try:
            location.write("claim", str(number).encode(), exclusive=True)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = [number for number, is_mine in enumerate(pool.map(attempt, range(24))) if is_mine]

    assert location.read("claim").decode() in map(str, won)
    if location.local_path() is not None:  # elsewhere, exclusive may be a check followed by a write
        assert len(won) == 1


def test_probe_leaves_no_trace(location: Location) -> None:
    location.probe()
    assert not location.exists()

    location.write("x", b"1")
    location.probe()

    assert location.list() == ["x"]
