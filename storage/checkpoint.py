"""A checkpoint as user code sees it: a folder of files, with a little JSON beside them.

Imports nothing heavy: this is what a trial process holds. Where the files come from is somebody else's business: one
that was reported earlier is fetched when it is first looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowctl.dsl.jsonvalue import decode, encode
from flowctl.storage.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

METADATA = ".metadata.json"


class Checkpoint:
    """A folder of files. Make one with `Checkpoint.from_directory(path)` and hand it to `report`.

    The folder is copied when it is reported, not before: later changes to it do no harm to what was saved.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, fetch: Callable[[], Path] | None = None) -> None:
        if (path is None) == (fetch is None):
            raise CheckpointError("a checkpoint has no path", cure="use Checkpoint.from_directory(path)")
        self._path = _folder(path) if path is not None else None
        self._fetch = fetch

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint whose files are in `path`; nothing is copied yet.

        Raises `CheckpointError` if there is no such folder.
        """
        return cls(path)

    @property
    def path(self) -> str:
        """The folder that holds the files, on this machine; fetched now if it was not yet."""
        if self._path is None:
            assert self._fetch is not None
            self._path = _folder(self._fetch())
        return self._path

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files into `path` (made if absent; without it, a new temporary folder) and return it."""
        import shutil
        import tempfile

        target = tempfile.mkdtemp(prefix="checkpoint-") if path is None else os.fspath(path)
        try:
            shutil.copytree(self.path, target, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise CheckpointError(f"the checkpoint cannot be copied ({error})", place=str(target)) from error
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """The folder of the files, to read from: `with checkpoint.as_directory() as folder`. It is not a copy."""
        yield self.path

    @property
    def metadata(self) -> dict[str, Any]:
        """The JSON that is kept beside the files; empty if there is none."""
        return self.get_metadata()

    def get_metadata(self) -> dict[str, Any]:
        """The JSON that is kept beside the files; empty if there is none."""
        from pathlib import Path

        file = Path(self.path, METADATA)
        try:
            value = decode(json.loads(file.read_text("utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"the metadata cannot be read ({error})", place=str(file)) from error
        if not isinstance(value, dict):
            raise CheckpointError("the metadata is no JSON object", place=str(file), cure="call set_metadata")
        return value

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the JSON that is kept beside the files."""
        from pathlib import Path

        text = json.dumps(encode(dict(metadata), "metadata"), allow_nan=False, ensure_ascii=False, indent=1)
        temporary = Path(self.path, f".tmp-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            temporary.write_text(f"{text}\n", "utf-8")
            temporary.replace(Path(self.path, METADATA))
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise CheckpointError(f"the metadata cannot be written ({error})", place=self.path) from error

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set some keys of the JSON that is kept beside the files."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"Checkpoint({self._path!r})" if self._path is not None else "Checkpoint(not fetched yet)"


def _folder(path: str | os.PathLike[str]) -> str:
    from pathlib import Path

    text = os.fspath(path)
    if not text.strip():
        raise CheckpointError("a checkpoint's path is empty", cure="pass the folder that holds its files")
    folder = Path(text)
    if not folder.exists():
        raise CheckpointError("the checkpoint's folder does not exist", place=text, cure="write it first")
    if not folder.is_dir():
        cure = "pass the folder that holds the file"
        raise CheckpointError("a checkpoint is a folder, this is a file", place=text, cure=cure)
    return str(folder.absolute())
