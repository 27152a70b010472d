"""A process that is killed while it commits a checkpoint leaves either no checkpoint or a whole one.

Once at every point where it touches a file, and at random instants of a process that commits without pause.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import STEP, attempt_of, checkpoint_dir, claim, commit, make_run

from flowctl.storage.errors import AlreadyExists, NotFound
from flowctl.storage.location import Location
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.trial_reader import TrialReader

SUPPORT = Path(__file__).resolve().parents[1] / "support"

# Kills itself before the file operation number `point` below the storage.
AT_A_POINT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from run_folders import *
store, source, point = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
count = 0
def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.listdir", "os.rmdir"):
        if any(str(one).startswith(store) for one in arguments):
            count += 1
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
import flowctl.storage.local, flowctl.storage.trial_reader, cloudpickle
"""
COMMIT = """
attempt = attempt_of(RunFolder(Location.open(store), RUN, keyring()), 1)
sys.addaudithook(hook)
commit(attempt, source, 2)
"""
CREATE = """
sys.addaudithook(hook)
make_run(store)
"""
WITHOUT_PAUSE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from run_folders import *
attempt = attempt_of(RunFolder(Location.open(sys.argv[2]), RUN, keyring()), 1, index=int(sys.argv[4]))
source = Path(sys.argv[3])
for iteration in range(2, 100000):
    (source / "model").write_bytes(str(iteration).encode() * 20000)
    commit(attempt, source, iteration)
    print(iteration, flush=True)
"""


def run_to_its_end(code: str, *arguments: object) -> int:
    command = [sys.executable, "-c", code, str(SUPPORT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def check_every_manifest(reader: TrialReader, tmp_path: Path) -> None:
    for number, manifest in enumerate(reader.manifests()):
        reader.restore(manifest.ref, tmp_path / f"back-{number}-{manifest.ref.seq}")
    assert reader.warnings == []


def test_commit_killed_at_every_point(tmp_path: Path) -> None:
    source = checkpoint_dir(tmp_path / "c", model="2" * 1000, other="x", shared="same")
    point, returncode, seen = 0, 1, set()
    while returncode != 0:
        point += 1
        store = tmp_path / f"store-{point}"
        run = make_run(store)
        claim(attempt_of(run, 1))
        before = commit(attempt_of(run, 1), checkpoint_dir(tmp_path / "first", model="1", shared="same"), 1)

        returncode = run_to_its_end(AT_A_POINT + COMMIT, store, source, point)

        reader = TrialReader(run, STEP, 0)
        newest = reader.chain()
        assert newest is not None
        assert newest == before or newest.seq == 2
        seen.add(newest.seq)
        back = tmp_path / f"restored-{point}"
        assert reader.restore_newest(back) == newest
        assert (back / "model").read_text() == ("1" if newest == before else "2" * 1000)
        check_every_manifest(reader, tmp_path / f"all-{point}")

        after = commit(attempt_of(run, 1), source, 3)  # what was left over is no obstacle
        assert reader.chain() == after
    assert seen == {1, 2}
    assert point > 10


def test_create_killed_at_every_point(tmp_path: Path) -> None:
    point, returncode = 0, 1
    while returncode != 0:
        point += 1
        store = tmp_path / f"store-{point}"

        returncode = run_to_its_end(AT_A_POINT + CREATE, store, "-", point)

        run = RunFolder(Location.open(store), "sweep-1", make_run(tmp_path / f"other-{point}").keyring)
        if run.exists():
            run.load_run()
            run.load_plan()
            assert run.load_payload(STEP) == b"code"
            with pytest.raises(AlreadyExists):
                make_run(store)
        else:
            with pytest.raises(NotFound):
                run.load_run()
            make_run(store)
            assert run.load_payload(STEP) == b"code"
    assert point > 5


def test_commit_killed_at_random_instants(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    run = make_run(tmp_path / "store")
    source = checkpoint_dir(tmp_path / "c", model="1")
    for number in range(12):
        claim(attempt_of(run, 1, index=number))
        arguments = [str(SUPPORT), str(tmp_path / "store"), str(source), str(number)]
        command = [sys.executable, "-c", WITHOUT_PAUSE, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            last = process.stdout.readline()
            try:
                process.wait(timeout=draw.uniform(0, 0.15))
            except subprocess.TimeoutExpired:
                process.kill()
            last = (process.stdout.readlines() or [last])[-1]
        assert process.wait(timeout=30) == -signal.SIGKILL

        reader = TrialReader(run, STEP, number)
        newest = reader.chain(strict=True)
        assert newest is not None
        assert newest.seq in (int(last), int(last) + 1)
        check_every_manifest(reader, tmp_path / f"all-{number}")
