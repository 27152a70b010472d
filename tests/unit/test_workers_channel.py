"""Frames between guardian and trial: whole frames only, however the bytes arrive."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.workers.channel import Channel, ChannelClosed, FrameReader, pack

FRAMES = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20)), max_size=8)


@given(FRAMES, st.integers(min_value=1, max_value=7))
def test_frames_survive_any_cut(frames: list[dict[str, object]], size: int) -> None:
    stream = b"".join(pack(frame) for frame in frames)
    reader = FrameReader()

    found = [frame for at in range(0, len(stream), size) for frame in reader.feed(stream[at : at + size])]

    assert found == frames


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x01{"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        FrameReader().feed(data)


def test_an_interruption_waits_for_the_answer() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(os.dup(theirs.fileno()))
    heard: list[str] = []

    def serve() -> None:
        ours.recv(1 << 16)
        channel.interrupt(lambda: heard.append("interrupted"))
        heard.append("answered")
        ours.sendall(pack({"ok": 1}))

    thread = threading.Thread(target=serve)
    thread.start()
    answer = channel.ask({"t": "report"})
    thread.join()

    assert answer == {"ok": 1}
    assert heard == ["answered", "interrupted"]
    channel.interrupt(lambda: heard.append("at once"))
    assert heard[-1] == "at once"


def test_a_closed_channel_says_so() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(os.dup(theirs.fileno()))
    theirs.close()
    ours.close()

    with pytest.raises(ChannelClosed):
        channel.ask({"t": "report"})
