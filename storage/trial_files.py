"""The names of the files in a trial's folder, written and read back here only.

Each name carries the fence of its attempt, so that two attempts never write the same file, not even after a rewind of
the server handed out one epoch twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from flowctl.storage.errors import StorageRefused

SHARD = 1000
"""Trials per shard."""

OBJECTS = "objects"

_NONCE = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(
    r"(?P<kind>claim|outcome|rows|manifest|log|host)-(?P<epoch>\d{6,12})-(?P<nonce>[0-9a-f]{16})"
    r"(?:-(?P<number>\d{8,18}))?\.(?P<ext>jsonl|json|txt)",
    re.ASCII,
)
_HOST_LOG = re.compile(
    r"hostlog-(?P<epoch>\d{6,12})-(?P<nonce>[0-9a-f]{16})-(?P<bundle>\d{4,5})-(?P<host>\d{8,12})-(?P<by>[0-9a-f]{16})"
    r"-(?P<offset>\d{12,18})\.txt",
    re.ASCII,
)
_SHAPES = {
    "claim": ("json", False),
    "outcome": ("json", False),
    "rows": ("jsonl", True),
    "manifest": ("json", True),
    "log": ("txt", True),
    "host": ("json", True),
}


class Fence(NamedTuple):
    """What tells one attempt from all others: its epoch, and the nonce of the guardian that claimed it."""

    epoch: int
    nonce: str


class HostPart(NamedTuple):
    """What tells the hosts of one attempt apart: bundle, number, and the nonce of the guardian that claimed it."""

    bundle: int
    number: int
    nonce: str


@dataclass(frozen=True)
class TrialFile:
    """A file of a trial, as its name says: `number` is the sequence number, first row or byte offset, else None.

    `host` only for a log of code on another bundle, whose `fence` is that of the attempt it belongs to.
    """

    name: str
    kind: str
    fence: Fence
    number: int | None
    host: HostPart | None = None


def check_fence(epoch: int, nonce: str) -> Fence:
    """The fence, if it can stand in a file name. Raises `StorageRefused`."""
    if not 0 <= epoch < 10**12 or not _NONCE.fullmatch(nonce):
        cure = "an epoch counts from 1, a nonce has 16 hex digits"
        raise StorageRefused(f"({epoch}, {nonce!r}) is not the fence of an attempt", cure=cure)
    return Fence(epoch, nonce)


def name_of(kind: str, fence: Fence, number: int | None = None) -> str:
    """The name of a trial's file: `manifest-000002-89ab…-00000007.json`."""
    ext, numbered = _SHAPES[kind]
    assert numbered == (number is not None)
    digits = 12 if kind == "log" else 8
    tail = f"-{number:0{digits}d}" if number is not None else ""
    return f"{kind}-{fence.epoch:06d}-{fence.nonce}{tail}.{ext}"


def host_log_name(fence: Fence, host: HostPart, offset: int) -> str:
    """The name of a piece of a host's log: `hostlog-EPOCH-NONCE-BUNDLE-NUMBER-NONCE-OFFSET.txt`."""
    check_fence(fence.epoch, host.nonce)
    return f"hostlog-{fence.epoch:06d}-{fence.nonce}-{host.bundle:04d}-{host.number:08d}-{host.nonce}-{offset:012d}.txt"


def parse(name: str) -> TrialFile | None:
    """What a file name says, or None for a name that was not written here."""
    if name.startswith("hostlog-"):
        return _parse_host_log(name)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind = match["kind"]
    number = int(match["number"]) if match["number"] else None
    ext, numbered = _SHAPES[kind]
    if match["ext"] != ext or numbered != (number is not None):
        return None
    return TrialFile(name, kind, Fence(int(match["epoch"]), match["nonce"]), number)


def _parse_host_log(name: str) -> TrialFile | None:
    match = _HOST_LOG.fullmatch(name)
    if match is None:
        return None
    host = HostPart(int(match["bundle"]), int(match["host"]), match["by"])
    return TrialFile(name, "hostlog", Fence(int(match["epoch"]), match["nonce"]), int(match["offset"]), host)


def trial_folder(step: str, index: int) -> str:
    """The folder of a trial below its run's folder."""
    if index < 0:
        raise StorageRefused(f"{index} is not the index of a trial", cure="indexes count from 0")
    return f"steps/{step}/{index // SHARD:04d}/{index:06d}"


def shard_file(step: str, shard: int) -> str:
    """The file with the configurations of 1000 trials, below the run's folder."""
    return f"steps/{step}/trials-{shard:06d}.json"
