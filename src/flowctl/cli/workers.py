"""`flowctl workers`: who is there, what each offers, what is booked, when it was last heard of."""

from __future__ import annotations

import click

from flowctl.broker.reading import reading
from flowctl.broker.view import now_ms
from flowctl.broker.worker_view import WorkerView, load_workers
from flowctl.cli.server import opened
from flowctl.render.clock import span_ms
from flowctl.render.status_json import worker_body
from flowctl.render.strict_json import dumps
from flowctl.render.summary import lost_contact, token_text
from flowctl.render.table import table


@click.command("workers", short_help="List workers and what they offer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(as_json: bool) -> None:
    """List workers: host, state, tokens in use of those offered, running trials, last sign of life.

    Example: flowctl workers --json
    """
    with opened() as (broker, _), reading(broker):
        at_ms = now_ms(broker.client)
        workers = load_workers(broker.client)
    if as_json:
        click.echo(dumps("workers", {"workers": [worker_body(worker, at_ms=at_ms) for worker in workers]}))
        return
    if not workers:
        click.echo("no worker is up; start one: flowctl worker")
        return
    rows = [
        [
            worker.worker,
            worker.host,
            _state(worker, at_ms),
            worker.python,
            token_text(worker.offer, worker.used),
            str(len([held for held in worker.held if not held.is_orphan])),
            f"{span_ms(worker.last_ms, at_ms)} ago",
        ]
        for worker in workers
    ]
    click.echo(table(["worker", "host", "state", "python", "used/offered", "trials", "last beat"], rows))


def _state(worker: WorkerView, at_ms: int) -> str:
    if not worker.has_contact(at_ms):
        return lost_contact(worker).replace(f" with {worker.worker}", "")
    only = f", only {worker.only_run}" if worker.only_run else ""
    return f"{worker.state}{'' if worker.is_accepting else ', takes no work'}{only}"
