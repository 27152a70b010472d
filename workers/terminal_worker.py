"""Celery's worker program with one voice: what a signal does is said by our own line (app.py), not by Celery's too."""

from typing import Any

from celery.apps.worker import (
    Worker,
    install_worker_int_handler,
    install_worker_term_handler,
    install_worker_term_hard_handler,
)


class TerminalWorker(Worker):  # type: ignore[misc]
    """The worker of `flowctl worker`: same signals as Celery's, SIGTERM and the first Ctrl-C without its notices."""

    def install_platform_tweaks(self, worker: Any) -> None:
        super().install_platform_tweaks(worker)
        install_worker_term_handler(worker, verbose=False)
        install_worker_int_handler(worker, callback=_next_one_kills, verbose=False)


def _next_one_kills(worker: Any) -> None:
    install_worker_term_hard_handler(worker, sig="SIGINT", verbose=False)
