"""flowctl: experiments on Celery that survive the death of anything. Import names from here and nowhere else.

Everything loads on first use, so that `import flowctl` costs nothing in a trial process or on the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowctl.client import attach
    from flowctl.dsl.config import Config
    from flowctl.dsl.errors import FlowctlError, RunFailed
    from flowctl.dsl.experiment import experiment
    from flowctl.dsl.flow import flow
    from flowctl.dsl.policy import CheckpointConfig, Retry
    from flowctl.dsl.request import placement_group
    from flowctl.dsl.space import (
        choice,
        grid,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        uniform,
    )
    from flowctl.dsl.stage import stage
    from flowctl.dsl.with_resources import with_resources
    from flowctl.storage.checkpoint import Checkpoint
    from flowctl.workers.bundles import HostFailed
    from flowctl.workers.gpu_wait import wait_for_gpu
    from flowctl.workers.session import TrialStopped, get_checkpoint, get_context, report

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "Config",
    "FlowctlError",
    "HostFailed",
    "Retry",
    "RunFailed",
    "TrialStopped",
    "attach",
    "choice",
    "experiment",
    "flow",
    "get_checkpoint",
    "get_context",
    "grid",
    "lograndint",
    "loguniform",
    "placement_group",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "report",
    "stage",
    "uniform",
    "wait_for_gpu",
    "with_resources",
]

_HOMES = {
    "Checkpoint": "flowctl.storage.checkpoint",
    "CheckpointConfig": "flowctl.dsl.policy",
    "Config": "flowctl.dsl.config",
    "FlowctlError": "flowctl.dsl.errors",
    "HostFailed": "flowctl.workers.bundles",
    "Retry": "flowctl.dsl.policy",
    "RunFailed": "flowctl.dsl.errors",
    "TrialStopped": "flowctl.workers.session",
    "attach": "flowctl.client",
    "experiment": "flowctl.dsl.experiment",
    "flow": "flowctl.dsl.flow",
    "get_checkpoint": "flowctl.workers.session",
    "get_context": "flowctl.workers.session",
    "placement_group": "flowctl.dsl.request",
    "report": "flowctl.workers.session",
    "stage": "flowctl.dsl.stage",
    "wait_for_gpu": "flowctl.workers.gpu_wait",
    "with_resources": "flowctl.dsl.with_resources",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'flowctl' has no attribute {name!r}")
    home = _HOMES.get(name, "flowctl.dsl.space")
    value = getattr(import_module(home), name)
    if name in ("experiment", "flow", "stage", "with_resources"):
        import_module("flowctl.dsl.launcher").provide(import_module("flowctl.deferred").DeferredLauncher())
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
