"""A stranger on our server: a kombu consumer with a short visibility timeout, which puts back what it thinks was lost.

Run as a program (`python foreign.py URL TIMEOUT_S FILE`) it appends a line to FILE: `looked` after each time that it
has looked for lost messages, `taken` whenever it gets its own one, which it never acknowledges.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VISIBILITY_S = 5


def main(url: str, timeout_s: float, file: str) -> None:
    """Takes a message of its own that it never acknowledges, and looks for lost ones once per second, for ever."""
    from kombu import Connection, Queue

    def say(word: str) -> None:
        with Path(file).open("a", encoding="utf-8") as seen:
            seen.write(f"{word}\n")

    queue = Queue("foreign")
    options = {"visibility_timeout": timeout_s}
    with Connection(url, transport_options=options) as connection, connection.channel() as channel:
        connection.Producer(channel).publish("bait", routing_key="foreign", declare=[queue])
        with connection.Consumer(queue, callbacks=[lambda body, message: say("taken")], channel=channel):
            while True:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=1)
                channel.qos.restore_visible(interval=1)
                say("looked")


@contextmanager
def foreign_consumer(url: str, seen: Path) -> Iterator[None]:
    """While it is entered, the stranger lives on the server at `url` (as kombu writes it)."""
    command = [sys.executable, __file__, url, str(VISIBILITY_S), str(seen)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the foreign consumer has died"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
