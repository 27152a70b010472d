"""Celery's consumer without gossip, mingle and, unless events are on, heartbeat: connections whose loss makes Celery
run tasks twice.

They take constructor arguments only, so a plain `celery -A flowctl.workers.app worker` needs this to equal `flowctl
worker`.
"""

from typing import Any

from celery.worker.consumer import Consumer as StockConsumer


class Consumer(StockConsumer):  # type: ignore[misc]
    class Blueprint(StockConsumer.Blueprint):  # type: ignore[misc]
        def info(self, parent: Any) -> dict[str, Any]:
            """What remote control tells, as to Flower: Celery's own answer can hold the server's password."""
            address = parent.connection.as_uri() if parent.connection else "N/A"
            return {**super().info(parent), "broker": {"hostname": address}}

    def __init__(self, *args: Any, app: Any = None, worker_options: Any = None, **kwargs: Any) -> None:
        quiet = {
            "without_gossip": True,
            "without_mingle": True,
            "without_heartbeat": not app.conf.worker_send_task_events,
        }
        super().__init__(*args, app=app, worker_options={**(worker_options or {}), **quiet}, **kwargs)
