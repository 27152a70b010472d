"""What user code sees of its placement group: the bundles of this attempt, and code that it runs on them.

Light, like all that a trial process imports. A function goes to its bundle by value, through this trial's guardian, who
signs it; what it returns comes back as plain values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowctl.dsl.jsonvalue import decode

_POLL_S = (0.02, 0.5)
ENDED = ("completed", "failed", "cancelled", "lost")


class HostFailed(RuntimeError):
    """What ran on a bundle did not end well. `cause` is its cause as a trial's would be."""

    def __init__(self, text: str, cause: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class Bundle:
    """One bundle of the attempt's placement group. Number 0 is the one that the trial itself runs on.

    `resources` in the units of the declaration; `devices` as they stand in CUDA_VISIBLE_DEVICES there.
    """

    index: int
    worker: str
    machine: str
    resources: Mapping[str, float]
    devices: tuple[str, ...]
    _ask: Callable[[dict[str, Any]], dict[str, Any]] = field(repr=False, compare=False)
    _pack: Callable[[Any], str] = field(repr=False, compare=False)

    def start(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Host:
        """Runs `function(*args, **keywords)` in a process of its own on this bundle, with its devices and a guardian
        and lease of its own; it ends with the attempt at the latest.

        One at a time per bundle. Raises ValueError on bundle 0 and RuntimeError while the bundle is busy or after the
        attempt was lost; TypeError for what cannot be pickled.
        """
        if self.index == 0:
            raise ValueError("bundle 0 is where the trial itself runs: call the function, or use another bundle")
        if not callable(function):
            raise TypeError(f"bundle.start: {function!r} is no function")
        path = self._pack((function, args, keywords))
        answer = self._ask({"t": "host_start", "bundle": self.index, "path": path})
        if answer.get("error"):
            raise RuntimeError(answer["error"])
        return Host(self, int(answer["number"]), self._ask)

    def refresh(self) -> Bundle | None:
        """This bundle as it is now: with `on_bundle_loss="repair"` one whose worker was lost is placed on another. None
        while it waits for one.
        """
        found = self._ask({"t": "host_bundle", "bundle": self.index}).get("bundle")
        return None if found is None else Bundle.of(self.index, found, ask=self._ask, pack=self._pack)

    @classmethod
    def of(
        cls,
        index: int,
        told: Mapping[str, Any],
        *,
        ask: Callable[[dict[str, Any]], dict[str, Any]],
        pack: Callable[[Any], str],
    ) -> Bundle:
        """As the guardian describes it."""
        devices = tuple(told["devices"])
        return cls(index, told["worker"], told["machine"], told["resources"], devices, _ask=ask, _pack=pack)


@dataclass(frozen=True)
class Host:
    """What was started on a bundle."""

    bundle: Bundle
    number: int
    _ask: Callable[[dict[str, Any]], dict[str, Any]] = field(repr=False, compare=False)

    @property
    def state(self) -> str:
        """placed, running, completed, failed, cancelled or lost."""
        return str(self._look()["state"])

    def result(self, timeout_s: float | None = None) -> Any:
        """What the function returned, once it has: plain values, arrays as lists.

        Raises HostFailed with its cause if it failed, was cancelled or lost, and TimeoutError after `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        delay_s = _POLL_S[0]
        while True:
            found = self._look()
            if found["state"] == "completed":
                return decode(found.get("value"))
            if found["state"] in ENDED:
                cause = found.get("cause") or {"kind": found["state"], "text": found.get("text") or found["state"]}
                kind = f"{cause['type']}: " if cause.get("type") else ""
                raise HostFailed(f"on bundle {self.bundle.index} ({self.bundle.worker}): {kind}{cause['text']}", cause)
            if deadline is not None and time.monotonic() >= deadline:
                where = f"bundle {self.bundle.index} ({self.bundle.worker})"
                raise TimeoutError(f"{where} is still {found['state']} after {timeout_s} s")
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _POLL_S[1])

    def cancel(self) -> None:
        """Asks it to end; after the stop grace its whole tree is removed. Harmless if it has ended."""
        self._ask({"t": "host_stop", "bundle": self.bundle.index, "number": self.number})

    def _look(self) -> dict[str, Any]:
        return self._ask({"t": "host_status", "bundle": self.bundle.index, "number": self.number})


def pack(value: Any, sources: Mapping[str, str], names: Sequence[str] = ()) -> str:
    """A function with its arguments as a file in the attempt's folder: by value what comes from the script, with the
    text of the script's files, and the names of modules that are imported from there. Raises TypeError, naming what
    cannot be pickled.
    """
    import pickle
    import tempfile
    from pathlib import Path

    import cloudpickle

    try:
        inner = cloudpickle.dumps(value, protocol=5)
    except (pickle.PickleError, TypeError, AttributeError, ValueError) as error:
        raise TypeError(f"bundle.start: cannot be pickled ({type(error).__name__}: {error})") from error
    with tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".host-", suffix=".pkl", delete=False) as file:
        file.write(pickle.dumps((inner, dict(sources), tuple(names)), protocol=5))
    return file.name
