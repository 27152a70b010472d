"""`@stage`: a function that is run once, such as preparing data or evaluating the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, overload

from flowctl.dsl.declaration import Declaration, declare_stage
from flowctl.dsl.experiment import NOTHING
from flowctl.dsl.leaf import Leaf, keyword_defaults
from flowctl.dsl.plan import STAGE
from flowctl.dsl.policy import DEFAULT_RETRY, Retry
from flowctl.dsl.resources import ONE_CPU, Request


class Stage(Leaf):
    """A function run once. What it returns is its output, and must be a JSON value or what storage can keep."""

    kind = STAGE
    decorator = "@stage"
    built = frozenset({"resources", "labels", "priority", "pending_timeout_s", "max_failures", "max_worker_losses"})

    def _declare(self) -> Declaration:
        return declare_stage(self.keywords, place=self.place)


@overload
def stage(function: Callable[..., Any], /) -> Stage: ...
@overload
def stage(
    *,
    resources: Mapping[str, Any] | Request = ...,
    labels: Any = ...,
    priority: int = ...,
    pending_timeout_s: float | None = ...,
    max_failures: int = ...,
    max_worker_losses: int | None = ...,
    retry: Retry = ...,
    timeout_s: float | None = ...,
    no_report_timeout_s: float | None = ...,
    when: Any = ...,
    env: Mapping[str, str] = ...,
) -> Callable[[Callable[..., Any]], Stage]: ...
def stage(
    function: Callable[..., Any] | None = None,
    /,
    *,
    resources: Mapping[str, Any] | Request = ONE_CPU,
    labels: Any = None,
    priority: int = 0,
    pending_timeout_s: float | None = None,
    max_failures: int = 0,
    max_worker_losses: int | None = 3,
    retry: Retry = DEFAULT_RETRY,
    timeout_s: float | None = None,
    no_report_timeout_s: float | None = None,
    when: Any = None,
    env: Mapping[str, str] = NOTHING,
    **unknown: Any,
) -> Any:
    """Declare a stage; usable bare and with keywords. Raises like `experiment`."""
    keywords = dict(locals())
    del keywords["function"], keywords["unknown"]
    keywords.update(unknown)
    if function is not None:
        return Stage(function, keywords)
    return lambda decorated: Stage(decorated, keywords)


Stage.defaults = MappingProxyType(keyword_defaults(stage))
