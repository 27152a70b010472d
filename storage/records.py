"""Records: the signed JSON objects that a run folder is made of.

Each is one line of strict JSON with `format`, `kind`, `run` and `sig`. A record is believed only if its signature holds
and it says itself the kind, run and place at which it was found: a good record copied elsewhere is damage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowctl.dsl.jsonvalue import encode
from flowctl.storage.errors import DamagedRecord
from flowctl.storage.signing import Keyring

FORMAT = 1
_CURE = "it counts as not written"


@dataclass(frozen=True)
class Damage:
    """Something on storage that was passed over: `path` below the run's folder, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def encode_record(keyring: Keyring, *, kind: str, run: str, fields: Mapping[str, Any]) -> bytes:
    """The bytes of a signed record. Fields are JSON already, except that odd text is escaped."""
    record = _scrubbed({"format": FORMAT, "kind": kind, "run": run, **fields})
    return line(keyring.sign(record))


def decode_record(
    data: bytes, *, keyring: Keyring, kind: str, run: str, path: str, expect: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of a record that was read at `path`. Raises `DamagedRecord`, `BadSignature` or `UnknownKey`."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedRecord("the record is cut or is no JSON", place=path, cure=_CURE) from error
    if not isinstance(record, dict):
        raise DamagedRecord("the record is no JSON object", place=path, cure=_CURE)
    if record.get("format") != FORMAT:
        cure = "use a flowctl of that version" if "format" in record else _CURE
        raise DamagedRecord(f"the record has format {record.get('format')!r}, not {FORMAT}", place=path, cure=cure)
    keyring.verify(record, what=path)
    for key, value in {"kind": kind, "run": run, **(expect or {})}.items():
        if record.get(key) != value:
            raise DamagedRecord(f"the record is of {key} {record.get(key)!r}, not {value!r}", place=path, cure=_CURE)
    return record


def line(value: Mapping[str, Any]) -> bytes:
    """A JSON object as one line of UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8") + b"\n"


def strict(value: Any, place: str) -> Any:
    """`value` as strict JSON, whether or not special floats in it were encoded before.

    Raises `ValueRefused` for what JSON cannot hold.
    """
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return encode(value, place)
    return value


def _scrubbed(value: Any) -> Any:
    """`value` with half surrogates (undecodable bytes of paths and messages) as backslash escapes."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(inner) for inner in value]
    return value
