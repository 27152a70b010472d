"""The `flowctl` command: the table of commands, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

import click

from flowctl.cli.lazy_group import Entry, LazyGroup
from flowctl.dsl.errors import FlowctlError

INTERRUPTED = 130
USAGE = 2

ENTRIES = (
    Entry("run", "Run", "Run a script here until it ends, with a live view.", "run"),
    Entry("submit", "Run", "Submit a script and return; any worker runs it.", "submit"),
    Entry("plan", "Run", "Show what a script would run, without a server.", "plan"),
    Entry("example", "Run", "List the shipped examples, or write one.", "example"),
    Entry("list", "See", "List runs.", "list_runs"),
    Entry("status", "See", "Show a run, or one trial with all its attempts.", "status"),
    Entry("watch", "See", "Follow a run until it ends.", "watch"),
    Entry("logs", "See", "Print what a trial wrote.", "logs"),
    Entry("results", "See", "Print one row per trial.", "results"),
    Entry("best", "See", "Print the best trial.", "best"),
    Entry("resources", "See", "Show every token and who holds it.", "resources"),
    Entry("workers", "See", "List workers and what they offer.", "workers"),
    Entry("wait", "See", "Wait until a run has ended.", "wait"),
    Entry("cancel", "Steer", "Cancel a run or one trial.", "cancel"),
    Entry("pool", "Steer", "Set, list or remove cluster-wide tokens.", "pool"),
    Entry("set", "Steer", "Change a run while it runs.", "set_run"),
    Entry("up", "Machines", "Start the server, also for other machines.", "up"),
    Entry("down", "Machines", "Stop the server.", "down"),
    Entry("worker", "Machines", "Start a worker on this machine.", "worker"),
    Entry("demand", "Machines", "Show what is pending by what it asks for.", "demand"),
    Entry("doctor", "Machines", "Check this machine and the server.", "doctor"),
)

EPILOG = (
    "A first run: 'flowctl example digits > digits.py', then 'flowctl run digits.py'. "
    "A trial is RUN/7; without RUN, the newest run. 'flowctl COMMAND --help' shows each command with an example."
)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib import metadata

        click.echo(f"flowctl {metadata.version('flowctl-celery')}")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    entries=ENTRIES,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Experiments on Celery that survive the death of anything."""


def main() -> None:
    """The console command."""
    sys.excepthook = report_crash
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors with a class of their own become one line on stderr."""
    try:
        code = cli.main(args=list(arguments), prog_name="flowctl", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return USAGE
    except click.UsageError as error:
        click.echo(f"flowctl: {_usage_line(error)}", err=True)
        return USAGE
    except click.ClickException as error:
        click.echo(f"flowctl: {error.format_message()}", err=True)
        return error.exit_code
    except FlowctlError as error:
        click.echo(f"flowctl: {error}", err=True)
        if os.environ.get("FLOWCTL_DEBUG") == "1":
            traceback.print_exc()
        return error.exit_code
    return code if isinstance(code, int) else 0


def report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An unexpected exception: one line and a report in a file; the whole traceback with FLOWCTL_DEBUG=1."""
    if os.environ.get("FLOWCTL_DEBUG") == "1":
        sys.__excepthook__(kind, error, trace)
        return
    import tempfile

    lines = traceback.format_exception(kind, error, trace)
    with tempfile.NamedTemporaryFile("w", prefix="flowctl-crash-", suffix=".txt", delete=False) as report:
        report.write(f"flowctl {' '.join(sys.argv[1:2])}\n\n{''.join(lines)}")
    text = " ".join(f"{kind.__name__}: {error}".split())
    click.echo(f"flowctl: unexpected {text}; this is a bug, the report is in {report.name}", err=True)


def _usage_line(error: click.UsageError) -> str:
    """Click's message in our form, with the nearest option and the help command."""
    text = " ".join(error.format_message().split())
    command = error.ctx.command_path if error.ctx else "flowctl"
    return f"{text[:1].lower()}{text[1:].rstrip('.')}; see '{command} --help'"
