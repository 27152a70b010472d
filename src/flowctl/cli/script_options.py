"""The options that every command with a script shares, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

SCRIPT_HELP = "SCRIPT is path.py, or path.py:NAME where it holds several experiments or flows."


def plan_options(command: Command) -> Command:
    """`--set` and `-p`."""
    command = click.option(
        "-p",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the flow.",
    )(command)
    return click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="[STEP.]KEY=VALUE",
        help="A keyword of the decorator, such as num_samples=3, param_space.lr=0.1 or train.stop.epoch=5.",
    )(command)


def run_options(command: Command) -> Command:
    """`--name`, `--storage`, `--priority`, `--weight` and `--pending-timeout`, and those of a plan."""
    command = plan_options(command)
    command = click.option(
        "--pending-timeout",
        type=click.FloatRange(min=0, min_open=True, max=10**9),
        metavar="SECONDS",
        help="Fail each trial that waited so long for resources: pending_timeout_s of every step.",
    )(command)
    command = click.option(
        "--weight",
        type=click.FloatRange(min=0, min_open=True, max=1000),
        metavar="X",
        help="Its share beside other runs of equal priority; 2 gets twice as much as 1, the default.",
    )(command)
    command = click.option(
        "--priority",
        type=click.IntRange(-1000, 1000),
        metavar="N",
        help="Higher goes first, before shares; added to that of each step. Default 0.",
    )(command)
    command = click.option("--storage", metavar="URL", help="Where the run is stored; a folder or a URL.")(command)
    return click.option("--name", metavar="NAME", help="A name for the run; without it, a unique one is made.")(command)


def assignments(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """`key=value` texts as a dictionary; a key given twice is refused."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {text}: write {option} key=value")
        if key.strip() in found:
            raise click.UsageError(f"{option} {key.strip()} is given twice")
        found[key.strip()] = value
    return found
