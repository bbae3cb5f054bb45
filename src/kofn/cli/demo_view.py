"""The demo as it goes on, in the terminal: a line for each worker, with coding and without."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..model import Record
from ..report.logs import Tail

EVERY = 0.1  # seconds between two pictures
WIDTH, LEFT, RIGHT = 78, 36, 14  # columns of all, and rounds that are shown on either side
# What became of a worker's work in a round: a sign, and its style.
USED, LATE, BUSY = ("█", "blue"), ("░", "yellow"), ("▁", "yellow")
KILLED, JOINED, NONE = ("✕", "bold red"), ("▶", "bold green"), (" ", "")
Cell = tuple[str, str]


class Lanes:
    """What each worker did in each round, from the records of a log."""

    def __init__(self, log: deque[Record], workers: Iterable[int]) -> None:
        self._tail = Tail(log)
        self.rounds = 0
        self.cells: dict[int, dict[int, Cell]] = {worker: {} for worker in workers}
        self.gone: set[int] = set()
        self.news = ""
        self._over = True

    def update(self) -> None:
        """Take in what is new."""
        for record in self._tail.take():
            self._take(record)

    @property
    def waiting(self) -> list[int]:
        """Workers that are still at work while others have answered in the round."""
        now = {worker: mine.get(self.rounds) for worker, mine in self.cells.items()}
        some = any(cell == USED for cell in now.values()) and not self._over
        return [worker for worker, cell in now.items() if some and cell == BUSY]

    def _take(self, record: Record) -> None:
        kind, worker = record.kind, record.worker
        if kind == "round":
            self.rounds, self._over = self.rounds + 1, False
        elif kind in ("done", "raised"):
            self._over = True
            for mine in self.cells.values():
                if mine.get(self.rounds) == BUSY:
                    mine[self.rounds] = LATE if kind == "done" else NONE
        elif worker < 0 or kind == "ordered":
            return
        mine = self.cells.setdefault(worker, {}) if worker >= 0 else {}
        if kind == "send" and mine.get(self.rounds) is None:
            mine[self.rounds] = BUSY
        elif kind in ("piece", "reply") and record.rows and not self._over:
            mine[self.rounds] = USED
        elif kind == "lost":
            mine[self.rounds] = KILLED
            self.gone.add(worker)
            self.news = f"worker {worker} killed"
        elif kind == "joined":
            mine[self.rounds] = JOINED
            self.news = f"worker {worker} joined"

    def lines(self, width: int, names: bool) -> Table:
        """A line for each worker, the newest rounds at the right."""
        table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
        first = max(1, self.rounds - width + 1)
        for worker, mine in sorted(self.cells.items()):
            row = [mine.get(round, NONE) for round in range(first, first + width)]
            if worker in self.gone and max(mine) < first:
                row[0] = KILLED  # before what is shown
            name = Text(f"worker {worker}", "red" if worker in self.gone else "")
            table.add_row(*((name,) if names else ()), Text.assemble(*row))
        return table


class View:
    """Draws both runs on stderr a few times a second, from a thread; nothing where it is no
    terminal."""

    def __init__(self, coded: Lanes, plain: Lanes, rounds: int, quiet: bool) -> None:
        self.coded, self.plain, self._rounds = coded, plain, rounds
        self.died = ""  # what ended the plain run
        console = Console(stderr=True)
        self.on = console.is_terminal and not quiet
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="kofn-demo", daemon=True)

    def __enter__(self) -> View:
        if self.on:
            self._live.start()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.on:
            self._over.set()
            self._thread.join()
            self._live.update(self.picture(), refresh=True)
            self._live.stop()

    def _draw(self) -> None:
        while not self._over.wait(EVERY):
            self._live.update(self.picture(), refresh=True)

    def picture(self) -> Group:
        """Both runs, side by side."""
        self.coded.update()
        self.plain.update()
        coded, plain = self.coded, self.plain
        table = Table(box=None, padding=(0, 2, 0, 0), width=WIDTH)
        table.add_column("coded: any 3 of the 6 are enough", width=LEFT + 11)
        table.add_column("plain: all 6 are needed", width=WIDTH - LEFT - 15)
        table.add_row(coded.lines(LEFT, True), plain.lines(RIGHT, True))
        live = len(coded.cells) - len(coded.gone)
        now = f"round {coded.rounds} of {self._rounds}, {live} workers live"
        if self.died:
            there: Text = Text(f"dead in round {plain.rounds}", "bold red")
        elif plain.waiting:
            there = Text(f"round {plain.rounds}, waits for {plain.waiting[0]}", "yellow")
        else:
            there = Text(f"round {plain.rounds}")
        table.add_row(Text(now), there)
        table.add_row(Text(coded.news, "red" if "killed" in coded.news else "green"), "")
        signs = (USED, " used   ", BUSY, " at work   ", LATE, " late, not waited for   ")
        legend = Text.assemble(*signs, KILLED, " killed   ", JOINED, " joined")
        return Group(table, legend)
