"""The payload: user functions as bytes, so that workers need no copy of the user's code.

Functions and classes of the script, and of modules that lie beside it, are pickled by value; everything installed is
pickled by reference, flowctl itself included. Each entry is the pickle of `(function, stop functions)`. Nothing here
signs or checks: `RunFolder.load_payload` gives back only bytes that a signed record names.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flowctl.storage import culprit
from flowctl.storage.errors import PayloadError
from flowctl.storage.script_modules import modules_of

if TYPE_CHECKING:
    from flowctl.dsl.compile import StepCode

_CURE = "create it inside the function"
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
    with _by_value(main_module):
        return {key: _pickle(key, (code.function, tuple(code.stop))) for key, code in compiled_code.items()}


def unpickle_code(data: bytes) -> tuple[Any, tuple[Any, ...]]:
    """The function and the stop functions of a step; runs user code, so only a trial process calls this."""
    function, stop = pickle.loads(data)
    return function, stop


def _pickle(key: str, value: tuple[Any, tuple[Any, ...]]) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except _REFUSALS as error:
        raise PayloadError(_reason(value, error), place=f"step {key!r}", cure=_CURE) from error
    return data


def _reason(value: tuple[Any, tuple[Any, ...]], error: BaseException) -> str:
    function, stop = value
    for part, prefix in ((function, ""), *((one, "its stop function: ") for one in stop)):
        if not _can_pickle(part):
            found = culprit.find(part, _can_pickle)
            if found.trail:
                return f"{prefix}{found} cannot be pickled"
    return f"its function cannot be pickled ({type(error).__name__}: {error})"


def _can_pickle(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value, protocol=5)
    except _REFUSALS:
        return False
    return True


@contextmanager
def _by_value(script: ModuleType | None) -> Iterator[None]:
    import cloudpickle

    modules = [] if script is None else modules_of(script)
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
