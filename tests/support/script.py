"""Scripts as tests write them: a body, with everything imported and a way to leave marks in the folder SIDE."""

from __future__ import annotations

import textwrap

PRELUDE = """\
import os, random, signal, sys, tempfile, threading, time
from pathlib import Path

from flowctl import *


def mark(name, text=""):
    with open(Path(os.environ["SIDE"]) / name, "a") as file:
        file.write(f"{os.getpid()} {time.time()} {text}\\n")


def wait_for(name):
    while not (Path(os.environ["SIDE"]) / name).exists():
        time.sleep(0.02)


def saved(**files):
    folder = Path(tempfile.mkdtemp(dir="."))
    for name, text in files.items():
        (folder / name).write_text(str(text))
    return Checkpoint.from_directory(folder)
"""


def script(body: str) -> str:
    """The text of a script. `mark(name)` appends a line of pid and time to a side file, `wait_for(name)` waits for
    one, `saved(a=1)` is a checkpoint with a file `a`.
    """
    return f"{PRELUDE}\n\n{textwrap.dedent(body)}"


def trains(body: str, **keywords: object) -> str:
    """A script with one experiment `train(config)` of this body; `keywords` are written as they are."""
    given = ", ".join(f"{name}={value}" for name, value in keywords.items())
    return script(f"@experiment({given})\ndef train(config):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
