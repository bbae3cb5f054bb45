"""Every theorem, table and figure of the papers: where its value is in results.json, or why not.

The lists are in `claims/`, one TOML file a paper, named after its command. An entry has a `key`,
the path of the value that was obtained. It is held against one number: the paper's (`paper`),
another value of the same run (`stated`), such as a formula's, or a number that is in no paper
(`against`), whose `source` says where it comes from. An entry without a key, or whose key this run
lacks, has a `reason`.

An entry says how it is held: by a `test`, which asserts the figure at a small size, or by the full
run alone, where `full_run` says why a small run cannot show it. The test asserts that the figure is
within the entry's bounds (`Entry.bounds`); tests/test_reproduce_all.py fails where it does not.

A path is made of keys of results.json with `/` between them. `^` stands for the largest of keys
that are numbers, `#` for how many there are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

COMMANDS = ("elastic", "svm", "erasurehead", "sequential", "rateless")


@dataclass(frozen=True)
class Entry:
    """One claim of a paper."""

    item: str  # as the paper calls it
    says: str
    test: str = ""  # tests/test_….py::test_…: what asserts it
    full_run: str = ""  # why no test asserts it: the full run alone measures it
    key: str = ""
    paper: float | None = None
    stated: str = ""  # the key of what a formula or another method gives
    against: float | None = None  # a number that is in no paper, and
    source: str = ""  # where it comes from
    within: tuple[float, float] | None = None  # what a test allows of the figure; see `bounds`
    reason: str = ""
    unit: str = ""
    kind: str = "equal"  # or "below", "above": what is obtained is at most, or at least, the other

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the largest figure that a test lets pass.

        The figure is the ratio of what was obtained to what it is held against, or what was
        obtained, if there is nothing other than 0 to hold it against.
        """
        usual = {"below": (0.0, 1.0), "above": (1.0, inf)}
        return self.within or usual.get(self.kind)


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
    entries = tuple(_entry(row) for row in table["claim"])
    return Paper(command, table["title"], table["docs"], entries)


def _entry(row: dict[str, Any]) -> Entry:
    within = row.pop("within", None)
    return Entry(**row, within=None if within is None else (float(within[0]), float(within[1])))


def claim(name: str) -> Entry:
    """The claim of this name, such as "elastic: Theorem 2.1"."""
    command, _, item = name.partition(": ")
    for entry in claims(command).entries:
        if entry.item == item:
            return entry
    raise KeyError(name)


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
    return [line(entry, results) for entry in paper.entries]


def line(entry: Entry, results: Mapping[str, Any] | None) -> Line:
    """An entry with its value in these results."""
    fixed = entry.against if entry.paper is None else entry.paper
    if results is None:
        return Line(entry, None, fixed, None, "not run" if entry.key else entry.reason)
    obtained = _value(results, entry.key)
    if obtained is None:
        reason = entry.reason or f"this run has no value at {entry.key}"
        return Line(entry, None, fixed, None, reason)
    against = _value(results, entry.stated) if entry.stated else fixed
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
