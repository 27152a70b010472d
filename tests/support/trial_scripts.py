"""Scripts for tests of whole runs. Their trials write what they do into files of the folder SIDE, line by line."""

from __future__ import annotations

HEAD = '''
import os, sys, tempfile, time
from pathlib import Path
from flowctl import Checkpoint, experiment, flow, get_checkpoint, get_context, grid, report, stage

def note(name, text):
    """One line, in one write: it is there even if this process is killed next."""
    fd = os.open(Path(os.environ["SIDE"]) / str(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (str(text) + "\\n").encode())
    os.close(fd)

def restored():
    """The epoch of the newest checkpoint; 0 without one."""
    checkpoint = get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int((Path(folder) / "epoch").read_text())

def keep(epoch, **metrics):
    """A report with a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "epoch").write_text(str(epoch))
        report({"epoch": epoch, **metrics}, checkpoint=Checkpoint.from_directory(folder))
'''


def epochs(*, trials: int, epochs: int, epoch_s: float, options: str = "") -> str:
    """Trials that go on from their checkpoints. In SIDE/<index>: `start ATTEMPT FROM`, `did EPOCH`, `kept EPOCH`."""
    return f"""{HEAD}
X = grid(list(range({trials})))

@experiment(param_space={{"x": X}}, metric="epoch", mode="max", resources={{"cpu": 1}}, {options})
def train(config):
    me = get_context()
    done = restored()
    note(me.trial, f"start {{me.attempt}} {{done}}")
    for epoch in range(done + 1, {epochs} + 1):
        time.sleep({epoch_s})
        note(me.trial, f"did {{epoch}}")
        keep(epoch)
        note(me.trial, f"kept {{epoch}}")
"""


def body(text: str, *, trials: int = 1, options: str = "") -> str:
    """An experiment with this body; `me` is its context."""
    lines = "\n    ".join(text.strip().splitlines())
    return f"""{HEAD}
@experiment(param_space={{"x": grid(list(range({trials})))}}, resources={{"cpu": 1}}, {options})
def train(config):
    me = get_context()
    {lines}
"""


def repeated(lines: list[str]) -> list[str]:
    """What is wrong in a file of `epochs`: an epoch that was done again although its checkpoint was kept before."""
    kept, wrong = 0, []
    for line in lines:
        word, *numbers = line.split()
        if word == "kept":
            kept = int(numbers[0])
            continue
        is_again = word == "did" and int(numbers[0]) <= kept
        is_elsewhere = word == "start" and not kept <= int(numbers[1]) <= kept + 1
        if is_again or is_elsewhere:
            wrong.append(f"{line} after kept {kept}")
    return wrong
