"""A machine with GPUs for tests: a stand-in for NVML, compiled here and loaded by the real pynvml.

    gpus = StandIn(tmp_path)                        # seen by processes with its `env`, not by this one
    gpus.write(card("GPU-a"), card("GPU-b", used=900, pids=[4711]))
    subprocess.run([...], env={**os.environ, **gpus.env})

The file may change while processes run. See nvml/standin_nvml.c.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "nvml/standin_nvml.c"


@functools.cache
def library_folder() -> Path:
    """The folder with the compiled stand-in, made once per test process."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for NVML cannot be made")
    folder = Path(tempfile.mkdtemp(prefix="fcnvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


def card(
    uuid: str,
    *,
    total: int = 16384,
    used: int = 0,
    name: str = "Stand-in 16G",
    pids: Sequence[int] = (),
    slices: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> str:
    """A card, memory in MiB. `slices` puts it in MIG mode; `extra` are further lines for it."""
    lines = [f"gpu {uuid} {total} {used} {name}", *extra, *(f"pid {pid}" for pid in pids)]
    if slices:
        lines.append("mig on")
        lines += [f"slice {each} {total // len(slices)} 0 {name} slice" for each in slices]
    return "\n".join(lines)


class StandIn:
    """One machine. `env` makes a process see it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "gpus.txt"
        paths = [str(library_folder()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.env = {"LD_LIBRARY_PATH": ":".join(paths), "NVML_STANDIN": str(self.file)}

    def write(self, *cards: str) -> None:
        """What the machine has from now on; at once, for those who are reading."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("\n".join(cards) + "\n")
        fresh.rename(self.file)
