"""`flowctl up`: starts the server and makes the signing key; with `--listen`, opens the server to other machines."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import click

from flowctl.broker.broker_url import BrokerURL, split_host_port
from flowctl.broker.connection import check_server, connect
from flowctl.broker.embedded import ServerInfo, ensure_server, listen, running_server
from flowctl.broker.errors import ServerUnreachable, SettingError
from flowctl.broker.join import JoinToken
from flowctl.broker.remembered_storage import remember_storage
from flowctl.broker.settings import Settings, expand_join
from flowctl.render.strict_json import dumps
from flowctl.storage.address import parse
from flowctl.storage.location import Location
from flowctl.storage.signing import Keyring

ANY_ADDRESS = ("0.0.0.0", "::", "*")
UNROUTED = "192.0.2.1"
"""An address reserved for documentation: asking how it would be reached sends nothing."""


@dataclass(frozen=True)
class Served:
    """What `up` found or made. `join` is the line for other machines; None without `--listen` or storage."""

    server: str
    pid: int
    version: str
    is_new: bool
    listen: str | None
    key_id: str
    storage: str | None
    join: str | None
    notes: tuple[str, ...]


@click.command()
@click.option("--listen", "address", metavar="HOST:PORT", help="Serve other machines too; 'off' takes it back.")
@click.option(
    "--storage",
    metavar="URL",
    help="Where runs are stored from now on: a URL, or a folder that all machines share; 'off' forgets it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def up(address: str | None, storage: str | None, as_json: bool) -> None:
    """Start the server of this user and machine; one that runs is left as it is.

    Example: flowctl up --listen 0.0.0.0:6379 --storage s3://bucket/runs
    """
    served = bring_up(os.environ, address=address, storage=storage)
    if as_json:
        click.echo(dumps("up", asdict(served)))
        return
    click.echo(f"server  {served.version}, pid {served.pid}, {'started' if served.is_new else 'was running'}")
    click.echo(f"at      {served.server}" + (f" and {served.listen}" if served.listen else ""))
    click.echo(f"key     {served.key_id}")
    if served.storage:
        click.echo(f"storage {served.storage}")
    for note in served.notes:
        click.echo(f"note    {note}")
    if served.join:
        click.echo("On each other machine, paste this line (it holds the password and the key):")
        click.echo(served.join)


def bring_up(env: Mapping[str, str], *, address: str | None, storage: str | None) -> Served:
    """Starts, or finds, the server; opens it to other machines if asked; makes the key if there is none."""
    settings, given = Settings.from_env(env), expand_join(env)
    if settings.broker_url is not None:
        return _foreign(settings.broker_url, given, settings, wants=address or storage)
    bind = _listen_address(address)
    is_forgotten = storage == "off"
    named = None if is_forgotten else storage
    # Everything that can be wrong is looked at before anything is changed.
    url = Location.open(named).require_shared().url if named else None
    if not url and not is_forgotten and settings.storage_from:
        url = Location.open(settings.storage).require_shared().url if bind else parse(settings.storage).url
    before = running_server(settings.home)
    keyring = Keyring.from_env(given, settings.home, create=True)
    if address is None:
        ensure_server(settings.home, env=env)
    else:
        listen(settings.home, address=bind, env=env)
    info = running_server(settings.home)
    if info is None:
        raise ServerUnreachable("the server stopped meanwhile", place=str(settings.home), cure="try again")
    client = connect(info.url)
    check_server(client, url=info.url)
    client.close()
    if is_forgotten or (url and (named or bind)):
        remember_storage(settings.home, url)
    served = Served(
        server=info.url.safe(),
        pid=info.pid,
        version=f"{info.product} {info.version}",
        is_new=before is None or before.pid != info.pid,
        listen=None,
        key_id=keyring.key_id,
        storage=url,
        join=None,
        notes=_storage_notes(env, url if named else None),
    )
    return _joinable(served, info, key=_key_text(given, settings), storage=url) if info.listen else served


def reachable_name(host: str) -> tuple[str, str | None]:
    """The name by which other machines reach a server bound to `host`, and what a person should know about it."""
    if host in ANY_ADDRESS:
        name = _own_address() or socket.gethostname()
        return name, f"the join line uses {name}; if others reach this machine by another name, listen on that name"
    if host in ("localhost", "::1") or host.startswith("127."):
        return host, f"{host} is reachable from this machine only"
    return host, None


def _joinable(served: Served, info: ServerInfo, *, key: str, storage: str | None) -> Served:
    host, port = info.listen or ("", 0)
    name, note = reachable_name(host)
    notes = [*served.notes, *([note] if note else [])]
    address = BrokerURL(kind="redis", hosts=((name, port),), password=info.url.password)
    token = JoinToken(broker=address.url(), key=key, storage=storage or "")
    if storage is None:
        notes.append("no storage is named: other machines can run nothing yet; add --storage URL_OR_SHARED_FOLDER")
    elif storage.startswith("file://"):
        notes.append(f"every machine must see {storage} as the same folder")
    join = f"FLOWCTL_JOIN={token.encode()} flowctl worker" if storage else None
    return replace(served, listen=address.safe(), join=join, notes=tuple(notes))


def _storage_notes(env: Mapping[str, str], named: str | None) -> tuple[str, ...]:
    other = env.get("FLOWCTL_STORAGE")
    if not named:
        return ()
    if other and parse(other).url != named:
        return (f"FLOWCTL_STORAGE is set here: what is submitted from this shell goes to {other}",)
    return ("what is submitted from here is stored there too; `flowctl up --storage off` forgets it",)


def _foreign(url: str, env: Mapping[str, str], settings: Settings, *, wants: str | None) -> Served:
    broker = BrokerURL.parse(url)
    if wants:
        raise SettingError(
            f"the server {broker.safe()} is not this folder's, so how it listens is set there",
            place=settings.broker_from,
            cure="unset it to use the embedded server",
        )
    client = connect(broker)
    facts = check_server(client, url=broker)
    client.close()
    return Served(
        server=broker.safe(),
        pid=facts.pid,
        version=f"{facts.product} {facts.version}",
        is_new=False,
        listen=None,
        key_id=Keyring.from_env(env, settings.home, create=True).key_id,
        storage=None,
        join=None,
        notes=(f"{settings.broker_from} names this server; no embedded one is started",),
    )


def _listen_address(text: str | None) -> tuple[str, int] | None:
    if text is None or text == "off":
        return None
    try:
        return split_host_port(text)
    except SettingError as error:
        raise SettingError(error.what, place="--listen", cure="for example --listen 0.0.0.0:6379, or off") from error


def _key_text(env: Mapping[str, str], settings: Settings) -> str:
    return env.get("FLOWCTL_SECRET_KEY") or (settings.home / "secret.key").read_text(encoding="utf-8").strip()


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((UNROUTED, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


command = up
