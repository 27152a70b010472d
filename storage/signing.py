"""Signatures: nothing is unpickled or believed that was not signed with a key that this machine holds.

The signature of a record is HMAC-SHA256 over its canonical JSON without the field `sig`. The key's id, the first 16 hex
digits of the key's SHA-256, is public; the key is not, and never leaves the client and the workers' main processes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowctl.dsl.jsonvalue import canonical
from flowctl.storage.errors import BadSignature, StorageRefused, UnknownKey

VARIABLE = "FLOWCTL_SECRET_KEY"
_FILE = "secret.key"
_SHORTEST = 32


class Keyring:
    """The keys of this machine: the first one signs, all of them verify."""

    def __init__(self, keys: list[bytes]) -> None:
        if not keys:
            raise UnknownKey("there is no signing key", cure=f"run `flowctl up`, which makes one, or set {VARIABLE}")
        self._keys = {_id(key): key for key in keys}
        self.key_id = _id(keys[0])
        """The id of the key that signs."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], state: Path, *, create: bool) -> Keyring:
        """The keys of `FLOWCTL_SECRET_KEY` (several are separated by commas; the first signs) and `<state>/secret.key`.

        With `create`, that file is made (mode 600) if there is no key at all; two processes that do so agree on one.
        Raises `UnknownKey` if there is none, `StorageRefused` for one that is too short or readable by others.
        """
        keys = []
        for text in env.get(VARIABLE, "").split(","):
            if text.strip():
                keys.append(_checked(text.strip(), VARIABLE))
        path = state / _FILE
        if path.exists():
            keys.append(_read(path))
        elif create and not keys:
            keys.append(_make(path))
        return cls(keys)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, first the one that signs."""
        return tuple(self._keys)

    def sign(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record with its `sig`; an older one is replaced."""
        bare = {key: value for key, value in record.items() if key != "sig"}
        return {**bare, "sig": {"key_id": self.key_id, "hmac": _hmac(self._keys[self.key_id], bare)}}

    def verify(self, record: Mapping[str, Any], *, what: str) -> None:
        """Return if the record is as it was signed. Raises `BadSignature` or `UnknownKey`, naming `what`."""
        signature = record.get("sig")
        if not isinstance(signature, Mapping) or not all(isinstance(signature.get(k), str) for k in ("key_id", "hmac")):
            raise BadSignature("it is not signed", place=what, cure="it was not written by flowctl, or was cut")
        key = self._keys.get(signature["key_id"])
        if key is None:
            mine = ", ".join(self._keys)
            cure = f"set {VARIABLE} to the key of the machine that submitted the run"
            raise UnknownKey(
                f"it was signed with key {signature['key_id'][:16]}, here is {mine}", place=what, cure=cure
            )
        bare = {name: value for name, value in record.items() if name != "sig"}
        if not hmac.compare_digest(_hmac(key, bare).encode(), signature["hmac"].encode("utf-8", "replace")):
            raise BadSignature(
                "its signature does not fit its content", place=what, cure="it was changed after writing"
            )


def _hmac(key: bytes, record: Mapping[str, Any]) -> str:
    return hmac.new(key, canonical(record), hashlib.sha256).hexdigest()


def _id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


def _checked(text: str, place: str) -> bytes:
    if len(text) < _SHORTEST:
        what = f"a key has at least {_SHORTEST} characters, this one {len(text)}"
        raise StorageRefused(what, place=place, cure="use long random text, such as 64 random hex digits")
    return text.encode("utf-8")


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise StorageRefused("the key can be read by others", place=str(path), cure=f"chmod 600 {path}")
        return _checked(path.read_text("utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise StorageRefused(f"the key cannot be read ({error})", place=str(path), cure="check the file") from error


def _make(path: Path) -> bytes:
    temporary = path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, f"{secrets.token_hex(32)}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    except OSError as error:
        cure = f"make the folder writable, or set {VARIABLE}"
        raise StorageRefused(f"the key cannot be made ({error.strerror})", place=str(path), cure=cure) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return _read(path)
