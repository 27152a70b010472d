"""The rows of one attempt on their way to storage: segments of many, written beside the loop, each cut from the
server only when it stands.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowctl.dsl.jsonvalue import decode, encode
from flowctl.dsl.stop import lookup
from flowctl.storage.segment import Segment
from flowctl.workers.jobs import Jobs

FLUSH_S = 2.0
FLUSH_ROWS = 500
RETRY_S = 1.0


class RowLog:
    """Buffers rows and writes them; remembers what the outcome needs to know of them."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        write: Callable[[int, list[dict[str, Any]]], Segment],
        trim: Callable[[int], None],
        note: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._write = write
        self._trim = trim
        self._note = note
        self._buffer: list[dict[str, Any]] = []
        self._is_writing = False
        self._sent_seq = 0
        self.flush_at: float | None = None
        self.segments: list[Segment] = []
        self.written_seq = 0
        self.count = 0
        self.names: set[str] = set()
        self.has_metric = False
        self.last: dict[str, Any] | None = None
        self._bests: dict[str, tuple[float, dict[str, Any]]] = {}

    def add(self, row: dict[str, Any], *, metric: str | None) -> float | None:
        """Takes a row; returns its value of the metric if that is a finite number."""
        self._buffer.append(row)
        self.count += 1
        if self.flush_at is None:
            self.flush_at = time.monotonic() + FLUSH_S
        if len(self._buffer) >= FLUSH_ROWS:
            self.flush()
        return self._see(row, metric)

    def go_on(self, rows: Iterable[Mapping[str, Any]], *, metric: str | None) -> None:
        """Remembers the rows of earlier attempts that this one goes on from; they stand on storage already."""
        for row in rows:
            self._see({**row, "metrics": encode(decode(row["metrics"]), "metrics")}, metric)

    def _see(self, row: Mapping[str, Any], metric: str | None) -> float | None:
        self.names.update(row["metrics"])
        self.last = row["metrics"]
        if metric is None:
            return None
        value = lookup(decode(row["metrics"]), metric)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        self.has_metric = True
        number = _as_float(value)
        if not math.isfinite(number):
            return None
        for mode, better in (("max", float.__gt__), ("min", float.__lt__)):
            if mode not in self._bests or better(number, self._bests[mode][0]):
                self._bests[mode] = (
                    number,
                    {"training_iteration": row["training_iteration"], "metrics": row["metrics"]},
                )
        return number

    def sent(self, seq: int) -> None:
        """The server has this row."""
        self._sent_seq = max(self._sent_seq, seq)

    def best(self, mode: str | None) -> dict[str, Any] | None:
        """The best row's iteration and metrics, or None."""
        return self._bests[mode][1] if mode in self._bests else None

    @property
    def is_drained(self) -> bool:
        """Whether every row stands on storage."""
        return not self._buffer and not self._is_writing

    def flush_due(self, now: float) -> None:
        """Writes what has waited long enough."""
        if self.flush_at is not None and now >= self.flush_at:
            self.flush()

    def flush(self) -> None:
        """Writes the buffer as one segment; rows of a failed write are written again."""
        self.flush_at = None
        if self._is_writing or not self._buffer:
            return
        rows, self._buffer = self._buffer, []
        self._is_writing = True

        def then(segment: Segment | None, error: BaseException | None) -> None:
            self._is_writing = False
            if error is not None or segment is None:
                self._buffer = rows + self._buffer
                self._note(f"waits to write its rows: {error}")
                self.flush_at = time.monotonic() + RETRY_S
                return
            self._note("")
            self.segments.append(segment)
            self.written_seq = int(rows[-1]["seq"])
            if self._sent_seq >= self.written_seq:
                self._trim(self.written_seq)
            if self._buffer and self.flush_at is None:
                self.flush_at = time.monotonic() + FLUSH_S

        self._jobs.submit(lambda: self._write(int(rows[0]["seq"]), rows), then)


def _as_float(value: float) -> float:
    """A whole number beyond what a float holds counts as infinite: it never wins."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
