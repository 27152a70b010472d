"""kombu's Redis transport with the three corrections that long work needs; everything else is stock.

1. A failed acknowledgement must give its prefetch credit back, or the worker goes deaf without a word (kombu's QoS
loses it).
2. After an outage a worker must ask again at once: Celery's back-off waits up to 30 s.
3. Nothing is restored by timer: the visibility timeout is longer than any life, and keys of our own keep foreign
workers' timers away.
"""

import logging
from queue import Empty
from typing import Any

from celery.app.amqp import AMQP as StockAMQP
from kombu import Connection as StockConnection
from kombu.transport import redis as stock
from kombu.transport import virtual

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.contact import NoContact, contact

log = logging.getLogger("flowctl")

VISIBILITY_S = 315_360_000
RECONNECT_S = 0.2
RECONNECT_MAX_S = 1.0


class QoS(stock.QoS):  # type: ignore[misc]
    """Acknowledgements that fail are remembered and said again; the credit returns in any case."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unsaid: set[str] = set()

    def ack(self, delivery_tag: str) -> None:
        self._forget(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            super().reject(delivery_tag, requeue=True)
        else:
            self._forget(delivery_tag)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """kombu's timer: used to say again what could not be said. Nothing is ever restored by time."""
        for tag in list(self._unsaid):
            self._say(tag)

    def _forget(self, tag: str) -> None:
        try:
            self._say(tag)
        finally:
            virtual.QoS.ack(self, tag)

    def _say(self, tag: str) -> None:
        try:
            with contact():
                self._remove_from_indices(tag).execute()
            self._unsaid.discard(tag)
        except NoContact:
            self._unsaid.add(tag)


class _Tolerant:
    """What is no message is dropped with a word: stock kombu ends the worker. A lost one costs one dispatch time."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (ValueError, KeyError, TypeError) as error:
            log.warning("dropped something that is no message: %s: %s", type(error).__name__, error)
            raise Empty from error


class Channel(_Tolerant, stock.Channel):  # type: ignore[misc]
    QoS = QoS


class Transport(stock.Transport):  # type: ignore[misc]
    Channel = Channel


class SentinelChannel(_Tolerant, stock.SentinelChannel):  # type: ignore[misc]
    QoS = QoS


class SentinelTransport(stock.SentinelTransport):  # type: ignore[misc]
    Channel = SentinelChannel


class Connection(StockConnection):  # type: ignore[misc]
    """Reconnects at an interval of its own, and keeps the transport that it was given.

    Stock kombu takes what stands before the `+` of `redis+socket://` instead, silently: none of the corrections above.
    """

    def __init__(self, *args: Any, transport: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, transport=transport, **kwargs)
        if transport is not None:
            self.transport_cls = transport

    def ensure_connection(
        self,
        errback: Any = None,
        max_retries: Any = None,
        interval_start: Any = None,
        interval_step: Any = None,
        interval_max: Any = None,
        **kwargs: Any,
    ) -> Any:
        return super().ensure_connection(
            errback,
            max_retries,
            interval_start=RECONNECT_S,
            interval_step=RECONNECT_S,
            interval_max=RECONNECT_MAX_S,
            **kwargs,
        )


class AMQP(StockAMQP):  # type: ignore[misc]
    Connection = Connection
    BrokerConnection = Connection


def path_of(url: BrokerURL) -> str:
    """The transport class for a server, as Celery's setting names it."""
    name = "SentinelTransport" if url.kind == "sentinel" else "Transport"
    return f"{__name__}:{name}"


def options(url: BrokerURL) -> dict[str, Any]:
    """Transport options (each with its reason in docs/decisions)."""
    found: dict[str, Any] = {
        "visibility_timeout": VISIBILITY_S,
        "unacked_key": "fc:unacked",
        "unacked_index_key": "fc:unacked_index",
        "unacked_mutex_key": "fc:unacked_mutex",
        "priority_steps": [0],
        "socket_timeout": 20,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }
    return {**found, **url.transport_options()}
