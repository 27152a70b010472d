"""The Celery application. `flowctl worker` and Celery's own command run the same: all settings stand here.

Importing it finds the server and starts the embedded one if there is none; nothing else of flowctl imports it at
import time.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from celery import Celery, bootsteps, signals
from celery.worker.components import Pool
from celery.worker.consumer.tasks import Tasks
from kombu import Queue

from flowctl.broker.settings import Settings
from flowctl.broker.store import Broker, server_url
from flowctl.dsl.errors import FlowctlError
from flowctl.workers import celery_options, identity, offers, transport
from flowctl.workers.node import Node


def _refuse(error: FlowctlError | str, code: int = 2) -> NoReturn:
    print(f"flowctl: {error}", file=sys.stderr)
    raise SystemExit(getattr(error, "exit_code", code))


def _make() -> Celery:
    made = Celery("flowctl", amqp="flowctl.workers.transport:AMQP", set_as_current=False)
    made.conf.update(
        broker_url=URL.kombu_url(),
        broker_transport=transport.path_of(URL),
        broker_transport_options=transport.options(URL),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,
        result_backend=None,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=True,
        task_acks_on_failure_or_timeout=True,
        task_reject_on_worker_lost=False,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_proc_alive_timeout=60,
        worker_enable_remote_control=EVENTS,
        worker_send_task_events=EVENTS,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=True,
        worker_log_format="%(asctime)s %(levelname)s %(message)s",
        worker_concurrency=default_slots(),
        worker_consumer="flowctl.workers.consumer:Consumer",
    )
    return made


def default_slots() -> int:
    """Trials at once at most, if no option says otherwise."""
    try:
        return offers.slots_of(os.environ)
    except FlowctlError as error:
        _refuse(error)


EVENTS = os.environ.get("FLOWCTL_EVENTS") == "1"
try:
    SETTINGS = Settings.from_env()
    URL = server_url(SETTINGS, start=True)
except FlowctlError as error:
    _refuse(error)
app = _make()


@app.task(name="flowctl.run_unit", acks_late=True, ignore_result=True)
def run_unit(unit: str, epoch: str) -> None:
    """Runs one attempt in this pool process: a wake-up, the truth is in the broker."""
    Node.current().guard(unit, epoch)


@signals.celeryd_init.connect
def _prepare(
    sender: str = "", conf: Any = None, options: Mapping[str, Any] | None = None, instance: Any = None, **_: Any
) -> None:
    """Before the worker is built: refuse what can't carry trials, take a name, listen on this boot's queue alone."""
    given = options or {}
    problem = celery_options.unfit(given, pool=given.get("pool") or given.get("pool_cls") or conf.worker_pool)
    if problem is not None:
        _refuse(problem)
    if sys.platform != "linux":
        _refuse("workers run on Linux; on this system the client and the embedded server work")
    slots = given.get("concurrency") or conf.worker_concurrency
    name = os.environ.get("FLOWCTL_WORKER_NAME") or celery_options.chosen_name(sender)
    try:
        broker = Broker.connect(SETTINGS, start=False)
        who = identity.take(SETTINGS.home, name=name, scope_of=broker.scope_of)
        broker.client.close()
        conf.task_default_queue = who.queue
        conf.task_queues = [Queue(who.queue, exchange="", routing_key=who.queue, durable=True)]
        if given.get("task_events"):
            conf.update(worker_send_task_events=True, worker_enable_remote_control=True)
        instance.hostname = f"{who.worker}@{who.host}"
        Node.start(SETTINGS, who=who, task=run_unit, slots=int(slots))
    except FlowctlError as error:
        _refuse(error)
    except Exception as error:  # Celery's signals swallow exceptions: a worker without its node must not come up
        _refuse(f"the worker cannot start: {type(error).__name__}: {error}", 1)


class Beating(bootsteps.StartStopStep):  # type: ignore[misc]
    """The worker's own thread: begun after the pool has forked; it lasts until the pool is gone (see `_farewell`)."""

    requires = (Pool,)

    def start(self, parent: Any) -> None:
        try:
            Node.current().begin()
        except FlowctlError as error:
            _refuse(error)

    def terminate(self, parent: Any) -> None:
        Node.current().end()


class Accepting(bootsteps.StartStopStep):  # type: ignore[misc]
    """A worker accepts while its consumer listens: one that waits for its connection gets nothing placed."""

    requires = (Tasks,)

    def start(self, parent: Any) -> None:
        Node.current().accept(True)

    def stop(self, parent: Any) -> None:
        Node.current().accept(False)


app.steps["worker"].add(Beating)
app.steps["consumer"].add(Accepting)


# Sent inside a signal handler, which a second signal may interrupt: with a plain lock that would hang the worker.
signals.worker_shutting_down.lock = threading.RLock()


@signals.worker_shutting_down.connect
def _drain(sig: str = "", how: str = "", **_: Any) -> None:
    node = Node.current()
    if how == "Warm" and not node.is_draining:
        again = "Ctrl-C again kills" if sig == "SIGINT" else "SIGQUIT kills"
        line = f"draining: trials are asked to stop and go back with their checkpoints; {again}\n"
        with contextlib.suppress(OSError):  # in a signal handler: no stream, whose lock may be taken
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, line.encode())
    node.drain()


@signals.worker_shutdown.connect
def _farewell(**_: Any) -> None:
    Node.current().end()


@signals.after_setup_logger.connect
def _quiet(logger: logging.Logger | None = None, **_: Any) -> None:
    """A Celery task of ours is a wake-up: its own log lines say nothing that our events do not say better."""
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)
