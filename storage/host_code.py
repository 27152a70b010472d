"""Code that an attempt runs on a further bundle of its placement group: made at run time, signed by the attempt's
guardian for that attempt, bundle and number alone.
"""

from __future__ import annotations

import base64
import hashlib

from flowctl.storage.attempt import AttemptFolder, fence_fields
from flowctl.storage.errors import DamagedRecord
from flowctl.storage.records import decode_record, encode_record
from flowctl.storage.trial_files import name_of


def write_host_code(folder: AttemptFolder, data: bytes, *, bundle: int, number: int) -> str:
    """Writes the code of host `number` of this attempt; returns its digest, which the server is told."""
    run = folder.run_folder
    digest = digest_of(data)
    fields = {**_place(folder, bundle, number), "digest": digest, "code": base64.b64encode(data).decode()}
    record = encode_record(run.keyring, kind="host", run=run.run, fields=fields)
    run.folder.child(folder.path).write(name_of("host", folder.fence, number), record)
    return digest


def read_host_code(folder: AttemptFolder, *, bundle: int, number: int, digest: str) -> bytes:
    """The code, if its record is signed for exactly this attempt, bundle and number, and is what the server named."""
    run = folder.run_folder
    name = name_of("host", folder.fence, number)
    path = f"{folder.path}/{name}"
    record = decode_record(
        run.folder.child(folder.path).read(name),
        keyring=run.keyring,
        kind="host",
        run=run.run,
        path=path,
        expect={**_place(folder, bundle, number), "digest": digest},
    )
    data = base64.b64decode(record["code"])
    if digest_of(data) != digest:
        raise DamagedRecord("the code differs from its digest", place=path, cure="start it again")
    return data


def digest_of(data: bytes) -> str:
    """As records name it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _place(folder: AttemptFolder, bundle: int, number: int) -> dict[str, object]:
    where = {"step": folder.step, "index": folder.index, **fence_fields(folder.fence)}
    return {**where, "bundle": bundle, "number": number}
