"""Builders for tests of the storage: a run folder, an attempt, rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowctl.dsl.plan import Plan
from flowctl.storage.attempt import AttemptFolder
from flowctl.storage.location import Location
from flowctl.storage.manifest import ManifestRef
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring

KEY = "k" * 40
RUN = "sweep-1"
STEP = "train"


def keyring(text: str = KEY) -> Keyring:
    return Keyring([text.encode()])


def make_run(root: Path | str, *, run: str = RUN, payload: dict[str, bytes] | None = None) -> RunFolder:
    """A run as `submit` leaves it."""
    folder = RunFolder(Location.open(root), run, keyring())
    record = {"name": run, "created_ms": 1, "python": "3.11"}
    folder.create(record, Plan(name=run, steps=()), {STEP: b"code"} if payload is None else payload)
    return folder


def nonce(number: int) -> str:
    return f"{number:016x}"


def attempt_of(folder: RunFolder, epoch: int, *, index: int = 0, nonce_of: int | None = None) -> AttemptFolder:
    return AttemptFolder(folder, STEP, index, epoch, nonce(epoch if nonce_of is None else nonce_of))


def claim(attempt: AttemptFolder, *, number: int = 1, base: ManifestRef | None = None, saw: Any = ()) -> None:
    attempt.write_claim(
        attempt=number,
        worker="w",
        boot="b",
        server_ms=1000 + number,
        base=base,
        outcomes_seen=saw,
    )


def finish(attempt: AttemptFolder, status: str = "completed", **more: Any) -> None:
    fields: dict[str, Any] = {
        "cause": None,
        "reason": "finished",
        "last": None,
        "best": None,
        "counts": {"rows": 0},
        "segments": (),
        "output": None,
        "server_ms": 2000,
        "started_ms": 1000,
    }
    attempt.write_outcome(status=status, **{**fields, **more})


def row(iteration: int, *, seq: int | None = None, attempt: int = 1, **metrics: Any) -> dict[str, Any]:
    return {
        "seq": iteration if seq is None else seq,
        "training_iteration": iteration,
        "attempt": attempt,
        "time_total_s": iteration / 10,
        "timestamp": 1700000000 + iteration,
        "metrics": metrics or {"loss": 1 / iteration},
    }


def checkpoint_dir(path: Path, **files: str) -> Path:
    """A folder with these files."""
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def commit(attempt: AttemptFolder, folder: Path, iteration: int, **metrics: Any) -> ManifestRef:
    return attempt.commit_checkpoint(
        folder, seq=iteration, metrics=metrics or {"loss": 0.5}, iteration=iteration, server_ms=1500, segments=()
    )


def tree(root: Path) -> list[str]:
    """Every path below a folder, relative, sorted."""
    return sorted(str(one.relative_to(root)) for one in root.rglob("*"))
