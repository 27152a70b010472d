"""The state folder of one user on one machine: the signing key, the embedded server, logs and folders of attempts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flowctl.broker.errors import StateFolderRefused, StateFolderUnwritable

CURE = "set FLOWCTL_HOME to a folder of your own"


def state_folder(env: Mapping[str, str]) -> Path:
    """$FLOWCTL_HOME, else $XDG_STATE_HOME/flowctl, else ~/.local/state/flowctl; absolute, not made yet."""
    if env.get("FLOWCTL_HOME"):
        return Path(env["FLOWCTL_HOME"]).expanduser().resolve()
    base = env.get("XDG_STATE_HOME", "")
    # The base-directory convention says to ignore a relative one.
    root = Path(base) if base.startswith("/") else Path(env.get("HOME") or Path.home()) / ".local" / "state"
    return (root / "flowctl").resolve()


def make_private(folder: Path) -> Path:
    """Makes the folder with mode 0700 if it is missing; refuses one that another user owns or may write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise StateFolderRefused(
            f"cannot make the state folder ({error.strerror})", place=str(folder), cure=CURE
        ) from error
    if status.st_uid != os.geteuid():
        raise StateFolderRefused(f"the state folder belongs to user {status.st_uid}", place=str(folder), cure=CURE)
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise StateFolderRefused(
            "other users may write to the state folder", place=str(folder), cure=f"chmod 700 {folder}"
        )
    return folder


@contextmanager
def kept_on_disk(folder: Path) -> Iterator[None]:
    """Turns the disk's errors (it is full, read-only, broken) into StateFolderUnwritable, for blocks that write there
    and talk to nobody.
    """
    try:
        yield
    except OSError as error:
        what = f"cannot write to the state folder ({error.strerror or error})"
        cure = "make room there, or set FLOWCTL_HOME to a folder on another disk"
        raise StateFolderUnwritable(what, place=error.filename or str(folder), cure=cure) from error
