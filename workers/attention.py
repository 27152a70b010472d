"""A nudge from the worker's thread to one guardian on the same machine: look at what is wanted now, do not wait for
the next renewal.
"""

import contextlib
import hashlib
import socket


def _address(boot: str, unit: str) -> str:
    return "\0flowctl-" + boot + "-" + hashlib.sha256(unit.encode()).hexdigest()[:24]


def listen(boot: str, unit: str) -> socket.socket:
    """The guardian's end: readable when it was nudged. The name is abstract: it goes with the process."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with contextlib.suppress(OSError):
        sock.bind(_address(boot, unit))
    return sock


def drain(sock: socket.socket) -> bytes:
    """What was said: b'r' renew, b'p' preempt. Empties the socket."""
    said = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            said += sock.recv(64)
    return said


def nudge(boot: str, unit: str, what: bytes) -> None:
    """Nobody listening is no error: the attempt has just ended."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.sendto(what, _address(boot, unit))
