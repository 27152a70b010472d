"""A click group that imports a command's module when the command is used, and lists commands in sections."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import click


@dataclass(frozen=True)
class Entry:
    """Where a command lives: a module of flowctl.cli whose attribute `command` is the click command."""

    name: str
    section: str
    summary: str
    module: str


class LazyGroup(click.Group):
    """Commands by name from a table; `--help` reads the table only."""

    def __init__(self, entries: Sequence[Entry] = (), **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self.entries = {entry.name: entry for entry in entries}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = import_module(f"flowctl.cli.{entry.module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            near = difflib.get_close_matches(args[0], self.entries, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "'flowctl --help' lists all commands"
            ctx.fail(f"no command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in self.entries.values()):
            rows = [(entry.name, entry.summary) for entry in self.entries.values() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)
