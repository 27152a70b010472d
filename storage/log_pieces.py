"""What a process printed, put together from the pieces that its guardian wrote."""

from __future__ import annotations

from collections.abc import Iterable

from flowctl.storage.location import Location
from flowctl.storage.trial_files import TrialFile


def joined(folder: Location, pieces: Iterable[TrialFile], *, start: int = 0) -> bytes:
    """The text from byte `start` on. What is lost leaves a line that says how much."""
    text, position = bytearray(), start
    for one in sorted(pieces, key=lambda piece: piece.number or 0):
        data, offset = folder.read(one.name), one.number or 0
        if offset + len(data) <= position:
            continue
        if offset > position:
            text += f"\n[{offset - position} bytes of the log are missing]\n".encode()
            position = offset
        text += data[position - offset :]
        position = offset + len(data)
    return bytes(text)
