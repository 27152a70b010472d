"""Reports on their way to the server, in order. Without contact they wait here and training goes on; at the bound the
trial waits too.

Nothing is dropped: the same report is sent again with the same sequence number until the server has answered.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flowctl.broker.calls import Reply
from flowctl.broker.contact import NoContact

BOUND = 1000
RETRY_S = 0.5


@dataclass
class Report:
    """One report: `send` runs its script; `answer` unblocks the trial, once; `sent` is told the server's answer."""

    send: Callable[[], Reply]
    answer: Callable[[Reply | None], None]
    sent: Callable[[Reply], None]
    is_answered: bool = False


class Outbox:
    """Sends in order, at once where the server answers."""

    def __init__(self) -> None:
        self._waiting: deque[Report] = deque()
        self._retry_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def retry_at(self) -> float | None:
        """Monotonic time of the next try, or None when nothing waits."""
        return self._retry_at if self._waiting else None

    def put(self, report: Report) -> None:
        """Takes a report and tries to send what waits."""
        self._waiting.append(report)
        self.pump()

    def pump(self) -> None:
        """Sends what can be sent now. While the server is silent, trials are answered 'go on' up to the bound."""
        while self._waiting and time.monotonic() >= self._retry_at:
            report = self._waiting[0]
            try:
                reply = report.send()
            except NoContact:
                self._retry_at = time.monotonic() + RETRY_S
                break
            self._waiting.popleft()
            report.sent(reply)
            self._answer(report, reply)
        if len(self._waiting) < BOUND:
            for report in self._waiting:
                self._answer(report, None)

    @staticmethod
    def _answer(report: Report, reply: Reply | None) -> None:
        if not report.is_answered:
            report.is_answered = True
            report.answer(reply)
