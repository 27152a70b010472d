"""The payload: user functions as bytes, so that workers need no copy of the user's code.

Functions and classes of the script, and of modules that lie beside it, are pickled by value; everything installed is
pickled by reference, flowctl itself included. Where that is refused, because a module beside the script holds what
cannot be pickled (a lock, a thread), these modules are pickled by reference too, and imported anew in the trial.

Each entry is the pickle of `(code, sources, names)`: `code` is the pickle of `(function, stop functions)`, to be read
once the rest can be imported. `sources` holds the text of each file that travels, so that a traceback elsewhere shows
its lines, and an import finds its module; `names` are the modules that `code` imports from there before anything else.
A module that is imported is made anew there: its classes are not those that a global of the script, pickled by value,
brought along, and what the script has set in it is not there. Nothing here signs or checks: `RunFolder.load_payload`
gives back only bytes that a signed record names.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from flowctl.storage import culprit
from flowctl.storage.errors import PayloadError
from flowctl.storage.script_imports import read_source
from flowctl.storage.script_modules import modules_of, source_files

if TYPE_CHECKING:
    from flowctl.dsl.compile import StepCode

_CURE = "create it inside the function"
_NO_FILE = "<dynamic-code>"
# What user objects raise when they refuse: pickling runs their own __reduce__ and __getstate__.
_REFUSALS = (
    pickle.PickleError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    ReferenceError,
    RuntimeError,
    TypeError,
    ValueError,
)


def pickle_code(compiled_code: Mapping[str, StepCode], main_module: ModuleType | None) -> dict[str, bytes]:
    """The bytes of each step's code, by its key. `main_module` is the script's module, if there is one.

    Raises `PayloadError`, which names the step and what in it cannot be pickled.
    """
    modules = [] if main_module is None else modules_of(main_module)
    sources = source_files(modules)
    texts = {name: read_source(path) for path, name in sources.items()}
    imported = [one for one in modules[1:] if _is_found(one, sources)]
    payload = {}
    for key, code in compiled_code.items():
        data, names = _pickle(key, (code.function, tuple(code.stop)), modules, sources, imported)
        payload[key] = pickle.dumps((data, texts, names), protocol=5)
    return payload


def unpickle_code(data: bytes) -> tuple[Any, tuple[Any, ...]]:
    """The function and the stop functions of a step; runs user code, so only a trial process calls this."""
    code, _sources, _names = pickle.loads(data)
    function, stop = pickle.loads(code)
    return function, stop


def _pickle(
    key: str,
    value: tuple[Any, tuple[Any, ...]],
    modules: list[ModuleType],
    sources: Mapping[Path, str],
    imported: list[ModuleType],
) -> tuple[bytes, tuple[str, ...]]:
    """The code, and the names of the modules that it imports: none of those beside the script, or all `imported`."""
    if imported:
        with contextlib.suppress(*_REFUSALS), _by_value(modules):
            return _dumps(value, sources), ()
    with _by_value([one for one in modules if one not in imported]):
        try:
            return _dumps(value, sources), tuple(one.__name__ for one in imported)
        except _REFUSALS as error:
            raise PayloadError(_reason(value, error), place=f"step {key!r}", cure=_CURE) from error


def _is_found(module: ModuleType, sources: Mapping[Path, str]) -> bool:
    """Whether importing its name elsewhere finds its text, as flowctl.workers.script_finder looks for it."""
    place = module.__name__.replace(".", "/")
    return sources.get(Path(module.__file__ or "").resolve()) in (f"{place}.py", f"{place}/__init__.py")


def _dumps(value: Any, sources: Mapping[Path, str]) -> bytes:
    import cloudpickle

    stock = cloudpickle.Pickler.dispatch_table[CodeType]
    stock_module = cloudpickle.Pickler.dispatch_table[ModuleType]

    def reduce_code(code: CodeType) -> Any:
        # cloudpickle writes one fixed name for the file of all code; ours is the path from the script's folder.
        name = sources.get(Path(code.co_filename), Path(code.co_filename).name)
        make, args = stock(code)
        return make, tuple(name if part == _NO_FILE else part for part in args)

    def reduce_module(module: ModuleType) -> Any:
        # cloudpickle makes a module with its content at once, without end for two that import each other.
        make, args = stock_module(module)
        return (make, args) if len(args) == 1 else (make, (args[0], {}), args[1])

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: reduce_code, ModuleType: reduce_module}, cloudpickle.Pickler.dispatch_table
        )

    buffer = io.BytesIO()
    Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _reason(value: tuple[Any, tuple[Any, ...]], error: BaseException) -> str:
    function, stop = value
    for part, prefix in ((function, ""), *((one, "its stop function: ") for one in stop)):
        if not _can_pickle(part):
            found = culprit.find(part, _can_pickle)
            if found.trail:
                return f"{prefix}{found} cannot be pickled"
    return f"its function cannot be pickled ({type(error).__name__}: {error})"


def _can_pickle(value: Any) -> bool:
    try:
        _dumps(value, {})
    except _REFUSALS:
        return False
    return True


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    import cloudpickle

    before = cloudpickle.list_registry_pickle_by_value()
    added = [one for one in modules if one.__name__ not in before and one.__name__ != "__main__"]
    try:
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        yield
    finally:
        for module in added:
            if module.__name__ in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.unregister_pickle_by_value(module)
