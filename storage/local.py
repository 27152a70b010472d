"""Folders of this machine, or mounted on it, by calls of the operating system.

A durable write is: temporary file in the same folder, fsync, rename (or link, if exclusive), fsync of the folder. New
folders above are not synced one by one: the file systems that workers use (ext4, xfs, btrfs, NFS) make a folder
durable no later than a file that was created in it afterwards.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flowctl.storage.errors import AlreadyExists, NotFound, StorageError, StorageRefused, StorageUnreachable
from flowctl.storage.location import TEMPORARY

_CHUNK = 1 << 20
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES}
_REFUSED = {
    errno.EACCES: ("it is not permitted", "make it writable for this user, or choose another --storage"),
    errno.EPERM: ("it is not permitted", "make it writable for this user, or choose another --storage"),
    errno.EROFS: ("the file system is read-only", "choose another --storage"),
    errno.ENOTDIR: ("a file stands where a folder must be", "choose another --storage"),
    errno.EISDIR: ("a folder stands where a file must be", "choose another --storage"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter --storage"),
    errno.ELOOP: ("its links lead in a circle", "choose another --storage"),
}
_FULL = {errno.ENOSPC, errno.EDQUOT}


class LocalBackend:
    """One folder of this machine. With `create`, writing makes it; without, a missing one is an outage."""

    def __init__(self, root: str, *, url: str, create: bool) -> None:
        self._root = root
        self._url = url
        self._create = create

    def write(self, key: str, data: bytes, *, exclusive: bool, durable: bool) -> None:
        target = self._path(key)
        with self._translated(key):
            temporary, handle = self._open_temporary(target)
            try:
                try:
                    _write_all(handle, data)
                    if durable:
                        os.fsync(handle)
                finally:
                    os.close(handle)
                self._publish(temporary, target, exclusive=exclusive)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)  # noqa: PTH108 (text paths: this is the hot path)
            if durable:
                _sync_folder(_parent(target))

    def read(self, key: str) -> bytes:
        with self._translated(key), open(self._path(key), "rb") as stream:
            return stream.read()

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._translated(key), open(self._path(key), "rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    def list(self, key: str) -> list[str]:
        with self._translated(key):
            try:
                names = os.listdir(self._path(key))  # noqa: PTH208 (names only: this is the hot path)
            except FileNotFoundError:
                self.require_present(tolerate=self._create)
                return []
            return sorted(name for name in names if not name.startswith(TEMPORARY))

    def size(self, key: str) -> int | None:
        with self._translated(key):
            try:
                return os.stat(self._path(key)).st_size  # noqa: PTH116
            except FileNotFoundError:
                self.require_present(tolerate=self._create)
                return None

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def delete(self, key: str) -> None:
        path = Path(self._path(key))
        with self._translated(key):
            if path.is_dir() and not path.is_symlink():
                with suppress(FileNotFoundError):  # someone else removes it too
                    shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def put_file(self, local: Path, key: str) -> None:
        target = self._path(key)
        with local.open("rb") as source, self._translated(key):
            temporary, handle = self._open_temporary(target)
            try:
                _copy(source, handle)
                self._publish(temporary, target, exclusive=False)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)  # noqa: PTH108
            _sync_folder(_parent(target))

    def put_object(self, local: Path, folder: str) -> tuple[str, int]:
        # One pass: the copy is written while it is hashed, and synced only if the storage does not hold it yet.
        with local.open("rb") as source, self._translated(folder):
            temporary, handle = self._open_temporary(f"{self._path(folder)}/object")
            try:
                digest = hashlib.sha256()
                size = 0
                try:
                    while chunk := source.read(_CHUNK):
                        digest.update(chunk)
                        _write_all(handle, chunk)
                        size += len(chunk)
                    name = digest.hexdigest()
                    target = f"{self._path(folder)}/{name}"
                    if _size(target) == size:
                        return name, size
                    os.fsync(handle)
                finally:
                    os.close(handle)
                os.replace(temporary, target)  # noqa: PTH105
                return name, size
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)  # noqa: PTH108

    def sync(self, key: str) -> None:
        with self._translated(key):
            _sync_folder(self._path(key))

    def probe(self) -> None:
        """Write a nameless trifle into the nearest folder that exists, and remove it."""
        folder = self._root
        with self._translated(""):
            while not os.path.lexists(folder):
                folder = _parent(folder)
            temporary = f"{folder}/{_temporary_name()}"
            if folder == self._root:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.close(handle)
                os.unlink(temporary)  # noqa: PTH108
            else:
                os.mkdir(temporary, 0o700)  # noqa: PTH102
                os.rmdir(temporary)  # noqa: PTH106

    def require_present(self, *, tolerate: bool = False) -> None:
        if not tolerate and not os.path.isdir(self._root):  # noqa: PTH112
            cure = "mount it on this machine, or give the run a storage that every worker sees"
            raise StorageUnreachable("the storage folder is not there", place=self._url, cure=cure)

    def local_path(self, key: str) -> Path | None:
        return Path(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _open_temporary(self, target: str) -> tuple[str, int]:
        folder = _parent(target)
        temporary = f"{folder}/{_temporary_name()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return temporary, os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            self.require_present(tolerate=self._create)
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            return temporary, os.open(temporary, flags, 0o666)

    def _publish(self, temporary: str, target: str, *, exclusive: bool) -> None:
        if not exclusive:
            os.replace(temporary, target)  # noqa: PTH105
            return
        try:
            os.link(temporary, target)
        except FileExistsError:
            # On a network file system the answer to a link that worked can get lost, and its repeat says "exists".
            if not os.path.samefile(temporary, target):  # noqa: PTH121
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here: an empty file reserves the name, and is replaced at once.
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            os.replace(temporary, target)  # noqa: PTH105

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translation(error, key) from error

    def _translation(self, error: OSError, key: str) -> StorageError:
        place = f"{self._url}/{key}" if key else self._url
        if isinstance(error, FileExistsError):
            return AlreadyExists("it exists already", place=place, cure="choose another name")
        if isinstance(error, FileNotFoundError):
            return NotFound("it is not there", place=place, cure="check the storage address")
        if error.errno in _REFUSED:
            what, cure = _REFUSED[error.errno]
            return StorageRefused(f"the storage cannot be used: {what}", place=place, cure=cure)
        if error.errno in _FULL:
            return StorageUnreachable("the storage is full", place=place, cure="free some space on it")
        what = f"the storage does not answer ({error.strerror or error})"
        return StorageUnreachable(what, place=place, cure="check the disk or the mount")


def _temporary_name() -> str:
    return f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except FileNotFoundError:
        return None


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _copy(source: BinaryIO, handle: int) -> None:
    try:
        while chunk := source.read(_CHUNK):
            _write_all(handle, chunk)
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)
