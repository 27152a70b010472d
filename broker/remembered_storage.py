"""The storage that `flowctl up --storage` named: the default of this state folder's own submits, beside its server."""

from __future__ import annotations

import os
from pathlib import Path

from flowctl.broker.errors import StateFolderRefused


def remembered_storage(home: Path) -> str | None:
    """The address that was remembered, or None."""
    try:
        return _file(home).read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateFolderRefused(f"cannot read it ({error})", place=str(_file(home)), cure="remove it") from error


def remember_storage(home: Path, url: str | None) -> None:
    """Replaces it whole; None forgets it. The server's folder must be there to remember one."""
    path = _file(home)
    if url is None:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(f"{url}\n", encoding="utf-8")
    temporary.replace(path)


def _file(home: Path) -> Path:
    return home / "server" / "storage"
