"""What Celery's own worker command may be told.

An option that would break trials, or do nothing, is refused in one line; none is accepted and ignored.
"""

from collections.abc import Mapping
from typing import Any

LEFT_OUT = "leave it out"
REFUSED: Mapping[str, tuple[str, str]] = {
    "queues": ("-Q", f"a worker listens on the queue of its own start and on no other; {LEFT_OUT}"),
    "exclude_queues": ("-X", f"a worker listens on the queue of its own start and on no other; {LEFT_OUT}"),
    "autoscale": ("--autoscale", "a worker offers its slots once, when it starts; use -c N"),
    "beat": ("-B", f"there are no periodic tasks here; {LEFT_OUT}"),
    "max_tasks_per_child": ("--max-tasks-per-child", f"every trial has a fresh process of its own; {LEFT_OUT}"),
    "max_memory_per_child": ("--max-memory-per-child", f"every trial has a fresh process of its own; {LEFT_OUT}"),
    "time_limit": ("--time-limit", f"it would end the guardian of a trial, not the trial; {LEFT_OUT}"),
    "soft_time_limit": ("--soft-time-limit", f"it would end the guardian of a trial, not the trial; {LEFT_OUT}"),
}
"""Keyword of the worker → the option as typed, and why it does not fit here with what to do."""

POOLS = ("prefork", "processes")


def unfit(options: Mapping[str, Any], *, pool: Any) -> str | None:
    """Why a worker with these options cannot carry trials, or None. `pool` is a pool class or its name."""
    name = pool if isinstance(pool, str) else str(pool.__module__).rpartition(".")[2]
    if not any(fit in name for fit in POOLS):
        return f"the pool '{name}' cannot carry trials: each needs a process of its own that guards it; use -P prefork"
    for keyword, (option, reason) in REFUSED.items():
        if options.get(keyword):
            return f"{option} does not fit: {reason}"
    if options.get("pool_start_method") not in (None, "fork"):
        return f"--pool-start-method does not fit: a guardian inherits from its worker who it is; {LEFT_OUT}"
    if not str(options.get("concurrency") or 0).isdigit():
        return f"-c {options['concurrency']} does not fit: slots are offered by number; use -c N"
    return None


def chosen_name(hostname: str) -> str | None:
    """The name that `-n NAME` gives, without the host that Celery adds; None for Celery's default."""
    name = hostname.partition("@")[0]
    return None if name in ("", "celery") else name
