"""What any worker does for everybody, a bounded piece per beat: drains journals, writes left rows, finishes
expansions of dead clients.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker
from flowctl.dsl.errors import FlowctlError
from flowctl.dsl.names import parse_unit
from flowctl.storage.errors import AlreadyExists, StorageUnreachable
from flowctl.storage.run_folder import RunFolder
from flowctl.storage.signing import Keyring
from flowctl.workers.preparation import keep_tail, open_run
from flowctl.workers.runs.expand import Expansion

EVENTS_PER_SEGMENT = 5000
JOURNAL_S = 1.5
EXPAND_S = 0.3
log = logging.getLogger("flowctl")


class Chores:
    """The shared work, as one worker's thread does it."""

    def __init__(self, *, settings: Settings, keyring: Keyring, owner: str) -> None:
        self._settings = settings
        self._keyring = keyring
        self._owner = owner
        self._journal_at = 0.0
        self._strange: set[str] = set()
        self._expansion: tuple[str, str, Expansion] | None = None

    def do(self, broker: Broker) -> None:
        """One bounded piece of each. A storage that does not answer is tried again at a later beat."""
        for chore in (self._expand, self._leftovers, self._journals):
            try:
                chore(broker)
            except StorageUnreachable as error:
                log.warning("storage: %s", error)
            except FlowctlError as error:
                log.warning("%s: %s", chore.__name__.strip("_"), error)

    def _folder(self, broker: Broker, run: str) -> RunFolder | None:
        """The run's folder, None if the run is gone. Raises FlowctlError if it cannot be seen or read from here: what
        is written for the run, and then cut from the server, must not land in a folder that nobody else sees.
        """
        location, token = broker.client.hmget(f"fc:run:{run}", "location", "token")
        return open_run(location, run, token, self._keyring) if location else None

    def _pass_over(self, run: str, error: FlowctlError) -> None:
        """Says once that a run's shared work is left to other workers."""
        if run not in self._strange:
            self._strange.add(run)
            log.warning("the records of %s are left to other workers: %s", run, error)

    def _expand(self, broker: Broker) -> None:
        """At most one chunk of one step, and of a costly one only what `EXPAND_S` allows: the worker's lease waits."""
        held, self._expansion = self._expansion or self._take(broker), None
        if held is None:
            return
        run, made_for, expansion = held
        wanted, token = broker.client.hmget(f"fc:run:{run}", "wanted", "token")
        state = broker.client.hget(f"fc:step:{run}:{expansion.step.name}", "state")
        if wanted == "cancel" or token != made_for or state not in ("waiting", "ready", "running"):
            return
        expansion.go_on(broker, seconds=EXPAND_S)
        if not expansion.is_done:  # an error above leaves it to whoever takes it next
            self._expansion = run, made_for, expansion

    def _take(self, broker: Broker) -> tuple[str, str, Expansion] | None:
        reply = broker.calls.expand_take()
        if reply.word != "OK":
            return None
        run, step, expanded = reply.rest[0], reply.rest[1], int(reply.rest[2])
        if broker.client.hget(f"fc:run:{run}", "wanted") == "cancel":
            return None
        folder = self._folder(broker, run)
        if folder is None:
            return None
        log.info("going on with the trials of %s/%s from %s", run, step, expanded)
        record = folder.load_run()
        declared = folder.load_plan().step(step)
        key_id, python = str(record["sig"]["key_id"]), str(record["python"])
        return run, str(record["token"]), Expansion(folder, declared, expanded=expanded, key_id=key_id, python=python)

    def _leftovers(self, broker: Broker) -> None:
        for name in broker.client.srandmember("fc:leftovers", 10):
            unit = parse_unit(name)
            state, epoch = broker.client.hmget(f"fc:unit:{name}", "state", "epoch")
            if state not in ("completed", "failed", "cancelled"):
                continue  # the next claim's guardian writes them before anything else
            try:
                folder = self._folder(broker, unit.run)
            except FlowctlError as error:
                self._pass_over(unit.run, error)
                continue
            if folder is not None:
                keep_tail(broker, name, folder, unit.step, unit.index, before_epoch=int(epoch) + 1)

    def _journals(self, broker: Broker) -> None:
        if time.monotonic() < self._journal_at:
            return
        self._journal_at = time.monotonic() + JOURNAL_S
        for _ in range(20):
            reply = broker.calls.journal_take(owner=self._owner)
            if reply.word != "OK":
                return
            run, number, after = reply.rest[0], int(reply.rest[1]), reply.rest[2]
            try:
                folder = self._folder(broker, run)
            except FlowctlError as error:
                self._pass_over(run, error)
                broker.client.hdel(f"fc:journal:{run}", "until_ms")  # another worker may take it at once
                continue
            if folder is None:
                broker.client.srem("fc:journals", run)
                continue
            events = broker.client.xrange(f"fc:events:{run}", min=f"({after}", count=EVENTS_PER_SEGMENT)
            if events:
                number = self._write(folder, number, [{"id": name, **fields} for name, fields in events])
            broker.calls.journal_done(run, owner=self._owner, number=number, last_id=events[-1][0] if events else "")

    @staticmethod
    def _write(folder: RunFolder, number: int, events: list[Mapping[str, Any]]) -> int:
        """The number under which the events stand: one that another holder took since is passed over."""
        for candidate in range(number, number + 1000):
            try:
                folder.journal_write(candidate, events)
            except AlreadyExists:
                continue
            return candidate
        raise StorageUnreachable(f"a thousand journal segments of {folder.run} are in the way", place=folder.folder.url)
