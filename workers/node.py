"""The worker's side of the bargain: it registers, beats, lets time act, notices dead guardians, drains journals,
finishes expansions.

A thread of its own with a client of its own, because Celery's timers stop while it reconnects. Guardians share
nothing with it but files.
"""

import contextlib
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

from flowctl.broker.contact import NoContact
from flowctl.broker.settings import Settings, expand_join
from flowctl.broker.store import Broker, revive
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.errors import FlowctlError, RefusedError
from flowctl.storage.signing import Keyring
from flowctl.workers import attention, identity, preparation, template, tree, units
from flowctl.workers.guardian import guard
from flowctl.workers.offers import Offers, offers
from flowctl.workers.runs.chores import Chores

BEAT_S = 1.0
log = logging.getLogger("flowctl")


class Node:
    """One worker: made before the pool forks, so that guardians inherit who they are."""

    _current: ClassVar["Node | None"] = None

    def __init__(
        self, *, settings: Settings, who: identity.Identity, keyring: Keyring, offered: Offers, message: str, slots: int
    ) -> None:
        self.settings = settings
        self.identity = who
        self.keyring = keyring
        self.offered = offered
        self.message = message
        self.slots = slots
        self.store_id = ""
        self._accepting = False
        self._draining = False
        self._over = threading.Event()
        # Signal handlers wake the thread too: a queue's put may interrupt itself, an event's lock would hang there.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._brokers: dict[int, Broker] = {}

    @classmethod
    def start(cls, settings: Settings, *, who: identity.Identity, task: Any, slots: int) -> "Node":
        """Checks key, offers and message; says nothing to the server yet. Raises FlowctlError."""
        keyring = Keyring.from_env(expand_join(os.environ), settings.home, create=not settings.broker_url)
        offered = offers(settings.resources, slots=slots)
        message = template.make(task, queue=who.queue)
        node = cls(settings=settings, who=who, keyring=keyring, offered=offered, message=message, slots=slots)
        tree.hide_environment()
        preparation.forget_payloads(settings.home / "cache" / "payload")
        cls._current = node
        return node

    @classmethod
    def current(cls) -> "Node":
        """The worker of this process."""
        if cls._current is None:
            raise RuntimeError("no worker runs in this process")
        return cls._current

    def broker(self) -> Broker:
        """A connection of this process: made after the fork."""
        pid = os.getpid()
        if pid not in self._brokers:
            self._brokers = {pid: Broker.connect(self.settings, start=False, is_alone=True)}
        return self._brokers[pid]

    # --- in a pool process ---

    def guard(self, unit: str, epoch: int) -> None:
        """Runs one attempt; called by the Celery task."""
        # A signal to the whole process group is the worker's to answer: it drains, and tells its guardians.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tree.become_subreaper()
        while True:
            try:
                broker = self.broker()
                break
            except FlowctlError as error:
                log.warning("cannot reach the server: %s", error)
                time.sleep(0.5)
        guard(
            unit=unit,
            epoch=epoch,
            identity=self.identity,
            broker=broker,
            keyring=self.keyring,
            home=self.settings.home,
            stop_grace_s=self.settings.stop_grace_s,
        )

    # --- in the worker's own process ---

    def begin(self) -> None:
        """Sweeps what an earlier boot of this name left, announces this one, starts the thread."""
        self._sweep_dead_boots()
        self._register(self.broker(), swept=True)
        self._thread = threading.Thread(target=self._live, name="flowctl-node", daemon=True)
        self._thread.start()

    def accept(self, accepting: bool) -> None:
        """Whether the consumer listens."""
        self._accepting = accepting
        self._wake.put(None)

    @property
    def is_draining(self) -> bool:
        """Whether it was told to stop."""
        return self._draining

    def drain(self) -> None:
        """No more work; what runs is asked to end and goes back with what it saved. Safe in a signal handler."""
        self._draining = True
        self._wake.put(None)

    def end(self) -> None:
        """The pool is gone: says goodbye, so that nothing waits for a lease."""
        if self._over.is_set() or self._thread is None:
            return
        self._over.set()
        self._wake.put(None)
        self._thread.join(timeout=10)
        try:
            broker = Broker.connect(self.settings, start=False)
            broker.calls.worker_leave(self.identity.boot, text=f"worker {self.identity.worker} stopped")
        except (FlowctlError, NoContact) as error:
            log.warning("could not say goodbye: %s", error)

    def _sweep_dead_boots(self) -> None:
        """Holding the name's lock proves that no other boot of it lives; its trial processes go before this one
        offers anything.
        """
        for folder in self.identity.folder.iterdir():
            boot = folder.name.split("-")[0]
            if boot != self.identity.boot:
                swept = tree.sweep_marked(partial(_is_of_boot, boot))
                if swept:
                    log.warning("removed %s processes that an earlier start of this worker left", swept)
                _remove(folder)

    def _register(self, broker: Broker, *, swept: bool) -> None:
        who = self.identity
        fields = {
            "worker": who.worker,
            "host": who.host,
            "machine": who.machine,
            "scope": who.scope,
            "pid": str(os.getpid()),
            "queue": who.queue,
            "template": self.message,
            "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
            "keys": _json_list(self.keyring.ids),
            "slots": str(self.slots),
            "version": metadata.version("flowctl-celery"),
            "only": os.environ.get("FLOWCTL_ONLY_RUN", ""),
        }
        running = [file.key for file in units.running(who.units)]
        reply = broker.calls.worker_register(
            who.boot,
            fields=fields,
            detected=self.offered.detected,
            declared=self.offered.declared,
            running=running,
            swept=swept,
        )
        if reply.word == "NAME_TAKEN":
            raise RefusedError(
                f"a worker named '{who.worker}' is known to the server from another machine",
                cure="give this one a --name of its own",
            )
        offer = {name: n / 10_000 for name, n in reply.value.items()}
        self.store_id = broker.store_id
        log.info("worker %s offers %s", who.worker, ", ".join(f"{name}={n:g}" for name, n in sorted(offer.items())))
        if offer.get("cpu") == 0 and "cpu" in self.offered.detected:
            others = [
                each for each in load_workers(broker.client) if each.machine == who.machine and each.offer.get("cpu")
            ]
            log.warning(
                "all cores of this machine are offered by %s; this worker offers them when that ends",
                ", ".join(each.worker for each in others) or "a worker that stopped since",
            )

    def _live(self) -> None:
        broker: Broker | None = None
        chores = Chores(settings=self.settings, keyring=self.keyring, owner=self.identity.boot)
        drained = False
        while not self._over.is_set():
            self._sleep(BEAT_S * random.uniform(0.8, 1.0))
            try:
                if broker is None:
                    problem = revive(self.settings)
                    if problem is not None:
                        raise problem
                    broker = Broker.connect(self.settings, start=False)
                self._beat(broker)
                if self._draining and not drained:
                    broker.calls.worker_drain(self.identity.boot, reason=f"worker {self.identity.worker} stops")
                    drained = True
                broker.tick()
                chores.do(broker)
            except (NoContact, FlowctlError) as error:
                log.warning("no contact with the server: %s", error)
                broker = None
            except Exception:
                log.exception("the worker's thread goes on after")
            if self._draining:
                for file in units.running(self.identity.units):
                    attention.nudge(self.identity.boot, file.unit, b"p")

    def _sleep(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=timeout_s)
            while True:
                self._wake.get_nowait()

    def _beat(self, broker: Broker) -> None:
        files = units.running(self.identity.units)
        dead = [file for file in files if not file.is_alive()]
        for file in dead:
            self._bury(broker, file)
        alive = [file for file in files if file not in dead]
        accepting = self._accepting and not self._draining
        reply = broker.calls.worker_beat(self.identity.boot, accepting=accepting, running=[file.key for file in alive])
        if reply.word == "UNKNOWN":
            log.warning("the server does not know this worker (any more): announcing it again")
            self._register(broker, swept=False)
            return
        if self.store_id != reply.value["store"]:
            log.warning("the server holds another store than before: announcing this worker again")
            self._register(broker, swept=False)
        for name in reply.value.get("attention", []):
            for file in alive:
                if file.unit == name or file.unit.startswith(f"{name}:"):
                    attention.nudge(self.identity.boot, file.unit, b"r")

    def _bury(self, broker: Broker, file: units.UnitFile) -> None:
        """A guardian died: its trial's tree is removed, and then that is said with certainty."""
        mark = f"{self.identity.boot}/{file.mark}"
        tree.sweep_marked(lambda found: found == mark)
        broker.calls.trial_release(
            units.fence(file),
            boot=self.identity.boot,
            cause="guardian_lost",
            text=f"its guardian on {self.identity.worker} died",
        )
        units.remove(self.identity.units, file)


def _json_list(items: tuple[str, ...]) -> str:
    import json

    return json.dumps(list(items))


def _remove(folder: Any) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _is_of_boot(boot: str, mark: str) -> bool:
    return mark.startswith(f"{boot}/")
