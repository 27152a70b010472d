"""The address of a storage: which spellings mean one place, and which mean none.

A *path* is taken letter by letter, made absolute against the current folder (`~` is the home folder). A `file://` URL
is percent-decoded once, so `file:///tmp/with%20space` and `file:///tmp/with space` are one place. In every other URL
the text is taken as it is. `.`, `..` and doubled slashes are resolved by their letters; links are not followed, since
they may point elsewhere on another machine.

Refused, so that no folder `?x=1` or `%20` ever appears by accident: a query or a fragment in any URL; `%` and two hex
digits outside `file://` URLs, and a part that starts with `?` in a path (a folder that really has such a name is
reached by `file://` with `%25` and `%3F`). Also passwords in URLs, wrapped addresses (`a::b`), the root itself.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from flowctl.storage.errors import StorageRefused

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):(?=/)", re.IGNORECASE)
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SAME_SCHEME = {"local": "file", "s3a": "s3", "gcs": "gs"}
_CURE = "give a folder, file:///folder, or a URL such as s3://bucket/folder"


@dataclass(frozen=True)
class Address:
    """One place in its one spelling; `path` is absolute for `file`, and what follows `scheme://` for the others."""

    scheme: str
    path: str

    @property
    def url(self) -> str:
        """The spelling that is stored and compared; `parse(url)` gives this address again."""
        if self.scheme != "file":
            return f"{self.scheme}://{self.path}"
        quoted = self.path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        return f"file://{quoted}"


def parse(text: str) -> Address:
    """The address that a person wrote as a URL or a path. Raises `StorageRefused` with the cure; touches nothing."""
    if not text.strip():
        raise StorageRefused("the storage address is empty", cure=_CURE)
    if _CONTROL.search(text):
        raise StorageRefused(f"the storage address {text!r} holds a control character", cure=_CURE)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise StorageRefused(f"the storage address {text!r} is not UTF-8", cure="rename that folder") from None
    match = _SCHEME.match(text)
    if match is None:
        return _from_path(text)
    scheme = (match[1] or match[2]).lower()
    scheme = _SAME_SCHEME.get(scheme, scheme)
    rest = text[match.end() :]
    for mark, noun in (("?", "query"), ("#", "fragment")):
        if mark in rest:
            cure = f"leave out {rest[rest.index(mark) :]!r}; options of a storage come from its environment variables"
            raise StorageRefused(f"a storage address has no {noun}", place=text, cure=cure)
    return _from_file_url(text, rest) if scheme == "file" else _from_url(text, scheme, rest)


def _from_path(text: str) -> Address:
    if "://" in text:
        raise StorageRefused("wrapped addresses (a::b) and odd schemes cannot hold a run", place=text, cure=_CURE)
    if _ESCAPE.search(text) or any(part.startswith("?") for part in text.split("/")):
        cure = "write the character itself, or file:// with %25 for a percent sign and %3F for a question mark"
        raise StorageRefused("this path holds a piece of a URL", place=text, cure=cure)
    expanded = os.path.expanduser(text) if text.startswith("~") else text  # noqa: PTH111 (a Path drops what it resolves)
    if expanded.startswith("~"):
        raise StorageRefused("no home folder is known for it", place=text, cure="give an absolute path")
    return _absolute(text, str(Path.cwd() / expanded))


def _from_file_url(text: str, rest: str) -> Address:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        cure = f"write file:///{rest} with three slashes, if that is the folder"
        raise StorageRefused(f"{host!r} stands where a host would", place=text, cure=cure)
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise StorageRefused("its percent escapes are not UTF-8", place=text, cure="escape the UTF-8 bytes") from None
    if _CONTROL.search(decoded):
        raise StorageRefused("its percent escapes hold a control character", place=text, cure=_CURE)
    return _absolute(text, f"/{decoded}")


def _absolute(text: str, path: str) -> Address:
    resolved = posixpath.normpath(f"/{path.lstrip('/')}")
    if resolved == "/":
        raise StorageRefused("this is the root of the file system", place=text, cure="name a folder in it")
    return Address("file", resolved)


def _from_url(text: str, scheme: str, rest: str) -> Address:
    if "::" in text:
        raise StorageRefused("wrapped addresses (a::b) cannot hold a run", place=text, cure=_CURE)
    host = rest.split("/", 1)[0]
    user = host.rpartition("@")[0]
    if ":" in user:
        raise StorageRefused(
            "a storage address holds no password",
            place=f"{scheme}://…@{host.rpartition('@')[2]}",
            cure="keep it in the environment or in the client's own configuration",
        )
    if _ESCAPE.search(rest):
        cure = "write the character itself: only file:// URLs are percent-decoded"
        raise StorageRefused("percent escapes are not decoded here", place=text, cure=cure)
    path = posixpath.normpath(rest.lstrip("/")).lstrip("/")
    if path in (".", "..") or path.startswith("../"):
        raise StorageRefused("it names no folder", place=text, cure=_CURE)
    return Address(scheme, path)
