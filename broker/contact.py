"""Telling 'the server did not answer' from 'the server said no'. Callers may ask again after the first; scripts make
a repeat harmless.
"""

from functools import cache
from types import TracebackType
from typing import Any


class NoContact(Exception):
    """The server could not be reached, or is not ready to answer. Asking again later is safe."""


_PASSING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "TRYAGAIN")


class contact:
    """Turns redis-py's errors that pass with time into NoContact; others go through. A class and no generator: it
    stands on the way of every report.
    """

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        silent, said_no = _errors()
        if isinstance(error, silent) or (isinstance(error, said_no) and str(error).startswith(_PASSING)):
            raise NoContact(str(error)) from error


@cache
def _errors() -> tuple[tuple[type[Exception], ...], Any]:
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    return (RedisConnectionError, RedisTimeoutError, OSError), ResponseError
