"""The live view of a run: a picture of a snapshot, redrawn in place. Drawing only; the caller polls and decides."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flowctl.broker.snapshot import Snapshot
from flowctl.broker.view import RunView
from flowctl.render import summary
from flowctl.render.clock import span_ms
from flowctl.render.summary import ConfigOf
from flowctl.render.table import cut

STYLES = {
    "completed": "green",
    "running": "cyan",
    "placed": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
}


class LiveView:
    """Draws snapshots on a terminal until it is closed; the last picture stays."""

    def __init__(self, console: Console, config_of: ConfigOf) -> None:
        self._console = console
        self._config_of = config_of
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, snap: Snapshot, *, note: str | None = None) -> None:
        """Draw one snapshot; `note` is a line about the view itself, such as a lost server."""
        rows = max(3, self._console.height - 16)
        drawn = picture(snap, self._config_of, rows=rows, width=self._console.width, note=note)
        self._live.update(drawn, refresh=True)


def picture(
    snap: Snapshot, config_of: ConfigOf, *, rows: int, width: int = 120, note: str | None = None
) -> RenderableType:
    """One snapshot as rich renderables of at most `width` columns; at most `rows` running trials are listed.

    Trials of the table are named without their run, which the first line names.
    """
    parts: list[RenderableType] = [_header(snap), _progress(snap.run, width)]
    if len(snap.run.steps) > 1:
        parts.append(_steps(snap.run))
    parts += [
        Text(line, style="bold", no_wrap=True, overflow="ellipsis") for line in summary.best_lines(snap, config_of)
    ]
    running = summary.running_rows(snap)
    if running:
        short = [[row[0].removeprefix(f"{snap.run.run}/"), *row[1:]] for row in running[:rows]]
        parts += [Text(), _table(summary.RUNNING_HEAD, _fitted(short, width))]
        if len(running) > rows:
            parts.append(Text(f"and {len(running) - rows} more", style="dim"))
        parts += [Text(line, style="yellow") for line in summary.retry_lines(snap)]
    pending = [*summary.notice_lines(snap).values(), *summary.contact_lines(snap), *summary.pending_lines(snap)]
    if pending:
        parts += [Text(), *(Text(line, style="yellow") for line in pending)]
    failures = [line if line.startswith(" ") else cut(line, 2 * width) for line in summary.failure_lines(snap)]
    if failures:
        parts += [Text(), *(Text(line, style="dim" if line.startswith(" ") else "red") for line in failures)]
    if note:
        parts += [Text(), Text(note, style="bold yellow")]
    return Group(*parts)


def _header(snap: Snapshot) -> Text:
    run = snap.run
    wanted = " (cancelling)" if run.wanted == "cancel" and not run.ended else ""
    elapsed = span_ms(run.created_ms, run.ended_ms or snap.at_ms)
    return Text.assemble(
        (run.run, "bold"), "  ", (run.state + wanted, STYLES.get(run.state, "")), "  ", (elapsed, "dim")
    )


def _progress(run: RunView, width: int) -> RenderableType:
    """The bar and the counts in one line; where that is too narrow for both, in two."""
    counts = run.counts()
    text = Text(summary.count_text(counts))
    bar = ProgressBar(total=max(1, counts["total"]), completed=summary.ended_count(counts), width=min(30, width))
    if text.cell_len + min(30, width) + 2 > width:
        lines = Table.grid()
        lines.add_row(bar)
        lines.add_row(text)
        return lines
    grid = Table.grid(padding=(0, 2))
    grid.add_row(bar, text)
    return grid


def _fitted(rows: list[list[str]], width: int) -> list[list[str]]:
    """Rows of the running trials with the last report cut, so that the rest stands in full."""
    head = summary.RUNNING_HEAD
    report = head.index("last report")
    widths = [max(len(row[i]) for row in [head, *rows]) + 2 for i in range(len(head)) if i != report]
    room = max(len(head[report]), width - sum(widths) - 2)
    return [[cut(cell, room) if i == report else cell for i, cell in enumerate(row)] for row in rows]


def _steps(run: RunView) -> Table:
    return _table(["step", "kind", "state", "trials", ""], summary.step_rows(run), state_column=2)


def _table(head: list[str], rows: list[list[str]], *, state_column: int = 1) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for name in head:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for row in rows:
        word = row[state_column].split(" ")[0]
        cells = [
            Text(cell, style=STYLES.get(word, "")) if i == state_column else Text(cell) for i, cell in enumerate(row)
        ]
        table.add_row(*cells)
    return table
