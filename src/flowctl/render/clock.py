"""Instants and durations as people read them."""

from __future__ import annotations

from datetime import datetime, timezone


def span(seconds: float) -> str:
    """A duration in at most two units: 0.4s, 12s, 3m 05s, 2h 07m, 4d 03h."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def span_ms(start_ms: int | None, end_ms: int | None) -> str:
    """The time between two instants, or nothing if it has not started."""
    return span((end_ms - start_ms) / 1000) if start_ms is not None and end_ms is not None else ""


def clock(at_ms: int) -> str:
    """The local time of day."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%H:%M:%S")


def iso(at_ms: int | None) -> str | None:
    """UTC with milliseconds, for machines: 2026-01-31T12:00:00.000Z."""
    if at_ms is None:
        return None
    text = datetime.fromtimestamp(at_ms / 1000, tz=timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
