"""Why an attempt ended badly: the JSON that guardians and the reaper leave in Redis, read back as a value."""

from __future__ import annotations

import json
import signal as signals
from dataclasses import dataclass
from typing import Any

_PLAIN = {
    "out_of_memory": "out of memory",
    "timed_out": "timed out",
    "stalled": "no report for too long",
    "worker_lost": "its worker was lost",
    "guardian_lost": "its guardian process was lost",
    "preempted": "preempted",
    "cancelled": "cancelled",
}

_SIGKILL = 9


@dataclass(frozen=True)
class Cause:
    """One cause. `kind` is one of the words of the run folder format; the other fields are set where they apply."""

    kind: str
    type: str | None = None
    text: str | None = None
    place: str | None = None
    traceback: str | None = None
    signal: int | None = None
    code: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> Cause | None:
        """Read the stored JSON; None for an absent or empty field."""
        if not text:
            return None
        data = json.loads(text)
        return cls.of(data) if data else None

    @classmethod
    def of(cls, data: dict[str, Any]) -> Cause:
        """Read one decoded JSON object; keys of later formats are left aside."""
        return cls(
            kind=str(data.get("kind", "unknown")),
            type=_text(data.get("type")),
            text=_text(data.get("text")),
            place=_text(data.get("place")),
            traceback=_text(data.get("traceback")),
            signal=_number(data.get("signal")),
            code=_number(data.get("code")),
        )

    def headline(self) -> str:
        """The cause in one line, without its place."""
        if self.kind == "exception":
            return _one_line(f"{self.type or 'Exception'}: {self.text}" if self.text else self.type or "Exception")
        if self.kind == "signal":
            return f"killed by signal {self.signal}{_signal_name(self.signal)}"
        if self.kind == "exit":
            return f"the process exited with code {self.code} and gave no outcome"
        if self.kind == "no_metric":
            return _one_line(self.text or "never reported its metric")
        if self.kind in ("worker_lost", "guardian_lost", "infeasible") and self.text:
            return _one_line(self.text)
        plain = _PLAIN.get(self.kind, self.kind.replace("_", " "))
        return _one_line(f"{plain}: {self.text}" if self.text and self.text != plain else plain)

    def told(self) -> str:
        """The headline with its place, and with what is often behind it."""
        hint = "; often the kernel's out-of-memory killer: see dmesg" if self.signal == _SIGKILL else ""
        return f"{self.headline()}{f'  at {self.place}' if self.place else ''}{hint}"

    def to_json(self) -> dict[str, Any]:
        """All fields, for output as JSON; absent ones are null."""
        return {
            "kind": self.kind,
            "type": self.type,
            "text": self.text,
            "place": self.place,
            "traceback": self.traceback,
            "signal": self.signal,
            "code": self.code,
            "headline": self.headline(),
        }


def _signal_name(number: int | None) -> str:
    try:
        return f" ({signals.Signals(number).name})" if number else ""
    except ValueError:
        return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).lstrip("-").isdigit() else None
