"""`flowctl down`: stops the embedded server, after saying who uses it."""

from __future__ import annotations

import os

import click

from flowctl.broker.connection import connect
from flowctl.broker.doctor import Activity, read_activity
from flowctl.broker.embedded import running_server, stop_server
from flowctl.broker.settings import Settings
from flowctl.dsl.errors import RefusedError
from flowctl.render.strict_json import dumps


@click.command()
@click.option("--force", is_flag=True, help="Stop it also while workers are up or runs are active.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def down(force: bool, as_json: bool) -> None:
    """Stop the server of this user and machine; its data stays, and `flowctl up` brings it back.

    Example: flowctl down --force
    """
    settings = Settings.from_env(os.environ)
    running = running_server(settings.home)
    activity = Activity(workers=(), runs=())
    if running is not None:
        client = connect(running.url)
        try:
            activity = read_activity(client, url=running.url)
        finally:
            client.close()
        if activity and not force:
            raise RefusedError(f"the server is in use: {activity}", cure=_cure(activity))
    was_running = stop_server(settings.home)
    if as_json:
        body = {"stopped": was_running, "pid": running.pid if running else None}
        click.echo(dumps("down", {**body, "workers": list(activity.workers), "runs": list(activity.runs)}))
        return
    if running is None or not was_running:
        click.echo("no embedded server was running")
        if settings.broker_url is not None:
            click.echo(f"{settings.broker_from} names a server that flowctl did not start and does not stop")
        return
    click.echo(f"stopped {running.product} {running.version}, pid {running.pid}; {activity}")


def _cure(activity: Activity) -> str:
    """What ends the use, and what is lost if it is not ended: nothing."""
    cancel = f"end a run with `flowctl cancel {activity.runs[0]}`, or " if activity.runs else ""
    return f"{cancel}stop it all the same with `flowctl down --force`: what is on storage stays"


command = down
