"""For commands that show a run: a page while it goes on, a log, a page of it afterwards."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path

from ..cluster import Cluster
from ..files import check_file
from ..page import Page, saved
from ..report.logs import LogReader
from ..report.state import RunState
from . import places

LOOKED_AT = 30.0  # seconds for which a demo waits for somebody to open its page


class Shown:
    """How a run is to be shown: on a page, with a price for a worker's hour; in a log."""

    def __init__(self, page: bool, price: float | None, log: Path | None, title: str = "") -> None:
        self.page, self.log = page, log
        self._price, self._title = price, title
        self._page: Page | None = None

    def open(self, cluster: Cluster, wait: bool = False) -> bool:
        """Open the page, if one is wanted, and tell its address; wait until somebody looks."""
        if not self.page:
            return False
        self._page = cluster.page(price=self._price, title=self._title)
        print(f"The page: {self._page.address}", file=sys.stderr, flush=True)
        if wait:
            self._page.opened.wait(LOOKED_AT)
        return True

    def stay(self) -> None:
        """Leave the page open until Ctrl-C, for a person at a terminal."""
        if self._page is None:
            return
        if sys.stdin.isatty() and sys.stderr.isatty():
            print("The page stays until you press Ctrl-C.", file=sys.stderr, flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
        self._page.close()


NOT_SHOWN = Shown(False, None, None)


def read(reader: LogReader, price: float | None) -> RunState:
    """The state of the run that a log tells of, as far as it goes."""
    records = reader.take()
    state = RunState(reader.first["engine"], reader.first["workers"], price, reader.path.name)
    state.take(records)
    return state


def save_page(log: Path, out: Path | None, price: float | None) -> Path:
    """Write the page of a log; return where it is."""
    target = log.with_suffix(".html") if out is None else out
    check_file(target, "--out")
    reader = LogReader(log)
    try:
        page = saved(read(reader, price))
    finally:
        reader.close()
    places.save(target, page.encode())
    return target
