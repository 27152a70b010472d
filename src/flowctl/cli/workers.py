"""`flowctl workers`: who is there, what each offers, what is booked, when it was last heard of."""

from __future__ import annotations

from collections.abc import Iterator

import click

from flowctl.broker.reading import reading
from flowctl.broker.reason import LabelOf, out_of_service, restore_cure
from flowctl.broker.shape_view import show_tokens
from flowctl.broker.store import Broker
from flowctl.broker.unit_names import UnitNames
from flowctl.broker.view import now_ms
from flowctl.broker.worker_view import DEVICE, WorkerView, as_gpu, load_workers
from flowctl.cli.server import opened
from flowctl.render.clock import span_ms
from flowctl.render.status_json import worker_body
from flowctl.render.strict_json import dumps
from flowctl.render.summary import lost_contact, token_text
from flowctl.render.table import table
from flowctl.workers.runs.pools import shadowed_by


@click.command("workers", short_help="List workers and what they offer.")
@click.option("--restore", metavar="NAME", help="Bring a worker back that was taken out of service.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(restore: str | None, as_json: bool) -> None:
    """List workers: host, state, labels, devices, tokens in use of those offered, running trials, last sign of life.

    A worker on which three different trials in a row failed within 10 s of their start is quarantined while another
    could take them: it gets nothing new, until --restore.

    Example: flowctl workers --restore gpu-7
    """
    with opened() as (broker, _), reading(broker):
        if restore is not None:
            _restore(broker, restore, as_json)
            return
        at_ms = now_ms(broker.client)
        workers = load_workers(broker.client)
        label_of = UnitNames(broker.client).label
        if as_json:
            bodies = [worker_body(worker, at_ms=at_ms, label_of=label_of) for worker in workers]
            click.echo(dumps("workers", {"workers": bodies}))
            return
        details = [line for worker in workers for line in _details(worker, at_ms, label_of)]
        pools = list(broker.client.hkeys("fc:pools"))
        details += [line for worker in workers for line in shadowed_by(pools, worker.worker, worker.offer)]
    if not workers:
        click.echo("no worker is up; start one: flowctl worker")
        return
    rows = [
        [
            worker.worker,
            worker.host,
            _state(worker, at_ms),
            worker.python,
            token_text(as_gpu(worker.offer), as_gpu(worker.used)),
            ", ".join(worker.labels),
            str(len({held.unit for held in worker.held if not held.is_orphan})),
            f"{span_ms(worker.last_ms, at_ms)} ago",
        ]
        for worker in workers
    ]
    click.echo(table(["worker", "host", "state", "python", "used/offered", "labels", "trials", "last beat"], rows))
    for line in details:
        click.echo(line)


def _restore(broker: Broker, name: str, as_json: bool) -> None:
    from flowctl.workers.runs.steer import restore

    before = restore(broker, name)
    if as_json:
        click.echo(dumps("restored", {"worker": name, "before": before, "state": "up"}))
        return
    click.echo(f"{name}: in service again" if before == "quarantined" else f"{name}: was in service already")


def _details(worker: WorkerView, at_ms: int, label_of: LabelOf) -> Iterator[str]:
    """Its devices, and why it is out of service."""
    for device in worker.devices:
        dim = f"{DEVICE}{device.id}"
        offered, used = worker.offer.get(dim, 0), worker.used.get(dim, 0)
        use = f"{show_tokens('gpu', used)} of 1 in use" if offered else "offered by another worker, or beyond its limit"
        memory = f", {show_tokens('memory', device.memory_mib)}" if device.memory_mib else ""
        yield f"{worker.worker}: gpu {device.visible} {device.name} ({device.id}{memory}): {use}"
    if worker.is_quarantined:
        yield f"{out_of_service(worker, at_ms=at_ms, label_of=label_of)}; {restore_cure(worker)}"


def _state(worker: WorkerView, at_ms: int) -> str:
    if not worker.has_contact(at_ms):
        return lost_contact(worker).replace(f" with {worker.worker}", "")
    only = f", only {worker.only_run}" if worker.only_run else ""
    return f"{worker.state}{'' if worker.is_accepting else ', takes no work'}{only}"
