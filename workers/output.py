"""What a trial prints: taken from its pipe, written to storage in pieces, bounded."""

import time
from collections.abc import Callable

from flowctl.workers.jobs import Jobs

FLUSH_S = 1.0
FLUSH_BYTES = 256 * 1024
BOUND = 16 * 2**20


class Output:
    """Pieces are named by their offset, so that a reader elsewhere can follow."""

    def __init__(self, jobs: Jobs, write: Callable[[int, bytes], None]) -> None:
        self._jobs = jobs
        self._write = write
        self._buffer = bytearray()
        self._offset = 0
        self._dropped = 0
        self.flush_at: float | None = None

    def take(self, data: bytes) -> None:
        """Takes what was printed; beyond the bound only the amount is kept."""
        if not data:
            return
        room = max(0, BOUND - self._offset - len(self._buffer))
        self._buffer += data[:room]
        self._dropped += len(data) - len(data[:room])
        if self._buffer and self.flush_at is None:
            self.flush_at = time.monotonic() + FLUSH_S
        if len(self._buffer) >= FLUSH_BYTES:
            self._flush()

    def flush_due(self, now: float) -> None:
        """Writes what has waited long enough."""
        if self.flush_at is not None and now >= self.flush_at:
            self._flush()

    def finish(self) -> None:
        """Writes the rest, and how much was left out."""
        if self._dropped:
            note = f"\n[flowctl: {self._dropped} more bytes of output were not kept; the bound is {BOUND} bytes]\n"
            self._buffer += note.encode()
            self._dropped = 0
        self._flush()

    def _flush(self) -> None:
        self.flush_at = None
        if not self._buffer:
            return
        data, offset = bytes(self._buffer), self._offset
        self._buffer.clear()
        self._offset += len(data)
        self._jobs.submit(lambda: self._write(offset, data), lambda _result, _error: None)
