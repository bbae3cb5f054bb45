"""Tables and progress bars: one way for all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from io import StringIO
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..display import figure

WIDEST = 1000  # characters that a table may need
NARROW = 12  # a column of text is not broken into shorter lines


def print_table(
    console: Console,
    title: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[Any]],
    **look: Any,
) -> None:
    """Print a table.

    `columns`: the format of each column by its name. Columns of text ("") are aligned left, others
    right. A cell that is text already stays as it is, and None is "never". A row may end early.
    """
    out = Table(title=title, title_justify="left", **look)
    cells = [list(map(_cell, row, columns.values())) for row in rows]
    for at, (name, form) in enumerate(columns.items()):
        longest = max((len(row[at]) for row in cells if at < len(row)), default=0)
        if form:
            least = max(longest, *map(len, name.split()), 0)
            out.add_column(name, justify="right", min_width=least)
        else:
            out.add_column(name, justify="left", overflow="fold", min_width=min(NARROW, longest))
    for row in cells:
        out.add_row(*row)
    needed = sum(column.min_width or 0 for column in out.columns)
    needed += 2 * len(columns) if out.box is None else 3 * len(columns) + 1
    if needed <= console.width:
        console.print(out)
        return
    # A number that is cut says nothing: rather the terminal breaks the lines.
    wide = Console(file=StringIO(), width=WIDEST)
    wide.print(out)
    console.out(wide.file.getvalue(), end="", highlight=False)  # type: ignore[attr-defined]


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "never"
    return value if isinstance(value, str) else figure(value, form)


def print_pairs(console: Console, pairs: Mapping[str, str]) -> None:
    """Print names and values, a line each."""
    out = Table(show_header=False, box=None, padding=(0, 2))
    for pair in pairs.items():
        out.add_row(*pair)
    console.print(out)


def print_text(console: Console, text: str, values: Mapping[str, Any] = {}) -> None:
    """Print a text filled in as `str.format` does."""
    print_sentences(console, " ".join(text.split()).format_map(values))


def print_sentences(console: Console, text: str) -> None:
    """Print a text at a terminal in lines of whole words, in a file as one line."""
    console.print(text, soft_wrap=not console.is_terminal, highlight=False)


@contextmanager
def progress(
    what: str, total: int | None, quiet: bool, *fields: str
) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr if that is a terminal, with the texts named in `fields` beside it.

    Yields `update(advance=, completed=, total=, **fields)`.
    """
    console = Console(stderr=True)
    texts = [TextColumn(f"{{task.fields[{name}]}}") for name in fields]
    columns = (TextColumn(f"[bold]{what}"), BarColumn(), MofNCompleteColumn(), *texts)
    off = quiet or not console.is_terminal
    bar = Progress(*columns, TimeElapsedColumn(), console=console, disable=off)
    with nullcontext() if off else bar:  # to begin and end one is a line, before rich 14.3
        empty: Any = dict.fromkeys(fields, "")
        yield partial(bar.update, bar.add_task(what, total=total, **empty))
