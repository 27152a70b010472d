"""Which files beside a script its code imports, read from the text alone: an `import` inside a function counts too.

Nothing is imported to find out: what a function imports may exist on the workers only. Bodies of
`if __name__ == "__main__"` and `if TYPE_CHECKING` do not run in a trial and are passed over.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib.util import decode_source
from pathlib import Path


def read_source(path: Path) -> str:
    """The text of a source file in the encoding that it declares; what is wrong in it is replaced."""
    data = path.read_bytes()
    try:
        return decode_source(data)
    except (SyntaxError, UnicodeDecodeError):
        return data.decode("utf-8", "replace")


def imported_files(files: list[Path], folder: Path, *, is_foreign: Callable[[Path], bool]) -> list[Path]:
    """The files below `folder` that `files` import, and what those import, without `files` themselves."""
    known, queue, found = set(files), list(files), []
    while queue:
        file = queue.pop(0)
        for path in _imports(file, folder):
            if path not in known and not is_foreign(path):
                known.add(path)
                queue.append(path)
                found.append(path)
    return found


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(read_source(file))
    except (SyntaxError, ValueError, RecursionError, OSError):
        return
    package = file.relative_to(folder).parent.parts
    for node in _running(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(tuple(alias.name.split(".")), folder)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = (*base, *(node.module.split(".") if node.module else ()))
            yield from _files_of(name, folder)
            for alias in node.names:
                yield from _files_of((*name, alias.name), folder)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    queue = [tree]
    while queue:
        node = queue.pop()
        yield node
        if isinstance(node, ast.If) and _is_passed_over(node.test):
            queue += node.orelse
        else:
            queue += ast.iter_child_nodes(node)


def _is_passed_over(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return text in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'", "'__main__' == __name__")


def _files_of(name: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """The files that importing `name` runs, packages first; none for what Python or something installed provides."""
    if not name or name[0] in sys.stdlib_module_names or name[0] == "flowctl":
        return
    for depth in range(1, len(name) + 1):
        place = folder.joinpath(*name[:depth])
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                yield path.resolve()
                break
