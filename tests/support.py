"""What several test files need, fixtures aside (those are in conftest.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from waiting import command_line as command_line
from waiting import over_the_network as over_the_network
from waiting import until as until

import kofn
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
