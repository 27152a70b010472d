"""Storage work of one guardian, in order, beside its loop: a slow disk must not keep it from renewing its lease."""

import contextlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

_pools: dict[int, ThreadPoolExecutor] = {}


def _pool() -> ThreadPoolExecutor:
    """One thread per process, made after the fork."""
    pid = os.getpid()
    if pid not in _pools:
        _pools[pid] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="storage")
    return _pools[pid]


@dataclass
class _Done:
    then: Callable[[Any, BaseException | None], None]
    result: Any
    error: BaseException | None


class Jobs:
    """Runs work in order in a thread; `fd` becomes readable when something is done; `collect` runs what follows in
    the loop's thread.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: deque[_Done] = deque()
        self._open = 0

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits, or is to be collected."""
        return self._open == 0

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """`then(result, error)` is called by `collect`."""
        self._open += 1

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:
                error = caught
            self._done.append(_Done(then, result, error))
            os.eventfd_write(self.fd, 1)

        _pool().submit(run)

    def collect(self) -> None:
        """Calls what follows for everything that is done."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        while self._done:
            done = self._done.popleft()
            self._open -= 1
            done.then(done.result, done.error)

    def close(self) -> None:
        """Closes the descriptor. Only when idle."""
        os.close(self.fd)
