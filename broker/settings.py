"""What a person can set from outside: the FLOWCTL_ variables, read once into one frozen value.

`VARIABLES` is the whole list; `docs/settings.md` explains each, and a test holds the two together.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.errors import BrokerURLError, SettingError
from flowctl.broker.join import JoinToken
from flowctl.broker.remembered_storage import remembered_storage
from flowctl.broker.state_folder import make_private, state_folder

LEASE_TTL_S = 15.0
MIN_LEASE_TTL_S = 5.0
DISPATCH_TIMEOUT_S = 15.0
MIN_DISPATCH_TIMEOUT_S = 1.0
RESERVE_AFTER_S = 60.0
MIN_RESERVE_AFTER_S = 1.0
STOP_GRACE_S = 10.0
UP_STORAGE = "flowctl up --storage"


@dataclass(frozen=True)
class Variable:
    """One FLOWCTL_ variable. `reader` says who obeys it: flowctl, the compose file, or a trial's own code."""

    name: str
    meaning: str
    is_secret: bool = False
    reader: str = "flowctl"


VARIABLES = (
    Variable("FLOWCTL_ATTEMPT", "set by flowctl in a trial process: which attempt it is", reader="trial"),
    Variable("FLOWCTL_BROKER_URL", "address of the server, instead of the embedded one", is_secret=True),
    Variable("FLOWCTL_DEBUG", "1: show tracebacks instead of one line"),
    Variable("FLOWCTL_DISPATCH_TIMEOUT_S", "seconds after which an unclaimed placement is taken back"),
    Variable("FLOWCTL_EVENTS", "1: a worker sends what Flower shows"),
    Variable("FLOWCTL_GPUS", "GPUs per worker of the gpu profile", reader="compose"),
    Variable("FLOWCTL_HOME", "the state folder"),
    Variable("FLOWCTL_JOIN", "token of `flowctl up --listen`: server, key and storage at once", is_secret=True),
    Variable("FLOWCTL_MACHINE", "what a worker takes for its machine, in place of the kernel's boot"),
    Variable("FLOWCTL_LABELS", "what a worker says of itself, like spot,zone=a"),
    Variable("FLOWCTL_LEASE_TTL_S", "seconds after which a silent attempt counts as lost"),
    Variable("FLOWCTL_ONLY_RUN", "a worker takes trials of this run only"),
    Variable("FLOWCTL_PASSWORD", "password of the server", is_secret=True, reader="compose"),
    Variable("FLOWCTL_PORT", "port of the server on this machine's loopback", reader="compose"),
    Variable("FLOWCTL_RESERVE_AFTER_S", "seconds of waiting after which tokens are kept for a trial"),
    Variable("FLOWCTL_RESOURCES", "what a worker offers, like cpu=2,license=1"),
    Variable("FLOWCTL_SECRET_KEY", "signing key, instead of the one in the state folder", is_secret=True),
    Variable("FLOWCTL_SERVER_BINARY", "server program for the embedded server"),
    Variable("FLOWCTL_SLOTS", "trials that a worker runs at once at most"),
    Variable("FLOWCTL_STOP_GRACE_S", "seconds between asking a trial to end and killing it"),
    Variable("FLOWCTL_STORAGE", "where runs are stored by default"),
    Variable("FLOWCTL_WORKER_NAME", "name of a worker"),
    Variable("FLOWCTL_WORKERS", "number of worker containers", reader="compose"),
)

SECRETS = tuple(variable.name for variable in VARIABLES if variable.is_secret)
"""Variables that no trial process may see."""


@dataclass(frozen=True)
class Settings:
    """The settings of this process. `broker_url` None: the embedded server of `home`. Durations in seconds.

    `broker_from` and `storage_from` say what named them: a variable or a command; None: the defaults.
    """

    home: Path
    broker_url: str | None = field(default=None, repr=False)
    broker_from: str | None = None
    storage: str = ""
    storage_from: str | None = None
    lease_ttl_s: float = LEASE_TTL_S
    dispatch_timeout_s: float = DISPATCH_TIMEOUT_S
    stop_grace_s: float = STOP_GRACE_S
    reserve_after_s: float = RESERVE_AFTER_S
    join: JoinToken | None = None
    resources: str | None = None
    labels: str | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, make_home: bool = True) -> Settings:
        """Reads and checks the variables; makes the state folder unless told not to. An empty variable counts as unset.

        FLOWCTL_BROKER_URL and FLOWCTL_STORAGE win over the same part of FLOWCTL_JOIN. Without either, runs of the
        embedded server go to the storage that `flowctl up --storage` named, else to ~/flowctl_results.
        """
        own = os.environ if env is None else env
        given = expand_join(own)
        home = state_folder(given)
        broker_url = given.get("FLOWCTL_BROKER_URL") or None
        if broker_url is not None:
            try:
                BrokerURL.parse(broker_url)
            except BrokerURLError as error:
                raise BrokerURLError(error.what, place="FLOWCTL_BROKER_URL", cure=error.cure) from error
        join = given.get("FLOWCTL_JOIN")
        storage = given.get("FLOWCTL_STORAGE") or None
        storage_from = _named_by(own, "FLOWCTL_STORAGE") if storage else None
        if storage is None and broker_url is None:
            storage = remembered_storage(home)
            storage_from = UP_STORAGE if storage else None
        settings = cls(
            home=home,
            broker_url=broker_url,
            broker_from=_named_by(own, "FLOWCTL_BROKER_URL") if broker_url else None,
            storage=storage or str(_user_home(given) / "flowctl_results"),
            storage_from=storage_from,
            lease_ttl_s=_seconds(given, "FLOWCTL_LEASE_TTL_S", LEASE_TTL_S, minimum=MIN_LEASE_TTL_S),
            dispatch_timeout_s=_seconds(
                given, "FLOWCTL_DISPATCH_TIMEOUT_S", DISPATCH_TIMEOUT_S, minimum=MIN_DISPATCH_TIMEOUT_S
            ),
            stop_grace_s=_seconds(given, "FLOWCTL_STOP_GRACE_S", STOP_GRACE_S, minimum=0.0),
            reserve_after_s=_seconds(given, "FLOWCTL_RESERVE_AFTER_S", RESERVE_AFTER_S, minimum=MIN_RESERVE_AFTER_S),
            join=JoinToken.decode(join) if join else None,
            resources=given.get("FLOWCTL_RESOURCES") or None,
            labels=given.get("FLOWCTL_LABELS") or None,
        )
        if make_home:
            make_private(home)
        return settings


def expand_join(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with those that FLOWCTL_JOIN stands for filled in: what `Keyring.from_env` and others want."""
    full = dict(env)
    if full.get("FLOWCTL_JOIN"):
        token = JoinToken.decode(full["FLOWCTL_JOIN"])
        parts = {
            "FLOWCTL_BROKER_URL": token.broker,
            "FLOWCTL_SECRET_KEY": token.key,
            "FLOWCTL_STORAGE": token.storage,
        }
        for name, value in parts.items():
            if value and not full.get(name):
                full[name] = value
    return full


def unknown_variables(env: Mapping[str, str]) -> dict[str, str | None]:
    """FLOWCTL_ variables that nothing reads, each with the nearest known name (None if none is near)."""
    known = [variable.name for variable in VARIABLES]
    found: dict[str, str | None] = {}
    for name in sorted(env):
        if name.startswith("FLOWCTL_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            found[name] = near[0] if near else None
    return found


def _named_by(env: Mapping[str, str], name: str) -> str:
    """The variable that gave the value of `name`: itself, or the token that stands for it."""
    return name if env.get(name) else "FLOWCTL_JOIN"


def _user_home(env: Mapping[str, str]) -> Path:
    return Path(env["HOME"]) if env.get("HOME") else Path.home()


def _seconds(env: Mapping[str, str], name: str, default: float, *, minimum: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise SettingError(
            f"{text!r} is not a number of seconds", place=name, cure=f"for example {default:g}"
        ) from error
    if not math.isfinite(value) or value < minimum:
        raise SettingError(f"{text} s is too short or no duration", place=name, cure=f"use at least {minimum:g}")
    return value
