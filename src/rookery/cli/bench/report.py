"""Tables of `rookery bench`: at most 80 columns, with lines and colors only on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import StringIO

from rookery.cli.chat.terminal_screen import has_colour
from rookery.cli.output import Output

WIDTH = 80


def number(value: float) -> str:
    """Return three digits that count, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Return a time in the unit that fits it."""
    if value < 1:
        return f"{number(value * 1000)} ms"
    return f"{number(value)} s" if value < 120 else f"{number(value / 60)} min"


def table(out: Output, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. All columns but the first are numbers."""
    if out.json:
        return
    if not out.stdout_is_terminal:
        cells: list[Sequence[str]] = [headers, *rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
        for row in cells:
            first, *rest = (
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            out.line("  ".join([first, *rest]).rstrip())
        return
    # Imported late, because it takes longer to load than the rest of the command.
    from rich.console import Console
    from rich.table import Table

    written = StringIO()
    is_coloured = has_colour(os.environ, is_terminal=True)
    console = Console(
        file=written, width=WIDTH, force_terminal=is_coloured, no_color=not is_coloured, highlight=False, markup=False
    )
    grid = Table(show_edge=False, pad_edge=False, header_style="bold")
    for at, header in enumerate(headers):
        grid.add_column(header, justify="right" if at else "left", no_wrap=at > 0)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    out.text(written.getvalue())
