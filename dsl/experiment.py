"""`@experiment`: a function that is run once per configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, overload

from flowctl.dsl.config import Config
from flowctl.dsl.declaration import Declaration, declare_experiment
from flowctl.dsl.errors import DeclarationError
from flowctl.dsl.leaf import Leaf, keyword_defaults
from flowctl.dsl.plan import EXPERIMENT
from flowctl.dsl.policy import DEFAULT_CHECKPOINT, DEFAULT_RETRY, CheckpointConfig, Retry
from flowctl.dsl.request import Resources
from flowctl.dsl.resources import ONE_CPU

NOTHING: Mapping[str, Any] = MappingProxyType({})
StopCondition: TypeAlias = "Mapping[str, Any] | Callable[[Any], Any] | list[Any] | tuple[Any, ...] | None"


class Experiment(Leaf):
    """A function run once per configuration. In a flow `train(data)`; elsewhere `train({"lr": 0.1})` just calls it."""

    kind = EXPERIMENT
    decorator = "@experiment"
    built = frozenset(
        {"param_space", "num_samples", "seed", "metric", "mode", "resources", "labels", "stop", "max_failures"}
        | {"max_worker_losses", "storage_path", "max_concurrent_trials", "priority", "pending_timeout_s"}
        | {"enforce", "on_bundle_loss"}
    )

    def _declare(self) -> Declaration:
        try:
            inspect.signature(self.function).bind_partial(object())
        except TypeError:
            name = self.function.__name__
            what = f"{name} must take the configuration as its first argument"
            cure = f"write def {name}(config), or def {name}(config, data)"
            raise DeclarationError(what, place=self.place, cure=cure) from None
        return declare_experiment(self.keywords, place=self.place)

    def _call_function(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Mapping):
            args = (Config(args[0]), *args[1:])
        return super()._call_function(args, keywords)


@overload
def experiment(function: Callable[..., Any], /) -> Experiment: ...
@overload
def experiment(
    *,
    param_space: Mapping[str, Any] = ...,
    num_samples: int = ...,
    seed: int | str | None = ...,
    metric: str | None = ...,
    mode: str | None = ...,
    resources: Resources = ...,
    labels: Any = ...,
    stop: StopCondition = ...,
    where: Any = ...,
    repeat: Any = ...,
    points_to_evaluate: Any = ...,
    max_concurrent_trials: int | None = ...,
    priority: int = ...,
    pending_timeout_s: float | None = ...,
    max_failures: int = ...,
    max_worker_losses: int | None = ...,
    retry: Retry = ...,
    on_oom: Any = ...,
    fail_fast: bool = ...,
    max_failed_trials: float | None = ...,
    timeout_s: float | None = ...,
    no_report_timeout_s: float | None = ...,
    time_budget_s: float | None = ...,
    checkpoint: CheckpointConfig = ...,
    count_preemption_as_failure: bool = ...,
    on_bundle_loss: str = ...,
    strict_single_run: bool = ...,
    enforce: Any = ...,
    env: Mapping[str, str] = ...,
    working_dir: Any = ...,
    storage_path: Any = ...,
) -> Callable[[Callable[..., Any]], Experiment]: ...
def experiment(
    function: Callable[..., Any] | None = None,
    /,
    *,
    param_space: Mapping[str, Any] = NOTHING,
    num_samples: int = 1,
    seed: int | str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    resources: Resources = ONE_CPU,
    labels: Any = None,
    stop: StopCondition = None,
    where: Any = None,
    repeat: Any = None,
    points_to_evaluate: Any = (),
    max_concurrent_trials: int | None = None,
    priority: int = 0,
    pending_timeout_s: float | None = None,
    max_failures: int = 0,
    max_worker_losses: int | None = 3,
    retry: Retry = DEFAULT_RETRY,
    on_oom: Any = None,
    fail_fast: bool = False,
    max_failed_trials: float | None = None,
    timeout_s: float | None = None,
    no_report_timeout_s: float | None = None,
    time_budget_s: float | None = None,
    checkpoint: CheckpointConfig = DEFAULT_CHECKPOINT,
    count_preemption_as_failure: bool = False,
    on_bundle_loss: str = "fail",
    strict_single_run: bool = False,
    enforce: Any = None,
    env: Mapping[str, str] = NOTHING,
    working_dir: Any = None,
    storage_path: Any = None,
    **unknown: Any,
) -> Any:
    """Declare an experiment; usable bare and with keywords.

    `param_space` times `num_samples` gives the trials; `seed` None is derived from the plan, "random" draws one at
    compilation. `metric` needs `mode` ("max" or "min"). `resources` is a dictionary, a `placement_group`, or a function
    of the configuration that gives one; `labels` are wanted of each worker. Everything that can be known to be wrong
    raises `DeclarationError` here, with file, line and keyword; what is not built yet raises `NotYetError`.
    """
    keywords = dict(locals())
    del keywords["function"], keywords["unknown"]
    keywords.update(unknown)
    if function is not None:
        return Experiment(function, keywords)
    return lambda decorated: Experiment(decorated, keywords)


Experiment.defaults = MappingProxyType(keyword_defaults(experiment))
