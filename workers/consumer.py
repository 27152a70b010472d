"""Celery's consumer without gossip, mingle and, unless events are on, heartbeat: connections whose loss makes Celery
run tasks twice.

They take constructor arguments only, so a plain `celery -A flowctl.workers.app worker` needs this to equal `flowctl
worker`.
"""

from typing import Any

from celery.worker.consumer import Consumer as StockConsumer


class Consumer(StockConsumer):  # type: ignore[misc]
    def __init__(self, *args: Any, app: Any = None, worker_options: Any = None, **kwargs: Any) -> None:
        quiet = {
            "without_gossip": True,
            "without_mingle": True,
            "without_heartbeat": not app.conf.worker_send_task_events,
        }
        super().__init__(*args, app=app, worker_options={**(worker_options or {}), **quiet}, **kwargs)
