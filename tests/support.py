"""What several test files need, fixtures aside (those are in conftest.py)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from waiting import command_line as command_line
from waiting import over_the_network as over_the_network
from waiting import until as until

import kofn
from kofn.engines.base import Engine, Wrapped
from kofn.model import Event, Lost
from kofn.reproduce.inventory import Paper, lines
from kofn.rounds import RoundDriver

DataFolder = Callable[[str], Path]


class Done(NamedTuple):
    """What a command has said, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]

# Engines of a test that starts its own.
LOCAL = pytest.param("local", marks=pytest.mark.engine)
ENGINES = (LOCAL, "virtual")

# The one switch of `make soak`: how many times as many random scripts, examples and kills, and the
# number of the pass, which makes its seeds others than those of the pass before.
SOAK = int(os.environ.get("KOFN_SOAK", "1"))
PASS = int(os.environ.get("KOFN_PASS", "0"))


def examples(count: int) -> settings:
    """So many examples of a property, in `make soak` more."""
    return settings(max_examples=count * SOAK, deadline=None)


def seeds(count: int) -> range:
    """So many seeds, in `make soak` more, and in each pass others."""
    return range(PASS * count * SOAK, (PASS + 1) * count * SOAK)


class Gently:
    """While it is entered, Ctrl-C comes out where it is called: between two examples.

    A soak ends its steps by Ctrl-C. Within an example, of a command line for one, it would be taken
    for a failure. The second Ctrl-C comes out at once.
    """

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> Gently:
        self._asked, self._before = False, signal.signal(signal.SIGINT, self._ask)
        return self

    def __call__(self) -> None:
        if self._asked:
            raise KeyboardInterrupt

    def __exit__(self, kind: object, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self()

    def _ask(self, *_: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


gently = Gently()


def held_back(
    f: Callable[[Any], Any], folder: Path, times: int = 1, each: int = 20
) -> Callable[[Any], Any]:
    """Return `f` for X.iterate; after each 20 calls it waits for one more file in the folder.

    The files are named 0, 1, ...; so many are waited for. The master is told of rounds later than
    workers do them: without this, all may be done before what is to happen in the middle of them.
    """
    calls = [0]
    paths = [str(folder / str(i)) for i in range(times)]

    def waits(y: Any) -> Any:  # goes to the workers by value
        calls[0] += 1
        for path in paths[: (calls[0] - 1) // each]:
            while not os.path.exists(path):
                time.sleep(0.005)
        return f(y)

    return waits


def spread(cluster: kofn.Cluster, X: kofn.CodedMatrix) -> None:
    """Wait until every worker keeps its share: one that is late with it takes no part yet."""
    until(lambda: len(X.shares) == len(cluster.workers), "the shares")


def rested(cluster: kofn.Cluster, *supplied: int) -> None:
    """Wait until nobody owes an answer, and these workers keep something.

    Others may be left out of a round, and then no fault of a script strikes them in it.
    """
    driver = driver_of(cluster)

    def nobody_owes() -> bool:
        driver.settle()
        kept = driver.roster.kept  # without those that are lost
        supplies = all(kept[worker] for worker in supplied if worker in kept)
        return supplies and not driver.roster.owing(driver.engine.workers)

    until(nobody_owes, "the late")


class Noting(Wrapped):
    """An engine that makes a file for each worker whose loss the master is told of: 0, 1, ..."""

    name = "noting"

    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine)
        self._folder, self._losses = folder, 0

    def events(self, timeout: float) -> list[Event]:
        events = super().events(timeout)
        for event in events:
            if type(event) is Lost:
                (self._folder / str(self._losses)).touch()
                self._losses += 1
        return events


def driver_of(cluster: kofn.Cluster) -> RoundDriver:
    """What a cluster's rounds go through. A Cluster has no public call that lets time pass between
    rounds, that waits for one event, or that says who owes what; only tests need them."""
    return cluster._driver


def unresolved(paper: Paper, results: dict[str, Any]) -> list[str]:
    """Claims that have neither a value in these results nor a reason of their own."""
    return [
        f"{line.entry.item}: {line.entry.key or 'no key'}"
        for line in lines(paper, results)
        if line.obtained is None and not line.entry.reason
    ]
