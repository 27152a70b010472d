"""`flowctl example`: the shipped examples, listed or written."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from flowctl.cli.target import UnknownTarget
from flowctl.dsl.errors import RefusedError
from flowctl.dsl.names import did_you_mean
from flowctl.render.strict_json import dumps
from flowctl.render.table import table

FOLDER = Path(__file__).resolve().parents[1] / "examples"
"""In a checkout a link to the examples at its root, in an installed wheel the files themselves."""


@click.command("example", short_help="List the shipped examples, or write one.")
@click.argument("name", required=False)
@click.option("--to", "folder", metavar="DIR", help="Write NAME.py into this folder instead of printing it.")
@click.option("--json", "as_json", is_flag=True, help="The list as one JSON object on stdout.")
def command(name: str | None, folder: str | None, as_json: bool) -> None:
    """List the shipped examples; with NAME, print one, or write it with --to.

    Example: flowctl example digits > digits.py && flowctl run digits.py
    """
    found = examples()
    if name is None:
        rows = [[each, summary(source)] for each, source in found.items()]
        if as_json:
            click.echo(dumps("examples", {"examples": [{"name": each, "summary": text} for each, text in rows]}))
        else:
            click.echo(table(["example", ""], rows))
            click.echo("\nprint one: flowctl example NAME > NAME.py")
        return
    source = found.get(name.removesuffix(".py"))
    if source is None:
        raise UnknownTarget(f"there is no example '{name}'", cure=did_you_mean(name, found, kind="examples"))
    if folder is None:
        click.echo(source.read_text(encoding="utf-8"), nl=False)
        return
    path = Path(folder) / source.name
    if path.exists():
        raise RefusedError("the file exists already", place=str(path), cure="remove it, or choose another --to")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise RefusedError(
            f"cannot be written ({error.strerror})", place=str(path), cure="choose another --to"
        ) from error
    click.echo(f"{path}; run it: flowctl run {path}")


def examples() -> dict[str, Path]:
    """The shipped scripts by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.py")) if not path.name.startswith("_")}


def summary(source: Path) -> str:
    """The first line of a script's docstring."""
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
