"""The worker's side of the bargain: it registers, beats, lets time act, notices dead guardians, drains journals,
finishes expansions.

A thread of its own with a client of its own, because Celery's timers stop while it reconnects. Guardians share
nothing with it but files.
"""

import contextlib
import json
import logging
import os
import queue
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

from flowctl.broker.calls import HostFence
from flowctl.broker.contact import NoContact
from flowctl.broker.settings import Settings, expand_join
from flowctl.broker.store import Broker, revive
from flowctl.broker.worker_view import load_workers
from flowctl.dsl.errors import FlowctlError, RefusedError
from flowctl.storage.signing import Keyring
from flowctl.workers import attention, identity, preparation, template, tree, units, witness
from flowctl.workers.burial import Burials
from flowctl.workers.guardian import guard
from flowctl.workers.host_guardian import guard_host
from flowctl.workers.offers import Offers, offer_text, offers, taken_by_others
from flowctl.workers.runs.chores import Chores
from flowctl.workers.runs.pools import shadowed_by

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
        self._burials = Burials(who)
        self._witness: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, settings: Settings, *, who: identity.Identity, task: Any, slots: int) -> "Node":
        """Checks key, offers and message; says nothing to the server yet. Raises FlowctlError."""
        keyring = Keyring.from_env(expand_join(os.environ), settings.home, create=not settings.broker_url)
        offered = offers(settings.resources, slots=slots, labels=settings.labels)
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

    def guard(self, unit: str, epoch: str) -> None:
        """Runs one attempt, or what another one hosts here (`EPOCH#BUNDLE.NUMBER`); called by the Celery task."""
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
        attempt, _, host = epoch.partition("#")
        if host:
            bundle, _, number = host.partition(".")
            fence = HostFence(unit, int(attempt), int(bundle), int(number), secrets.token_hex(8))
            carry = partial(guard_host, fence)
        else:
            carry = partial(guard, unit=unit, epoch=int(attempt))
        carry(
            identity=self.identity,
            broker=broker,
            keyring=self.keyring,
            home=self.settings.home,
            stop_grace_s=self.settings.stop_grace_s,
            devices=self.offered.devices,
        )

    # --- in the worker's own process ---

    def begin(self) -> None:
        """Sweeps what an earlier boot of this name left, announces this one, starts the thread."""
        for note in self.offered.notes:
            log.info("%s", note)
        self._burials.sweep_dead_boots()
        self._register(self.broker(), swept=True)
        self._witness = witness.start(self.identity)
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
        if self._witness is not None:
            witness.dismiss(self._witness)

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
            "keys": json.dumps(self.keyring.ids),
            "slots": str(self.slots),
            "version": metadata.version("flowctl-celery"),
            "only": os.environ.get("FLOWCTL_ONLY_RUN", ""),
            "labels": json.dumps(self.offered.labels),
            "devices": json.dumps([device.to_json() for device in self.offered.devices]),
            "gpu_limit": "" if self.offered.gpu_limit is None else str(self.offered.gpu_limit),
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
        offer = {str(name): int(n) for name, n in reply.value.items()}
        self.store_id = broker.store_id
        log.info("worker %s offers %s", who.worker, offer_text(offer))
        for line in shadowed_by(broker.client.hkeys("fc:pools"), who.worker, offer):
            log.warning("%s", line)
        here = [each for each in load_workers(broker.client) if each.machine == who.machine and each.boot != who.boot]
        for text, dimensions in taken_by_others(offer, self.offered).items():
            others = [each.worker for each in here if any(each.offer.get(name) for name in dimensions)]
            log.warning("%s", text.format(", ".join(others) or "a worker that stopped since"))

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
                    attention.nudge(self.identity.boot, file.ear, b"p")

    def _sleep(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=timeout_s)
            while True:
                self._wake.get_nowait()

    def _beat(self, broker: Broker) -> None:
        if self._witness is not None and self._witness.poll() is not None:
            log.warning("the witness of this worker is gone: starting another")
            self._witness = witness.start(self.identity)
        files = units.running(self.identity.units)
        alive = [file for file in files if file.is_alive()]
        kept = [file for file in files if file not in alive and not self._burials.bury(broker, file)]
        accepting = self._accepting and not self._draining
        running = [file.key for file in (*alive, *kept)]
        reply = broker.beat(self.identity.boot, accepting=accepting, running=running)
        if reply.word == "UNKNOWN":
            log.warning("the server does not know this worker (any more): announcing it again")
            self._register(broker, swept=False)
            return
        if self.store_id != reply.value["store"]:
            log.warning("the server holds another store than before: announcing this worker again")
            self._register(broker, swept=False)
        for name in reply.value.get("attention", []):
            for file in alive:
                if name in (file.unit, file.key) or file.unit.startswith(f"{name}:"):
                    attention.nudge(self.identity.boot, file.ear, b"r")
