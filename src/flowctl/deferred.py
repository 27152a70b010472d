"""The launcher that declared objects reach first: refuses in trials, imports the client on first use elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from flowctl.dsl.errors import RefusedError

if TYPE_CHECKING:
    from flowctl.client import Launcher


class DeferredLauncher:
    """Forwards to flowctl.client.Launcher, which needs the server's libraries; a trial process never loads those."""

    def submit(self, target: Any, *, name: str | None = None, **options: Any) -> Any:
        return _client().submit(target, name=name, **options)

    def submit_or_resume(self, target: Any, *, name: str, **options: Any) -> Any:
        return _client().submit_or_resume(target, name=name, **options)

    def run(self, target: Any, *, name: str | None = None, **options: Any) -> Any:
        return _client().run(target, name=name, **options)


def _client() -> Launcher:
    if os.environ.get("FLOWCTL_ATTEMPT"):
        raise RefusedError(
            "a trial or stage cannot submit a run: it would hold its tokens while it waits for others",
            cure="wire the steps in a @flow",
        )
    from flowctl.client import Launcher

    return Launcher()
