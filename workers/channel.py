"""Frames between a guardian and its trial process over a socket pair: four bytes of length, then JSON. Light: it
imports nothing heavy.

Arrays never travel here: checkpoints go by path.
"""

import json
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

Frame = dict[str, Any]

_LENGTH = struct.Struct("!I")
_LIMIT = 256 * 2**20
_text_of = json.JSONEncoder(separators=(",", ":")).encode


class ChannelClosed(Exception):
    """The other side is gone."""


def pack(frame: Frame) -> bytes:
    """One frame as bytes. Special floats are written as Python's JSON writes them; both ends are ours."""
    body = _text_of(frame).encode()
    return _LENGTH.pack(len(body)) + body


class Channel:
    """The trial's end: blocking, one question at a time, safe to use from threads of the user's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.RLock()
        self._busy = False
        self._postponed: Callable[[], None] | None = None

    def send(self, frame: Frame) -> None:
        """Sends without waiting for an answer."""
        data = memoryview(pack(frame))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError as error:
                raise ChannelClosed(str(error)) from error

    def receive(self) -> Frame:
        """Waits for the next frame."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        loaded: Frame = json.loads(self._exactly(length))
        return loaded

    def ask(self, frame: Frame) -> Frame:
        """Sends a frame and waits for its answer."""
        with self._lock:
            self._busy = True
            try:
                self.send(frame)
                answer = self.receive()
            finally:
                self._busy = False
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            postponed()
        return answer

    def interrupt(self, action: Callable[[], None]) -> None:
        """For a signal handler: runs `action` now, or after the answer that is being waited for, so that no frame is
        torn.
        """
        if self._busy:
            self._postponed = action
        else:
            action()

    def _exactly(self, n: int) -> bytes:
        parts = bytearray()
        while len(parts) < n:
            try:
                part = os.read(self._fd, n - len(parts))
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not part:
                raise ChannelClosed("end of stream")
            parts += part
        return bytes(parts)


class FrameReader:
    """The guardian's end: fed with whatever has arrived, gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Frames that are complete now. Raises ValueError on a frame that cannot be one."""
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _LIMIT:
                raise ValueError(f"a frame of {length} bytes")
            if len(self._buffer) < _LENGTH.size + length:
                break
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            frame = json.loads(body)
            if not isinstance(frame, dict):
                raise ValueError("a frame that is no object")
            frames.append(frame)
        return frames
