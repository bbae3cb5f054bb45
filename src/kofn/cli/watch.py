"""kofn watch: a run in the terminal, by its log on disk."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..report.counts import Json
from ..report.logs import LogReader
from ..report.state import RunState
from ..report.words import seconds, size
from .show import read

EVERY = 0.5  # seconds
LINES = 12  # of workers, and of events
SIGNS = {"used": "█", "late": "▒", "wasted": "░", "lost": "x", "failed": "!"}
STYLES = {"used": "blue", "late": "yellow", "wasted": "yellow", "lost": "red", "failed": "bold"}


def run(log: Path, once: bool, price: float | None) -> None:
    """Show the run until it is over, or Ctrl-C; or once."""
    reader = LogReader(log)
    console = Console()
    try:
        state = read(reader, price)
        if once:
            console.print(picture(state, console.width))
            return
        with Live(picture(state, console.width), console=console, auto_refresh=False) as live:
            while not state.closed:
                time.sleep(EVERY)
                records = reader.take()
                if reader.anew:
                    state = RunState(reader.first["engine"], reader.first["workers"], price)
                state.take(records)
                live.update(picture(state, console.width), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()


def picture(state: RunState, width: int) -> Group:
    """The state of a run, for a terminal of this width."""
    head = state.head()
    return Group(
        Text(" ".join(head["story"]), style="bold"),
        _figures(head),
        _workers(state, max(20, width - 24)),
        _events(state),
    )


def _figures(head: Json) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("rounds", f"{head['rounds']:,}, {head['rate']:.3g} a second")
    if head["p50"] is not None:
        took = f"{seconds(head['p50'])}; 1 in 100 takes more than {seconds(head['p99'])}"
        table.add_row("a round takes", took)
    rows = {"used": "used", "wasted": "wasted", "topped_up": "topped up"}
    table.add_row("rows", ", ".join(f"{head[key]:,.0f} {name}" for key, name in rows.items()))
    if head["resident"] is not None:
        most = f"{size(head['resident'])}; at most {size(head['resident_most'])} of one"
        table.add_row("memory", most)
    if head["moved"] is not None:
        table.add_row("moved", size(head["moved"]))
    if head["round"] is not None:
        table.add_row("now", f"round {head['round'][0]}, {head['round'][2]}")
    return table


def _workers(state: RunState, width: int) -> Table:
    """A line for each worker that is live, newest work at the right."""
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    spans = state.spans.items
    end = state.head()["time"]
    start = max(0.0, end - 30.0)
    shown = sorted(state.live)[:LINES]
    cells = {worker: [(" ", "")] * width for worker in shown}
    for worker, begin, stop, _, _, kind, _, _ in spans:
        if worker in cells and stop >= start and end > start:
            first = max(0, int((begin - start) / (end - start) * width))
            last = min(width - 1, int((stop - start) / (end - start) * width))
            for i in range(first, last + 1):
                cells[worker][i] = (SIGNS[kind], STYLES[kind])
    for worker in shown:
        table.add_row(f"worker {worker}", Text.assemble(*cells[worker]))
    if len(state.live) > LINES:
        table.add_row("", f"and {len(state.live) - LINES:,} more")
    return table


def _events(state: RunState) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for at, _, _, text, _ in list(state.events.items)[-LINES:]:
        table.add_row(seconds(at), Text(text))
    return table
