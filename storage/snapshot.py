"""A snapshot: what a folder holds, walked once, before it becomes a checkpoint.

Files, and folders that are empty, by their paths in it. Links are followed only to what lies inside the folder itself;
the copy holds a file of its own there. Anything that is not a file, a folder or such a link is refused by name.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flowctl.storage.errors import CheckpointError


@dataclass(frozen=True)
class SnapshotFile:
    """A file to copy: `path` in the folder with `/`, and where it is now."""

    path: str
    local: Path
    executable: bool


@dataclass(frozen=True)
class Snapshot:
    """The files and the empty folders of a folder, each sorted by path."""

    files: tuple[SnapshotFile, ...]
    folders: tuple[str, ...]


def take(folder: str | Path) -> Snapshot:
    """The snapshot of `folder`. Raises `CheckpointError`, which names the path at fault."""
    if not str(folder).strip():
        raise CheckpointError("a checkpoint's path is empty", cure="pass the folder that holds its files")
    root = Path(folder)
    try:
        if not root.exists():
            raise CheckpointError("the checkpoint's folder does not exist", place=str(root), cure="write it first")
        if not root.is_dir():
            cure = "pass the folder that holds the file"
            raise CheckpointError("a checkpoint is a folder, this is a file", place=str(root), cure=cure)
        found = list(_walk(root.resolve(), root, "", ()))
    except OSError as error:
        raise CheckpointError(f"the checkpoint cannot be read ({error})", place=str(root)) from error
    files = sorted((one for one in found if isinstance(one, SnapshotFile)), key=lambda one: one.path)
    return Snapshot(tuple(files), tuple(sorted(one for one in found if isinstance(one, str))))


def _walk(root: Path, folder: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[SnapshotFile | str]:
    above = (*above, folder.resolve())
    is_empty = True
    for entry in folder.iterdir():
        is_empty = False
        path = f"{prefix}{entry.name}"
        if not _is_utf8(path):
            raise CheckpointError(f"{path!r} is not a UTF-8 name", place=str(folder), cure="rename it")
        if entry.is_symlink():
            _check_link(root, entry, above)
        mode = entry.stat().st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(root, entry, f"{path}/", above)
        elif stat.S_ISREG(mode):
            yield SnapshotFile(path, entry, bool(mode & stat.S_IXUSR))
        else:
            cure = "a checkpoint holds files and folders only"
            raise CheckpointError("it is neither a file nor a folder", place=str(entry), cure=cure)
    if is_empty and prefix:
        yield prefix.rstrip("/")


def _check_link(root: Path, link: Path, above: tuple[Path, ...]) -> None:
    try:
        link.stat()
    except FileNotFoundError as error:
        cure = "remove it, or copy the file"
        raise CheckpointError("the link leads nowhere", place=str(link), cure=cure) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointError("the link leads to itself", place=str(link), cure="remove it") from error
    target = link.resolve()
    if not target.is_relative_to(root):
        raise CheckpointError("the link leads out of the checkpoint", place=str(link), cure="copy what it points to")
    if target in above:
        raise CheckpointError("the link leads in a circle", place=str(link), cure="remove it")


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
