"""How tests hold claims of the papers (src/kofn/reproduce/claims/), and what holds none.

A claim with a figure is held by `holds` or `holds_in` in the test that it names. A claim without a
figure is held by a test with the mark `@pytest.mark.claim("elastic: Figure 1")`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kofn.reproduce.inventory import COMMANDS, Entry, Paper, claim, claims, line

Functions = Callable[[str], Mapping[str, ast.FunctionDef]]  # of a file, by name
WIDEST = 3.0  # bounds of which the upper is more than this times the lower let anything pass


def holds(name: str, obtained: float, stated: float | None = None) -> None:
    """Assert a claim's figure, from what a test has obtained and what it is held against."""
    entry = claim(name)
    assert (stated is not None) == bool(entry.stated), f"{name} is held against {entry.stated!r}"
    named = replace(entry, key="obtained", stated=entry.stated and "stated")
    _within(name, named, {"obtained": obtained, "stated": stated})


def holds_in(name: str, results: Mapping[str, Any]) -> None:
    """Assert a claim's figure, as these results of `kofn reproduce` have it."""
    _within(name, claim(name), results)


def _within(name: str, entry: Entry, results: Mapping[str, Any]) -> None:
    assert entry.bounds is not None, f"{name} has no bounds: give it `within`"
    found, (low, high) = line(entry, results), entry.bounds
    assert not isinstance(found.obtained, str | None), f"{name}: {found.reason or found.obtained}"
    figure = found.obtained if found.ratio is None else found.ratio
    assert low <= figure <= high, f"{name}: {figure:.6g} is not in [{low:g}, {high:g}]"


def citing(test: str) -> list[str]:
    """The names of the claims with a figure that name this test, which asserts them all."""
    return [
        name
        for command in COMMANDS
        for name, entry in named(claims(command))
        if entry.test == test and entry.key
    ]


def named(paper: Paper) -> Iterator[tuple[str, Entry]]:
    """The claims of a paper with their names."""
    for entry in paper.entries:
        yield f"{paper.command}: {entry.item}", entry


@cache
def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file of the repository by name."""
    tree = ast.parse((Path(__file__).parents[1] / file).read_text("utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def unheld(name: str, entry: Entry, functions: Functions = functions_of) -> str | None:
    """Why a claim is neither held by its test nor said to be measured in the full run alone."""
    if entry.test and entry.full_run:
        return "names a test and says that only the full run measures it"
    if not entry.test:
        if entry.full_run:
            return None if entry.key else "has no key for the full run to measure"
        return "names no test" if entry.key or not entry.reason else None
    file, _, test = entry.test.partition("::")
    try:
        function = functions(file)[test]
    except (OSError, KeyError):
        return f"names {entry.test}, which does not exist"
    decorators = function.decorator_list
    if not entry.key:
        marks = _texts(decorators, "pytest.mark.claim")
        return None if name in marks else f"{test} is not marked with it"
    if entry.bounds is None:
        return "has a figure and a test, and no bounds"
    low, high = entry.bounds
    if entry.kind == "equal" and not low <= high <= WIDEST * low and (low, high) != (0.0, 0.0):
        return f"its bounds, {low:g} to {high:g}, let anything pass"
    if name in _texts([function], "holds", "holds_in"):
        return None
    cited = entry.test in _texts(decorators, "citing") and any(_calls(function, "holds_in"))
    return None if cited else f"{test} does not assert its figure"


def _calls(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in names:
            yield call


def _texts(nodes: Iterable[ast.AST], *names: str) -> set[object]:
    """The texts that calls of functions with these names are given."""
    calls = (call for node in nodes for call in _calls(node, *names))
    return {word.value for call in calls for word in call.args if isinstance(word, ast.Constant)}
