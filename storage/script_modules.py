"""Which loaded modules belong to a script, and so travel with its functions.

The script's own module, and every module whose file lies below the script's folder and is not installed: not in a
`site-packages`, not of Python, not of a virtual environment, not of an editable install, and not flowctl. What their
code imports later travels as text.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from flowctl.storage.script_imports import imported_files

_INSTALLED_PARTS = frozenset({"site-packages", "dist-packages"})


def modules_of(script: ModuleType) -> list[ModuleType]:
    """The modules that travel with `script`, itself first."""
    file = _file(script)
    if file is None:
        return [script]
    candidates = [module for module in _below(file.parent) if module is not script]
    if candidates:
        editable = set(_editable_names(file.parent))
        candidates = [one for one in candidates if one.__name__.partition(".")[0] not in editable]
    return [script, *candidates]


def source_files(modules: list[ModuleType]) -> dict[Path, str]:
    """The files of modules that travel, and those that their code imports somewhere, each with its path from the
    script's folder; the script is the first.
    """
    files = [file for file in map(_file, modules) if file is not None and file.suffix == ".py" and file.exists()]
    if not files:
        return {}
    folder = files[0].parent
    foreign = _foreign_folders(folder)

    def is_foreign(file: Path) -> bool:
        if not file.is_relative_to(folder) or _INSTALLED_PARTS.intersection(file.parts):
            return True
        return any(file.is_relative_to(one) for one in foreign)

    more = imported_files(files, folder, is_foreign=is_foreign)
    if more:
        editable = set(_editable_names(folder))
        more = [file for file in more if file.relative_to(folder).parts[0].removesuffix(".py") not in editable]
    return {file: file.relative_to(folder).as_posix() for file in (*files, *more)}


def _below(folder: Path) -> Iterator[ModuleType]:
    foreign = _foreign_folders(folder)
    for name, module in sorted(sys.modules.items()):
        if not isinstance(module, ModuleType) or module.__name__ != name or name == "__main__":
            continue
        if name.partition(".")[0] == "flowctl":
            continue
        file = _file(module)
        if file is None or not file.is_relative_to(folder) or _INSTALLED_PARTS.intersection(file.parts):
            continue
        if not any(file.is_relative_to(one) for one in foreign):
            yield module


def _foreign_folders(folder: Path) -> list[Path]:
    paths = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    if sys.prefix != sys.base_prefix:
        paths.add(sys.prefix)
    found = [Path(path).resolve() for path in paths if path]
    return [one for one in found if not folder.is_relative_to(one)]


def _editable_names(folder: Path) -> Iterator[str]:
    """Top-level names of editable installs whose project contains, or lies in, `folder`."""
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        if text is None:
            continue
        try:
            url = json.loads(text)
            project = Path(unquote(urlsplit(url["url"]).path)).resolve()
            is_editable = bool(url.get("dir_info", {}).get("editable"))
        except (ValueError, KeyError, TypeError):
            continue
        if is_editable and (folder.is_relative_to(project) or project.is_relative_to(folder)):
            names = (distribution.read_text("top_level.txt") or "").split()
            yield from names or [str(distribution.metadata["Name"]).replace("-", "_")]


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    return Path(file).resolve()
