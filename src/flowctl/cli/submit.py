"""`flowctl submit`: submit a script and return."""

from __future__ import annotations

import click

from flowctl.cli.script_options import run_options


@click.command("submit", short_help="Submit a script and return; any worker runs it.")
@click.argument("script")
@run_options
@click.option("--watch", is_flag=True, help="Follow it until it ends; Ctrl-C detaches.")
@click.option("--wait", is_flag=True, help="Wait until it ends; the exit code is that of 'flowctl wait'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; with --watch, JSON lines.")
def command(
    script: str,
    name: str | None,
    storage: str | None,
    priority: int | None,
    weight: float | None,
    pending_timeout: float | None,
    sets: tuple[str, ...],
    parameters: tuple[str, ...],
    watch: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit a script and return. From then on nothing of this terminal or machine is needed: any worker runs it.

    SCRIPT is path.py, or path.py:NAME where it holds several experiments or flows.
    A trial that fails is not tried again unless its experiment allows it: max_failures is 0 by default.

    Example: flowctl submit digits.py --name first --set num_samples=3
    """
    from flowctl.cli.follow import follow
    from flowctl.cli.launching import Submission, look, notes, prepare, problems, submit_prepared
    from flowctl.cli.outcome import exit_code, tell_infeasible
    from flowctl.cli.server import opened
    from flowctl.cli.wait import wait_until_ended
    from flowctl.render.plan_text import trials
    from flowctl.render.strict_json import dumps
    from flowctl.workers.runs.configs import ConfigReader

    prepared = prepare(script, sets=sets, parameters=parameters, pending_timeout=pending_timeout)
    with opened() as (broker, settings):
        submission = Submission(name, storage, priority or 0, weight or 1.0)
        run = submit_prepared(prepared, submission, broker=broker, settings=settings)
        found, reasons = look(broker, run)
        lines, noted = problems(reasons, found), notes(broker, found)
        plan = prepared.compiled.plan
        if as_json:
            body = {
                "run": run,
                "name": found.name,
                "location": found.location,
                "plan_digest": plan.digest,
                "trials": {step.name: step.total for step in plan.steps},
                "problems": lines,
                "notes": noted,
            }
            click.echo(dumps("submitted", body, indent=None if watch else 2))
        else:
            click.echo(f"{run}  {trials(plan)}, stored in {found.location}")
            for line in [*lines, *noted]:
                click.echo(line)
            if not (watch or wait):
                click.echo(f"follow it: flowctl watch {run}")
        if wait and not watch:
            return wait_until_ended(broker, settings, found, quiet=as_json)
        if not watch:
            return 0
        configs = ConfigReader(found.location, run, settings)
        ended = follow(broker, run, configs.of_quietly, settings=settings, as_json=as_json, after="0-0")
        tell_infeasible(ended)
    return exit_code(ended.run)
