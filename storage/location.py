"""A location: a folder on some storage, with the few operations that a run folder needs.

`Location.open` takes what a person wrote. Folders of this machine are served by calls of the operating system
(`local.py`); everything else by fsspec (`remote.py`), which is imported only then. Keys are relative paths with `/`.
Nothing here is cached: what `list`, `exists` and `read` say was true when they were called.

Invariant: a reader sees a key whole or not at all where the storage can do that (local folders and object stores).
Names that start with `.tmp-` are unfinished writes: never listed, never a record, left over only by a killed process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from flowctl.storage import address
from flowctl.storage.errors import StorageRefused

TEMPORARY = ".tmp-"
"""How the name of an unfinished write starts."""

_PRIVATE = {"memory": "lives inside one process", "data": "is read-only text", "reference": "is read-only"}


class Backend(Protocol):
    """What a kind of storage can do; keys were checked, and are relative to its root ("" is the root itself)."""

    def write(self, key: str, data: bytes, *, exclusive: bool, durable: bool) -> None: ...
    def chunks(self, key: str) -> Iterator[bytes]: ...
    def read(self, key: str) -> bytes: ...
    def list(self, key: str) -> list[str]: ...
    def size(self, key: str) -> int | None: ...
    def exists(self, key: str) -> bool: ...
    def delete(self, key: str) -> None: ...
    def put_file(self, local: Path, key: str) -> None: ...
    def put_object(self, local: Path, folder: str) -> tuple[str, int]: ...
    def sync(self, key: str) -> None: ...
    def probe(self) -> None: ...
    def require_present(self) -> None: ...
    def local_path(self, key: str) -> Path | None: ...


class Location:
    """A folder on some storage. Equal addresses are equal locations; `url` is the one spelling that is kept.

    Every operation raises `StorageUnreachable` if trying again may help and `StorageRefused` if not.
    """

    def __init__(self, backend: Backend, place: address.Address, prefix: str = "") -> None:
        self._backend = backend
        self._place = place
        self._prefix = prefix
        self.url = address.Address(place.scheme, f"{place.path}/{prefix}" if prefix else place.path).url

    @classmethod
    def open(cls, text: str | Path, *, create: bool = True) -> Location:
        """The location that `text` (a URL or a path) means.

        With `create` it must be writable, and a folder that is not there yet is made by the first write, not before.
        Without, a local folder must be there: a worker must not make a folder of its own where a shared one is missing.
        """
        place = address.parse(str(text))
        if place.scheme == "file":
            from flowctl.storage.local import LocalBackend

            backend: Backend = LocalBackend(place.path, url=place.url, create=create)
        else:
            from flowctl.storage.remote import RemoteBackend

            backend = RemoteBackend(place)
        location = cls(backend, place)
        if create:
            backend.probe()
        else:
            backend.require_present()
        return location

    def child(self, *parts: str) -> Location:
        """The folder below this one; parts may hold `/`."""
        return Location(self._backend, self._place, self._key("/".join(parts)))

    def require_shared(self) -> Location:
        """This location, if other processes can see it. Raises `StorageRefused` with the reason if not."""
        reason = _PRIVATE.get(self._place.scheme)
        if reason is not None:
            cure = "use a folder, or a URL such as s3://bucket/folder"
            raise StorageRefused(f"{self._place.scheme}:// {reason}, a run needs more", place=self.url, cure=cure)
        return self

    def write(self, path: str, data: bytes, exclusive: bool = False, *, durable: bool = True) -> None:
        """Write a whole file, with the folders above it; an existing one is replaced in one step.

        With `exclusive`, one that exists is left alone and `AlreadyExists` raised. On storages that cannot create
        exclusively this is a check followed by a write. A durable write has survived a power cut when it returns.
        """
        self._backend.write(self._key(path), data, exclusive=exclusive, durable=durable)

    def read(self, path: str) -> bytes:
        """The whole file. Raises `NotFound`."""
        return self._backend.read(self._key(path))

    def chunks(self, path: str) -> Iterator[bytes]:
        """The file in pieces of at most 1 MiB. Raises `NotFound` when the first is asked for."""
        return self._backend.chunks(self._key(path))

    def list(self, path: str = "") -> list[str]:
        """The names of files and folders directly in a folder, sorted; none if there is no such folder."""
        return self._backend.list(self._key(path) if path else self._prefix)

    def exists(self, path: str = "") -> bool:
        """Whether a file or folder is there; an outage is an error, not an absence."""
        return self._backend.exists(self._key(path) if path else self._prefix)

    def size(self, path: str) -> int | None:
        """Bytes of the file, or None if there is no such file."""
        return self._backend.size(self._key(path))

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; absent is fine."""
        self._backend.delete(self._key(path))

    def put_file(self, local: Path, path: str) -> None:
        """Copy a local file to `path`, in one step and durably."""
        self._backend.put_file(local, self._key(path))

    def get_file(self, path: str, local: Path) -> None:
        """Copy a file to the local path `local`, whose folder exists."""
        with local.open("wb") as target:
            for chunk in self.chunks(path):
                target.write(chunk)

    def put_object(self, local: Path, folder: str) -> tuple[str, int]:
        """Copy a local file to `folder/<its SHA-256 in hex>` unless it is there; returns (that hex, bytes).

        It is safe after `sync(folder)`. Raises `OSError` for what is wrong with the local file.
        """
        return self._backend.put_object(local, self._key(folder))

    def sync(self, folder: str) -> None:
        """Make the names of a folder durable, after `put_object`."""
        self._backend.sync(self._key(folder))

    def probe(self) -> None:
        """Check that it can be written to; leaves no trace. Raises `StorageRefused` or `StorageUnreachable`."""
        self._backend.probe()

    def local_path(self, path: str = "") -> Path | None:
        """The path on this machine, or None if the storage is elsewhere."""
        return self._backend.local_path(self._key(path) if path else self._prefix)

    def _key(self, path: str) -> str:
        for part in path.split("/"):
            if part in ("", ".", "..") or "\0" in part or "\\" in part:
                raise StorageRefused(f"{path!r} is not a safe path", place=self.url, cure="use names separated by '/'")
        return f"{self._prefix}/{path}" if self._prefix else path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"Location({self.url!r})"
