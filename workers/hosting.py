"""The asking side of hosts: a trial's guardian signs code that the trial wants to run on a bundle, and asks for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowctl.broker.contact import NoContact
from flowctl.broker.host_view import load_bundle, load_host
from flowctl.storage.attempt import AttemptFolder
from flowctl.storage.host_code import write_host_code
from flowctl.workers.channel import Frame
from flowctl.workers.jobs import Jobs
from flowctl.workers.lease import Lease
from flowctl.workers.preparation import BundleGrant

MAX_CODE = 64 * 2**20


class Hosting:
    """Of one attempt. Every frame is answered: the trial waits for it."""

    def __init__(self, jobs: Jobs, lease: Lease, folder: AttemptFolder, answer: Callable[[Frame], None]) -> None:
        self._jobs = jobs
        self._lease = lease
        self._folder = folder
        self._answer = answer
        self._number = 0

    def on_frame(self, frame: Frame) -> None:
        """host_start, host_status, host_stop or host_bundle."""
        kind, bundle = frame["t"], int(frame["bundle"])
        if kind == "host_start":
            self._start(bundle, Path(frame["path"]))
        elif kind == "host_status":
            self._answer(self._status(bundle, int(frame["number"])))
        elif kind == "host_bundle":
            self._answer(self._where(bundle))
        else:
            self._stop(bundle, int(frame["number"]))

    def _start(self, bundle: int, path: Path) -> None:
        self._number += 1
        number = self._number

        def write() -> str:
            data = path.read_bytes()
            path.unlink()
            if len(data) > MAX_CODE:
                raise ValueError(f"the function and its arguments are {len(data)} bytes, more than {MAX_CODE}")
            return write_host_code(self._folder, data, bundle=bundle, number=number)

        def then(digest: str | None, error: BaseException | None) -> None:
            if digest is None:
                self._answer({"error": f"bundle.start: {error}"})
                return
            try:
                reply = self._lease.broker.calls.host_start(
                    self._lease.fence, bundle=bundle, number=number, digest=digest
                )
            except NoContact as gone:
                self._answer({"error": f"bundle.start: the server does not answer: {gone}"})
                return
            refusals = {
                "LOST": "this attempt was lost",
                "REPAIRING": f"bundle {bundle} lost its worker and waits for another: ask refresh()",
                "NO_BUNDLE": f"there is no bundle {bundle}",
                "BUSY": f"bundle {bundle} is busy: wait for its result, or cancel it",
                "GONE": f"the worker of bundle {bundle} is gone",
            }
            refusal = refusals.get(reply.word)
            self._answer({"error": f"bundle.start: {refusal}"} if refusal else {"number": number})

        self._jobs.submit(write, then)

    def _status(self, bundle: int, number: int) -> dict[str, Any]:
        try:
            found = load_host(self._lease.broker.client, self._lease.fence.unit, bundle=bundle, number=number)
        except NoContact:
            return {"state": "unknown"}
        return found or {"state": "lost", "text": "its attempt is over, or another took its bundle"}

    def _where(self, bundle: int) -> dict[str, Any]:
        fence = self._lease.fence
        try:
            found = load_bundle(self._lease.broker.client, fence.unit, epoch=fence.epoch, bundle=bundle)
        except NoContact:
            found = None
        return {"bundle": None if found is None else BundleGrant.from_reply(found).to_json()}

    def _stop(self, bundle: int, number: int) -> None:
        try:
            self._lease.broker.calls.host_stop(self._lease.fence, bundle=bundle, number=number)
        except NoContact as gone:
            self._answer({"error": str(gone)})
            return
        self._answer({})
