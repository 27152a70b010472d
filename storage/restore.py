"""Making a local folder from a checkpoint: all of it, verified while it is copied, or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from flowctl.storage.errors import CheckpointError, DamagedRecord
from flowctl.storage.location import TEMPORARY, Location
from flowctl.storage.manifest import Manifest, ManifestFile
from flowctl.storage.trial_files import OBJECTS


def check_present(trial: Location, manifest: Manifest) -> None:
    """Return if every file of the checkpoint is in the trial's folder, in full length. Raises `DamagedRecord`."""
    for one in manifest.files:
        size = trial.size(f"{OBJECTS}/{one.object}")
        if size != one.size:
            what = "is missing" if size is None else f"has {size} bytes, not {one.size}"
            raise DamagedRecord(f"its file {one.path!r} {what}", place=manifest.ref.name)


def restore(trial: Location, manifest: Manifest, target: Path) -> Path:
    """Make the folder `target`, which must be absent or empty, from the checkpoint; returns it.

    It is built beside the target and renamed. Raises `DamagedRecord` or `NotFound` if the checkpoint is not as it was,
    `CheckpointError` if the local disk refuses.
    """
    temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}")
    try:
        temporary.mkdir(parents=True)
        for folder in manifest.folders:
            (temporary / folder).mkdir(parents=True, exist_ok=True)
        for one in manifest.files:
            path = temporary / one.path
            path.parent.mkdir(parents=True, exist_ok=True)
            _fetch(trial, one, path)
        temporary.replace(target)
    except OSError as error:
        cure = "the folder must be absent or empty, and the disk not full"
        raise CheckpointError(f"it cannot be restored ({error})", place=str(target), cure=cure) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _fetch(trial: Location, one: ManifestFile, path: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as copy:
        for chunk in trial.chunks(f"{OBJECTS}/{one.object}"):
            digest.update(chunk)
            size += len(chunk)
            copy.write(chunk)
    if size != one.size or digest.hexdigest() != one.object:
        raise DamagedRecord("the file is not what was written", place=one.path, cure="use the checkpoint before it")
    if one.executable:
        path.chmod(path.stat().st_mode | 0o100)
