"""`flowctl doctor`: every check of this machine and of the server, each with its cure."""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata

import click
from packaging.specifiers import SpecifierSet

from flowctl.broker.broker_url import BrokerURL
from flowctl.broker.doctor import Check, server_checks
from flowctl.broker.embedded import running_server
from flowctl.broker.server_binary import find_binary
from flowctl.broker.settings import Settings, expand_join, unknown_variables
from flowctl.dsl.errors import FlowctlError
from flowctl.render.strict_json import dumps
from flowctl.storage.errors import UnknownKey
from flowctl.storage.location import Location
from flowctl.storage.signing import Keyring

OLDEST_KERNEL = (5, 3)
"""The first Linux with pidfd_open and P_PIDFD, by which a worker watches its processes."""

PACKAGES = {"celery": ">=5.7,<5.8", "kombu": ">=5.7,<5.8", "redis": ">=6.4,<9"}
UNUSABLE = 4


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Check this machine and the server; exit code 4 if something must be mended first.

    Example: flowctl doctor --json
    """
    checks = all_checks(os.environ)
    if as_json:
        click.echo(dumps("doctor", {"checks": [asdict(check) for check in checks]}))
    elif sys.stdout.isatty():
        _print_table(checks)
    else:
        for check in checks:
            cure = f"; {check.cure}" if check.cure else ""
            click.echo(f"{check.verdict:4} {check.name}: {check.detail}{cure}")
    click.get_current_context().exit(UNUSABLE if any(check.verdict == "fail" for check in checks) else 0)


def all_checks(env: Mapping[str, str]) -> list[Check]:
    """Every check, in the order in which a person would mend things; changes nothing and starts nothing."""
    checks = [_python(), _platform(), *_packages(), *_variables(env)]
    try:
        settings, given = Settings.from_env(env, make_home=False), expand_join(env)
    except FlowctlError as error:
        return [*checks, Check.failed("settings", error)]
    checks += [_state(settings), _key(given, settings), _storage(settings), _binary(env, settings)]
    return checks + _server(settings)


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _platform() -> Check:
    detail = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() != "Linux":
        return Check("platform", "warn", detail, "client, plan and server work here; run workers on Linux")
    numbers = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_KERNEL:
        return Check("platform", "fail", detail, "workers need Linux 5.3 or newer")
    return Check("platform", "ok", detail)


def _packages() -> list[Check]:
    checks = []
    for name, wanted in PACKAGES.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            checks.append(Check(name, "fail", "not installed", f"pip install '{name}{wanted}'"))
            continue
        fits = SpecifierSet(wanted).contains(version, prereleases=True)
        checks.append(Check(name, "ok" if fits else "fail", version, "" if fits else f"pip install '{name}{wanted}'"))
    return checks


def _variables(env: Mapping[str, str]) -> list[Check]:
    return [
        Check("variables", "warn", f"nothing reads {name}", f"did you mean {near}?" if near else f"unset {name}")
        for name, near in unknown_variables(env).items()
    ]


def _state(settings: Settings) -> Check:
    home = settings.home
    if not home.exists():
        return Check("state folder", "ok", f"{home}, not made yet")
    status = home.stat()
    if status.st_uid != os.geteuid():
        return Check("state folder", "fail", f"{home} belongs to user {status.st_uid}", "set FLOWCTL_HOME to your own")
    if stat.S_IMODE(status.st_mode) & 0o022:
        return Check("state folder", "fail", f"other users may write to {home}", f"chmod 700 {home}")
    return Check("state folder", "ok", str(home))


def _key(env: Mapping[str, str], settings: Settings) -> Check:
    try:
        keyring = Keyring.from_env(env, settings.home, create=False)
    except UnknownKey:
        return Check("key", "warn", "none yet", "`flowctl up` makes one; workers elsewhere need the same")
    except FlowctlError as error:
        return Check.failed("key", error)
    return Check("key", "ok", ", ".join(keyring.ids))


def _storage(settings: Settings) -> Check:
    try:
        url = Location.open(settings.storage).require_shared().url
        named = f" (named by {settings.storage_from})" if settings.storage_from else ""
        return Check("storage", "ok", f"{url} is writable{named}")
    except FlowctlError as error:
        return Check.failed("storage", error)


def _binary(env: Mapping[str, str], settings: Settings) -> Check:
    try:
        binary = find_binary(env)
    except FlowctlError as error:
        if settings.broker_url is None:
            return Check.failed("server program", error)
        return Check("server program", "ok", f"none, and none is needed with {settings.broker_from}")
    return Check("server program", "ok", f"{binary.product} {binary.version} from {binary.source} ({binary.path})")


def _server(settings: Settings) -> list[Check]:
    try:
        if settings.broker_url is not None:
            return server_checks(BrokerURL.parse(settings.broker_url))
        running = running_server(settings.home)
    except FlowctlError as error:
        return [Check.failed("server", error)]
    if running is None:
        cure = "`flowctl up` starts it, as do `flowctl run` and `flowctl submit`"
        return [Check("server", "warn", f"the embedded server of {settings.home} is not running", cure)]
    return server_checks(running.url)


def _print_table(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    shown = Table(box=None, pad_edge=False)
    for head in ("", "check", "what was seen", "what to do"):
        shown.add_column(head, overflow="fold")
    for check in checks:
        verdict = Text(check.verdict, style=colours[check.verdict])
        shown.add_row(verdict, Text(check.name), Text(check.detail), Text(check.cure))
    Console().print(shown)


command = doctor
