"""Storages that are not folders of this machine, by fsspec: object stores, remote shells, and memory for tests.

A write is one put. Listings and existence never come from fsspec's caches. fsspec's own `exists` takes any failure
for an absence, so `info` is asked instead.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fsspec

from flowctl.dsl.errors import FlowctlError
from flowctl.storage.address import Address
from flowctl.storage.errors import (
    AlreadyExists,
    NotFound,
    StorageError,
    StorageRefused,
    StorageUnreachable,
)
from flowctl.storage.location import TEMPORARY

_CHUNK = 1 << 20
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "az": "adlfs", "sftp": "paramiko"}
_OWN_FAULTS = ("builtins",)


class RemoteBackend:
    """One folder on an fsspec filesystem, which is opened anew after a fork: its threads do not survive one."""

    def __init__(self, place: Address) -> None:
        self._place = place
        self._url = place.url
        self._filesystem: Any = None
        self._process = 0
        self._root = place.path
        _ = self._fs

    @property
    def _fs(self) -> Any:
        if self._process != os.getpid():
            with self._translated(""):
                self._filesystem, self._root = self._connect(anew=self._process != 0)
            self._process = os.getpid()
        return self._filesystem

    def _connect(self, *, anew: bool) -> tuple[Any, str]:
        scheme = self._place.scheme
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            package = _PACKAGES.get(scheme)
            cure = f"install {package} (pip install {package})" if package else f"install what serves {scheme}://"
            what = f"{scheme}:// cannot be used here: {_line(error.__cause__ or error)}"
            raise StorageUnreachable(what, place=self._url, cure=cure) from error
        except ValueError as error:
            cure = "give a folder, file:///folder, or a URL such as s3://bucket/folder"
            raise StorageRefused(f"no storage is known as {scheme}://", place=self._url, cure=cure) from error
        options = {"use_listings_cache": False, "skip_instance_cache": anew}
        filesystem, root = fsspec.core.url_to_fs(self._url, **options)
        return filesystem, str(root).rstrip("/")

    def write(self, key: str, data: bytes, *, exclusive: bool, durable: bool) -> None:
        with self._translated(key):
            options: dict[str, Any] = {}
            if exclusive:
                if "mode" in inspect.signature(self._fs.pipe_file).parameters:
                    options["mode"] = "create"
                if self.exists(key):
                    raise FileExistsError(key)
            self._with_folder(key, lambda path: self._fs.pipe_file(path, data, **options))

    def read(self, key: str) -> bytes:
        with self._translated(key):
            return cast(bytes, self._fs.cat_file(self._path(key)))

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._translated(key), self._fs.open(self._path(key), "rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    def list(self, key: str) -> list[str]:
        with self._translated(key):
            path = self._path(key)
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(path, detail=False)
            except FileNotFoundError:
                return []
        names = {str(one).rstrip("/").rpartition("/")[2] for one in found if str(one).strip("/") != path.strip("/")}
        return sorted(name for name in names if name and not name.startswith(TEMPORARY))

    def size(self, key: str) -> int | None:
        info = self._info(key)
        return None if info is None else int(info.get("size") or 0)

    def exists(self, key: str) -> bool:
        return self._info(key) is not None

    def _info(self, key: str) -> dict[str, Any] | None:
        with self._translated(key):
            self._fs.invalidate_cache()
            try:
                return cast("dict[str, Any]", self._fs.info(self._path(key)))
            except FileNotFoundError:
                return None

    def delete(self, key: str) -> None:
        with self._translated(key):
            self._fs.invalidate_cache()
            try:
                self._fs.rm(self._path(key), recursive=True)
            except FileNotFoundError:
                return

    def put_file(self, local: Path, key: str) -> None:
        with self._translated(key):
            self._with_folder(key, lambda path: self._fs.put_file(str(local), path))

    def put_object(self, local: Path, folder: str) -> tuple[str, int]:
        # The name must be known before the one put, so the file is hashed first; it must not change in between.
        before = local.stat()
        digest = hashlib.sha256()
        with local.open("rb") as source:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
        name, size = digest.hexdigest(), before.st_size
        key = f"{folder}/{name}"
        if self.size(key) != size:
            self.put_file(local, key)
        after = local.stat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise OSError(f"{local} changed while it was copied")
        return name, size

    def sync(self, key: str) -> None:
        """Nothing to do: a put that returned is durable."""

    def probe(self) -> None:
        key = f"{TEMPORARY}probe-{os.urandom(8).hex()}"
        existed = self.exists("")
        self.write(key, b"flowctl", exclusive=False, durable=True)
        self.delete(key)
        if not existed:
            self._remove_empty_root()

    def _remove_empty_root(self) -> None:
        with self._translated(""):
            if self.exists("") and not self.list(""):
                try:
                    self._fs.rmdir(self._root)
                except (FileNotFoundError, NotImplementedError):
                    return

    def require_present(self) -> None:
        """Folders come and go with their files on an object store: there is nothing to check before the first read."""

    def local_path(self, key: str) -> Path | None:
        return None

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _with_folder(self, key: str, put: Any) -> None:
        path = self._path(key)
        try:
            put(path)
        except FileNotFoundError:  # a storage with real folders
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            put(path)

    def _translated(self, key: str) -> _Edge:
        return _Edge(f"{self._url}/{key}" if key else self._url)


class _Edge:
    """Translates what the storage's library raises; faults of our own code (built-in errors) pass through."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, FlowctlError):
            translated = self._translation(error)
            if translated is not None:
                raise translated from error

    def _translation(self, error: Exception) -> StorageError | None:
        place = self._place
        if isinstance(error, FileExistsError):
            return AlreadyExists("it exists already", place=place, cure="choose another name")
        if isinstance(error, (FileNotFoundError, IsADirectoryError)):
            return NotFound("it is not there", place=place, cure="check the storage address and its bucket")
        if isinstance(error, (PermissionError, NotADirectoryError, NotImplementedError)):
            what = f"the storage cannot be used: {_line(error)}"
            return StorageRefused(what, place=place, cure="check its permissions, or choose another --storage")
        if isinstance(error, OSError) or type(error).__module__ not in _OWN_FAULTS:
            what = f"the storage does not answer: {_line(error)}"
            return StorageUnreachable(what, place=place, cure="check its address, its credentials and the network")
        return None


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
