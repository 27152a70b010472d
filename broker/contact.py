"""Telling 'the server did not answer' from 'the server said no'. Callers may ask again after the first; scripts make
a repeat harmless.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class NoContact(Exception):
    """The server could not be reached, or is not ready to answer. Asking again later is safe."""


_PASSING = ("LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "TRYAGAIN")


@contextmanager
def contact() -> Iterator[None]:
    """Turns redis-py's errors that pass with time into NoContact; others go through."""
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    try:
        yield
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise NoContact(str(error)) from error
    except ResponseError as error:
        if str(error).startswith(_PASSING):
            raise NoContact(str(error)) from error
        raise
