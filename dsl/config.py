"""The configuration of a trial: a dictionary that also reads as attributes, at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Config(dict[str, Any]):
    """`config["opt"]["lr"]` and `config.opt.lr` are the same; dictionaries inside, also in lists, are `Config` too.

    It is a plain `dict` to everything else (`json.dumps`, `**config`, `==`, pickle). A key that is the name of a
    dictionary's method (`items`, `copy`, …) is read with brackets only.
    """

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any) -> None:
        super().__init__()
        self.update(values, **more)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}; {self._cure(name)}") from None

    def _cure(self, name: str) -> str:
        from flowctl.dsl.names import did_you_mean  # only where something is wrong: every trial imports this module

        return did_you_mean(name, [key for key in self if isinstance(key, str)], kind="keys")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}; {self._cure(name)}") from None

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _wrap(value))

    def update(self, values: Any = (), /, **more: Any) -> None:
        for key, value in dict(values, **more).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> Config:
        return Config(self)

    def __or__(self, other: Any) -> Any:
        return Config({**self, **other}) if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Config:  # type: ignore[override]
        self.update(other)
        return self


def _wrap(value: Any) -> Any:
    if type(value) is dict:
        return Config(value)
    if type(value) is list:
        return [_wrap(inner) for inner in value]
    if type(value) is tuple:
        return tuple(_wrap(inner) for inner in value)
    return value
