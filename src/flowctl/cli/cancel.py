"""`flowctl cancel`: a run or one trial."""

from __future__ import annotations

import click

from flowctl.broker.reading import reading
from flowctl.cli import target as targets
from flowctl.cli.server import opened
from flowctl.dsl.errors import RefusedError
from flowctl.render.strict_json import dumps


@click.command("cancel", short_help="Cancel a run or one trial.")
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str, as_json: bool) -> None:
    """Cancel a run or one trial. What waits ends at once; what runs is stopped and keeps its checkpoints.

    TARGET is RUN, RUN/7 or RUN/step/7. Cancelling what has ended changes nothing.

    Example: flowctl cancel digits/7
    """
    from flowctl.workers.runs.steer import cancel

    with opened() as (broker, _), reading(broker):
        found = targets.find_target(broker.client, target)
        steered = cancel(broker, _name(found))
    if as_json:
        click.echo(dumps("cancelled", {"target": found.label, "state": steered.state, "had_ended": steered.is_over}))
        return
    done = _text(steered.state, steered.is_over)
    click.echo(f"{found.label}: {done}; see it: flowctl watch {found.run.run}")


def _name(found: targets.Target) -> str:
    if found.step is not None and found.index is not None:
        return f"{found.run.run}:{found.step.name}:{found.index}"
    if found.step is not None:
        raise RefusedError(
            "one experiment of a run cannot be cancelled yet",
            place=found.label,
            cure=f"cancel its trials, {found.run.run}/{found.step.name}/0 and so on, or the whole run: "
            f"flowctl cancel {found.run.run}",
        )
    return found.run.run


def _text(state: str, had_ended: bool) -> str:
    if had_ended:
        return f"had already ended ({state})"
    return "cancelled" if state == "cancelled" else "being cancelled"
