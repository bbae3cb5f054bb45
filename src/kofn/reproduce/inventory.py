"""Every theorem, table and figure of the papers: where its value is in results.json, or why not.

The lists are in `claims/`, one TOML file a paper, named after its command. An entry has a `key`,
the path of the value that was obtained. It is held against the paper's number (`paper`), or against
a value of our own run (`stated`), such as a formula's. Where there is no key, or the run has no
such value, there is a `reason`.

A path is made of keys of results.json with `/` between them. `^` stands for the largest of keys
that are numbers, `#` for how many there are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

COMMANDS = ("elastic", "svm", "erasurehead", "sequential", "rateless")


@dataclass(frozen=True)
class Entry:
    """One claim of a paper."""

    item: str  # as the paper calls it
    says: str
    test: str  # tests/test_….py::test_…: what holds it
    key: str = ""
    paper: float | None = None
    stated: str = ""  # the key of what a formula or another method gives
    reason: str = ""
    unit: str = ""
    kind: str = "equal"  # or "below": what was obtained is at most what is stated


@dataclass(frozen=True)
class Paper:
    """One paper, and the command that measures it."""

    command: str
    title: str
    docs: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Line:
    """An entry with what a run has of it. `obtained` is None where there is only a reason."""

    entry: Entry
    obtained: float | str | None
    against: float | None
    ratio: float | None
    reason: str


@cache
def claims(command: str) -> Paper:
    """The list of a paper by its command."""
    text = (files(__package__) / "claims" / f"{command}.toml").read_text("utf-8")
    table = tomllib.loads(text)
    entries = tuple(Entry(**one) for one in table["claim"])
    return Paper(command, table["title"], table["docs"], entries)


def find(results: Mapping[str, Any], path: str) -> Any:
    """The value at a path. Raises KeyError where there is none."""
    value: Any = results
    for step in path.split("/"):
        if step == "#" and isinstance(value, Mapping | Sequence):
            value = len(value)
        elif step == "^" and isinstance(value, Mapping):
            numbers = [key for key in value if key.isdigit()]
            if not numbers:
                raise KeyError(path)
            value = value[max(numbers, key=int)]
        elif isinstance(value, list) and step.lstrip("-").isdigit():
            try:
                value = value[int(step)]
            except IndexError:
                raise KeyError(path) from None
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
        else:
            raise KeyError(path)
    return value


def lines(paper: Paper, results: Mapping[str, Any] | None) -> list[Line]:
    """Each entry with its value; without results, with the reason that nothing was run."""
    return [_line(entry, results) for entry in paper.entries]


def _line(entry: Entry, results: Mapping[str, Any] | None) -> Line:
    if results is None:
        return Line(entry, None, entry.paper, None, "not run" if entry.key else entry.reason)
    obtained = _value(results, entry.key)
    if obtained is None:
        reason = entry.reason or f"this run has no value at {entry.key}"
        return Line(entry, None, entry.paper, None, reason)
    against = _value(results, entry.stated) if entry.stated else entry.paper
    number = against if isinstance(against, float | int) else None
    both = number is not None and not isinstance(obtained, str)
    ratio = float(obtained) / number if both and number else None
    return Line(entry, obtained, number, ratio, entry.reason)


def _value(results: Mapping[str, Any], path: str) -> float | str | None:
    """A number or a text at a path; None where there is none, or null."""
    if not path:
        return None
    try:
        value = find(results, path)
    except KeyError:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return value
