"""What a person writes as `resources`, read: a dictionary, a placement group, or a function of the configuration.

A dictionary is one bundle. One that asks for `gpu` or a custom token and does not name `cpu` asks for no core; any
other asks for one. In a placement group nothing is added: a bundle asks for what it says. Either may hold "labels",
which are wanted of the worker that gets this bundle.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from flowctl.dsl.errors import DeclarationError, NotYetError
from flowctl.dsl.jsonvalue import kind_of
from flowctl.dsl.labels import parse_labels
from flowctl.dsl.names import did_you_mean
from flowctl.dsl.place import at, caller_place
from flowctl.dsl.resources import LABELS, PACK, SLOT, STRATEGIES, UNITS_PER_TOKEN, Bundle, Request, parse_amounts

MAX_BUNDLES = 1000
ResourceFunction: TypeAlias = Callable[[Any], Any]
Resources: TypeAlias = Mapping[str, Any] | Request | ResourceFunction

_CURE = 'use {"cpu": 1}'
_GROUP_CURE = 'write placement_group([{"cpu": 1}, {"gpu": 1}], strategy="PACK")'


def placement_group(bundles: Iterable[Mapping[str, Any]], strategy: str = PACK) -> Request:
    """Bundles of resources that a trial gets all at once or not at all; the first is the trial's own.

    Each bundle is a dictionary as in `resources`, and may hold "labels" of its own. An empty first bundle means that
    the trial itself uses nothing but its slot. `strategy`: PACK (as few machines as possible), SPREAD (as many as
    possible), STRICT_PACK (one machine or never), STRICT_SPREAD (each on a machine of its own or never).

    The trial runs code on another bundle with `get_context().bundles[1].start(function, *args).result()`; what fails
    there is `flowctl.HostFailed`. Raises `DeclarationError`.
    """
    place = at(caller_place(), "placement_group")
    if isinstance(bundles, (Mapping, str)) or not isinstance(bundles, Iterable):
        what = f"is given {kind_of(bundles)}, not a list of bundles"
        raise DeclarationError(what, place=place, cure=_GROUP_CURE)
    listed = list(bundles)
    if not listed:
        raise DeclarationError("has no bundles", place=place, cure=_GROUP_CURE)
    if len(listed) > MAX_BUNDLES:
        raise DeclarationError(f"has {len(listed):,} bundles, at most {MAX_BUNDLES:,} can be", place=place)
    if strategy not in STRATEGIES:
        shown = strategy if isinstance(strategy, str) else repr(strategy)
        cure = did_you_mean(shown, STRATEGIES, kind="strategies")
        raise DeclarationError(f"there is no strategy {strategy!r}", place=place, cure=cure)
    read = tuple(_bundle(each, f"{place}.bundles[{i}]", adds_cpu=False) for i, each in enumerate(listed))
    for i, bundle in enumerate(read):
        is_empty = set(bundle.need) == {SLOT}
        if is_empty and (i > 0 or len(read) == 1):
            cure = "only the first of several may be empty: the trial itself" if i > 0 else _GROUP_CURE
            raise DeclarationError("asks for nothing", place=f"{place}.bundles[{i}]", cure=cure)
    return Request(read, strategy)


def parse_resources(value: object, *, place: str | None = None) -> Request | ResourceFunction:
    """The request, or the function that gives one per configuration. Raises `DeclarationError`."""
    place = at(place, "resources")
    if isinstance(value, (Request, Mapping)):
        return _request(value, place)
    if callable(value):
        return _function(value, place)
    if isinstance(value, (list, tuple)):
        raise DeclarationError(f"is a {kind_of(value)}", place=place, cure=_GROUP_CURE)
    raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a dictionary", place=place, cure=_CURE)


def evaluate(function: ResourceFunction, config: Any, *, labels: tuple[str, ...] = ()) -> Request:
    """What the trial of this configuration asks for; None is one core.

    Raises `DeclarationError` for what is no request, and whatever the function raises.
    """
    value = function(config)
    if value is None:
        value = {}
    if not isinstance(value, (Request, Mapping)):
        what = f"gave {value!r} ({kind_of(value)}), not a dictionary, a placement group or None"
        raise DeclarationError(what, place="resources", cure=_CURE)
    return with_labels(_request(value, "resources"), labels, place="labels")


def with_labels(request: Request, labels: tuple[str, ...], *, place: str) -> Request:
    """The request with these labels wanted for each of its bundles. Raises `DeclarationError` if that cannot be."""
    if not labels:
        return request
    bundles = tuple(
        replace(bundle, labels=parse_labels([*bundle.labels, *labels], place=place)) for bundle in request.bundles
    )
    return replace(request, bundles=bundles)


def _request(value: Request | Mapping[Any, Any], place: str) -> Request:
    return value if isinstance(value, Request) else Request((_bundle(value, place, adds_cpu=True),))


def _bundle(value: object, place: str, *, adds_cpu: bool) -> Bundle:
    if not isinstance(value, Mapping):
        raise DeclarationError(f"is {value!r} ({kind_of(value)}), not a dictionary", place=place, cure=_CURE)
    labels = parse_labels(value.get(LABELS), place=f"{place}.{LABELS}")
    units = parse_amounts({name: amount for name, amount in value.items() if name != LABELS}, place=place)
    if adds_cpu:
        asks_for_device_or_token = any(amount for name, amount in units.items() if name not in ("cpu", "memory"))
        if "cpu" not in units and not asks_for_device_or_token:
            units["cpu"] = UNITS_PER_TOKEN
        if not any(units.values()):
            raise DeclarationError("asks for nothing", place=place, cure=_CURE)
    need = {name: amount for name, amount in {**units, SLOT: UNITS_PER_TOKEN}.items() if amount}
    return Bundle(dict(sorted(need.items())), labels)


def _function(function: Any, place: str) -> ResourceFunction:
    cure = "write resources=lambda config: {...}"
    if isinstance(function, type):
        raise DeclarationError(f"is the class {function.__name__}", place=place, cure=cure)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise NotYetError("an async function or a generator is not yet supported", place=place, cure=cure)
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        what = "its function must take the configuration as its only argument"
        raise DeclarationError(what, place=place, cure=cure) from None
    except ValueError:  # a function written in C that does not say what it takes
        pass
    checked: ResourceFunction = function
    return checked
