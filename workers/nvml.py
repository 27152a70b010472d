"""The face of NVML, the library of NVIDIA's driver: which cards are there, who is on them, how much of them is free.

It never touches CUDA. NVML is opened for one question and closed again. A worker's main process, which forks, never
loads it: it asks a short-lived process (`cards_of_machine`, `occupancy_asked`: this file run as a program). Guardians
and trial processes, which do not fork, ask here. No library, no driver: no cards.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, TypeVar

ANSWER_S = 20.0
"""A driver that has lost a card may never answer; a healthy one without persistence needs seconds."""
LOOK_S = 5.0
"""For a look at devices while something waits."""

T = TypeVar("T")


class NvmlFailed(Exception):
    """The library is there and fails, or does not answer. `is_absent`: there is no library."""

    def __init__(self, text: str, *, is_absent: bool = False) -> None:
        super().__init__(text)
        self.is_absent = is_absent


@dataclass(frozen=True)
class Card:
    """One GPU in NVML's order, which is that of the PCI bus; or one slice (MIG) of the card `index`."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    is_slice: bool = False
    slices: tuple["Card", ...] = ()
    """Those of a card in MIG mode."""
    is_sliced: bool = False
    """In MIG mode, be there slices or not: nothing runs on the card as a whole."""


@dataclass(frozen=True)
class Occupancy:
    """Who is on a device. `pids` None: the driver does not say. Bytes."""

    pids: tuple[int, ...] | None
    free: int
    used: int
    total: int


@contextlib.contextmanager
def opened() -> Iterator[ModuleType]:
    """NVML, for as long as the block lasts. Raises NvmlFailed, also for an error inside the block."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        absent = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        raise NvmlFailed(f"NVML: {error}", is_absent=absent) from error


def cards() -> list[Card]:
    """All cards of this machine. One that does not answer is left out; the others keep their numbers."""
    found = []
    with opened() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                is_sliced, slices = _slices(nvml, handle, index)
                found.append(_card(nvml, handle, index, slices=slices, is_sliced=is_sliced))
    return found


def occupancy(uuids: Collection[str]) -> dict[str, Occupancy]:
    """Of devices that `cards` named; those that do not answer are left out."""
    found = {}
    with opened() as nvml:
        for uuid in uuids:
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                memory = _memory(nvml, handle)
                found[uuid] = Occupancy(_pids(nvml, handle), memory.free, memory.used, memory.total)
    return found


def cards_of_machine() -> list[Card]:
    """Like `cards`, asked in a process of its own."""
    return [_card_of(data) for data in _asked()]


def occupancy_asked(uuids: Collection[str]) -> dict[str, Occupancy]:
    """Like `occupancy`, asked in a process of its own."""
    return {uuid: _occupancy_of(data) for uuid, data in _asked(*uuids, timeout_s=LOOK_S).items()}


def occupancy_bounded(uuids: Collection[str]) -> dict[str, Occupancy]:
    """Like `occupancy`, asked here; NvmlFailed after LOOK_S."""
    return bounded(lambda: occupancy(uuids), timeout_s=LOOK_S)


def bounded(work: Callable[[], T], *, timeout_s: float = ANSWER_S) -> T:
    """What `work` returns or raises; NvmlFailed when it takes longer: its thread is then left behind."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="nvml", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise NvmlFailed(f"NVML does not answer for {timeout_s:g} s")
    return results[0]


def _card(nvml: Any, handle: Any, index: int, **fields: Any) -> Card:
    name = nvml.nvmlDeviceGetName(handle)
    return Card(index, nvml.nvmlDeviceGetUUID(handle), name, _memory(nvml, handle).total // 2**20, **fields)


def _slices(nvml: Any, handle: Any, index: int) -> tuple[bool, tuple[Card, ...]]:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False, ()
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return False, ()
    found = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError):
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            found.append(_card(nvml, part, index, is_slice=True))
    return True, tuple(found)


def _memory(nvml: Any, handle: Any) -> Any:
    """`used` is without what the driver keeps for itself, as nvidia-smi shows it; older drivers cannot tell."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _pids(nvml: Any, handle: Any) -> tuple[int, ...] | None:
    try:
        found = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        return None
    for also in (nvml.nvmlDeviceGetGraphicsRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses):
        with contextlib.suppress(nvml.NVMLError):
            found.update(process.pid for process in also(handle))
    return tuple(sorted(found))


# --- the short-lived process ---


def _asked(*uuids: str, timeout_s: float = ANSWER_S) -> Any:
    command = [sys.executable, "-m", "flowctl.workers.nvml", *uuids]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise NvmlFailed(f"NVML does not answer for {timeout_s:g} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise NvmlFailed(f"NVML: the process that asks it ended: {last[0]}") from None
    if "failed" in answer:
        raise NvmlFailed(answer["failed"], is_absent=answer["is_absent"])
    return answer["answer"]


def _card_of(data: Mapping[str, Any]) -> Card:
    return Card(**{**data, "slices": tuple(_card_of(each) for each in data["slices"])})


def _occupancy_of(data: Mapping[str, Any]) -> Occupancy:
    return Occupancy(**{**data, "pids": None if data["pids"] is None else tuple(data["pids"])})


def _main(uuids: Sequence[str]) -> None:
    try:
        if uuids:
            answer: Any = {uuid: asdict(found) for uuid, found in occupancy(uuids).items()}
        else:
            answer = [asdict(card) for card in cards()]
        print(json.dumps({"answer": answer}))
    except NvmlFailed as error:
        print(json.dumps({"failed": str(error), "is_absent": error.is_absent}))


if __name__ == "__main__":
    _main(sys.argv[1:])
