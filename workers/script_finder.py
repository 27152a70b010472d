"""Imports, in a trial, of the modules that lay beside the script: from the text that travelled with it.

Only what nothing else finds is taken from there, but for modules that are known to be the script's. A module runs
under its own name, the script too, so that an `if __name__ == "__main__"` block never does; what submits at import is
refused.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType


def install(sources: Mapping[str, str], names: Collection[str] = ()) -> None:
    """Makes the files `sources`, text by path from the script's folder, importable in this process.

    `names` are modules of that text even where something else of that name could be found.
    """
    if names:
        sys.meta_path.insert(0, _Finder(sources, names))
    sys.meta_path.append(_Finder(sources))


class _Finder:
    def __init__(self, sources: Mapping[str, str], names: Collection[str] | None = None) -> None:
        self._sources = sources
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._names is not None and name not in self._names:
            return None
        place = name.replace(".", "/")
        for file in (f"{place}/__init__.py", f"{place}.py"):
            if file in self._sources:
                loader = _Loader(file, self._sources[file])
                spec = ModuleSpec(name, loader, origin=file, is_package=file.endswith("/__init__.py"))  # type: ignore[arg-type]
                spec.has_location = True
                return spec
        if any(file.startswith(f"{place}/") for file in self._sources):
            return ModuleSpec(name, None, is_package=True)
        return None


class _Loader:
    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from flowctl.dsl import launcher

        code = self.get_code(module.__name__)
        with launcher.refusing("a run is submitted while its script is imported in a trial"):
            exec(code, vars(module))

    def get_code(self, name: str) -> CodeType:
        code: CodeType = compile(self._text, self._file, "exec", dont_inherit=True)
        return code

    def get_source(self, name: str) -> str:
        return self._text
