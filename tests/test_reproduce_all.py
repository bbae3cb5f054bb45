"""Every claim of every paper: its value or its reason, its test, and the one page that shows it."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from claimed import holds, holds_in, named, unheld
from rich.console import Console
from support import unresolved

import kofn
from kofn.cli import reproduce, reproduce_all
from kofn.reproduce import index, inventory, page
from kofn.reproduce.inventory import COMMANDS, Entry, Paper, claims, find, lines
from kofn.reproduce.kept import Kept

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_claim_is_held_by_a_test_that_asserts_its_figure(command: str) -> None:
    paper = claims(command)
    items = [entry.item for entry in paper.entries]
    assert len(items) == len(set(items))
    for entry in paper.entries:
        assert entry.says
        assert entry.kind in ("equal", "below", "above")
        against = (entry.paper is not None, bool(entry.stated), entry.against is not None)
        assert sum(against) <= 1, entry.item
        assert bool(entry.source) == (entry.against is not None), entry.item
    problems = {name: unheld(name, entry) for name, entry in named(paper)}
    assert not {name: why for name, why in problems.items() if why}
    file, _, anchor = paper.docs.partition("#")
    headings = [
        line.lstrip("# ").lower().replace(" ", "-")
        for line in (ROOT / file).read_text("utf-8").splitlines()
        if line.startswith("#")
    ]
    assert not anchor or anchor in [h.replace(":", "").replace(",", "") for h in headings]


TESTS = """
def test_of_keys(): assert results["a"]
def test_of_one(): holds("some: figure", 2.0)
@pytest.mark.parametrize("claim", citing("t.py::test_of_all"))
def test_of_all(claim, results): holds_in(claim, results)
@pytest.mark.claim("some: argument")
def test_marked(): assert all(conforming)
"""


@pytest.mark.parametrize(
    ("test", "more", "why"),
    [
        ("t.py::test_of_one", {}, None),
        ("t.py::test_of_all", {}, None),
        ("t.py::test_of_keys", {}, "test_of_keys does not assert its figure"),
        ("t.py::test_marked", {}, "test_marked does not assert its figure"),
        ("t.py::test_none", {}, "names t.py::test_none, which does not exist"),
        ("t.py::test_of_one", {"item": "other"}, "test_of_one does not assert its figure"),
        ("t.py::test_of_one", {"within": None}, "has a figure and a test, and no bounds"),
        ("t.py::test_of_one", {"within": (0.1, 9.0)}, "its bounds, 0.1 to 9, let anything pass"),
        ("t.py::test_of_one", {"within": None, "kind": "below"}, None),
        ("t.py::test_of_one", {"full_run": "long"}, "names a test and says that only the full run"),
        ("", {}, "names no test"),
        ("", {"full_run": "long"}, None),
        ("", {"full_run": "long", "key": ""}, "has no key for the full run to measure"),
        ("", {"key": "", "reason": "a drawing"}, None),
        ("t.py::test_marked", {"key": "", "item": "argument"}, None),
        ("t.py::test_marked", {"key": ""}, "test_marked is not marked with it"),
    ],
)
def test_a_claim_that_nothing_holds_is_found(
    test: str, more: dict[str, Any], why: str | None
) -> None:
    given = {"item": "figure", "says": "s", "key": "a", "within": (0.9, 1.1), "test": test} | more
    found = {node.name: node for node in ast.parse(TESTS).body if isinstance(node, ast.FunctionDef)}
    problem = unheld(f"some: {given['item']}", Entry(**given), lambda file: found)
    assert bool(problem) == bool(why)
    assert (problem or "").startswith(why or "")


def test_a_figure_beyond_its_bounds_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (
        Entry("number", "", key="a", paper=2.0, within=(0.9, 1.1)),
        Entry("bound", "", key="a", stated="b", kind="below"),
        Entry("elsewhere", "", key="a", against=0, source="Dau et al.", within=(0.0, 0.0)),
    )
    monkeypatch.setattr(inventory, "claims", lambda name: Paper(name, "Some", "docs", entries))
    holds("some: number", 2.1)
    holds_in("some: number", {"a": 1.9})
    holds("some: bound", 1.0, 1.0)
    holds("some: elsewhere", 0)
    with pytest.raises(AssertionError, match=r"some: number: 1.2 is not in \[0.9, 1.1\]"):
        holds("some: number", 2.4)
    with pytest.raises(AssertionError, match=r"some: number: this run has no value at a"):
        holds_in("some: number", {"b": 1.0})
    with pytest.raises(AssertionError, match=r"some: bound: 1.01 is not in \[0, 1\]"):
        holds_in("some: bound", {"a": 1.01, "b": 1.0})
    with pytest.raises(AssertionError, match="is held against 'b'"):
        holds("some: bound", 1.0)
    with pytest.raises(AssertionError, match=r"some: elsewhere: 1 is not in \[0, 0\]"):
        holds("some: elsewhere", 1)


def test_paths_into_results() -> None:
    results = {"a": {"9": 1, "10": 2, "x": 3}, "b": [{"c": 4.0}, {"c": 5.0}], "n": None}
    assert find(results, "a/^") == 2
    assert find(results, "b/-1/c") == 5.0
    assert find(results, "b/#") == 2
    for path in ("a/y", "b/7/c", "b/c", "b/-1/c/d"):
        with pytest.raises(KeyError):
            find(results, path)


def test_a_claim_has_a_value_and_a_ratio_or_a_reason() -> None:
    entries = (
        Entry("number", "", key="a", paper=2.0),
        Entry("formula", "", key="a", stated="b"),
        Entry("elsewhere", "", key="a", against=2.0, source="Dau et al."),
        Entry("reason", "", key="missing", reason="because"),
        Entry("neither", "", key="missing"),
        Entry("null", "", key="none"),
    )
    paper = Paper("some", "Some", "docs", entries)
    found = lines(paper, {"a": 1.0, "b": 4.0, "none": None})
    assert [line.ratio for line in found] == [0.5, 0.25, 0.5, None, None, None]
    assert found[3].reason == "because"
    assert unresolved(paper, {"a": 1.0, "b": 4.0}) == ["neither: missing", "null: none"]
    not_run = [line.reason for line in lines(paper, None)]
    assert not_run == ["not run"] * 6  # whatever the reason of a run without it would be


def small(command: str) -> dict[str, Any]:
    """Results that have a number at every path of a paper, and nothing else."""
    made: dict[str, Any] = {}
    for entry in claims(command).entries:
        for path in filter(None, (entry.key, entry.stated)):
            at: Any = made
            *before, last = path.replace("/^", "/20").removesuffix("/#").split("/")
            for step in before:
                at = at.setdefault(step, {})
            at[last] = 1.0 if not path.endswith("#") else [1, 2]
    return made


class Fake:
    """A paper that is measured at once, or lacks something."""

    FULL = QUICK = None


def test_all_papers_one_page_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(name: str, out: Path, data: Path, quick: bool, **more: Any) -> dict[str, Any]:
        ran.append(name)
        if name == "svm":
            raise kofn.BadInput("--data must hold credit_default.")
        if name == "rateless" and ran.count(name) == 1:
            raise KeyboardInterrupt
        out.mkdir(parents=True, exist_ok=True)
        (out / "a.png").write_bytes(b"picture")
        found = {"paper": name, "quick": "quick" if quick else None, **small(name)}
        (out / "results.json").write_text(json.dumps(found))
        return found

    monkeypatch.setattr(reproduce, "run", run)
    monkeypatch.setattr(reproduce, "PAPERS", dict.fromkeys(COMMANDS, (Fake, Fake)))
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        reproduce_all.run(out, tmp_path, True, quiet=True)
    page = (out / "index.html").read_text("utf-8")
    assert "Not run yet." in page  # rateless
    found = reproduce_all.run(out, tmp_path, True, quiet=True)
    # What was measured is not measured again; what failed is tried once more.
    assert [ran.count(name) for name in COMMANDS] == [1, 2, 1, 1, 2]
    page = (out / "index.html").read_text("utf-8")
    assert "Not run yet." not in page
    assert "Not measured: --data must hold credit_default." in page
    assert "Quick run." in page
    for name in COMMANDS:
        for entry in claims(name).entries:
            assert entry.test.partition("::")[2] in page
    assert page.count("data:image/png") == 4
    assert found["papers"]["svm"]["problem"]
    with_values = found["papers"]["erasurehead"]["with_a_value"]
    assert with_values == sum(bool(entry.key) for entry in claims("erasurehead").entries)
    text = StringIO()
    reproduce_all.table(Console(file=text, width=120), found)
    assert "index.html" in text.getvalue()
    json.dumps(found)
    # A full run does not take quick results for its own.
    reproduce_all.run(out, tmp_path, False, quiet=True)
    assert [ran.count(name) for name in COMMANDS] == [2, 3, 2, 2, 3]


@dataclass(frozen=True)
class Sizes:
    """Of a paper with two parts."""

    size: int = 1
    progress_steps: int = 2


class TwoParts:
    """A paper that is measured in two parts, and its page."""

    FULL, TITLE = Sizes(), "Two parts"
    ran: ClassVar[list[str]] = []

    @classmethod
    def measure(cls, data: Path, settings: Sizes, on_step: Any, kept: Kept) -> dict[str, Any]:
        def part(name: str) -> str:
            cls.ran.append(name)
            if cls.ran == ["one", "two"]:
                raise KeyboardInterrupt
            return name.upper()

        return {name: kept(name, partial(part, name)) for name in ("one", "two")}


def test_what_a_run_has_is_kept_until_all_of_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is ended, or finds a full disk in the end, goes on with what it has."""
    ran, out = TwoParts.ran, tmp_path / "out"
    monkeypatch.setattr(reproduce, "PAPERS", {"svm": (TwoParts, TwoParts)})
    run = partial(reproduce.run, "svm", out, tmp_path, quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run()

    def full(*_: Any) -> None:
        raise kofn.CannotWrite("index.html", "it cannot be written: No space left on device.")

    monkeypatch.setattr(page, "publish", full)
    with pytest.raises(kofn.CannotWrite):
        run()
    # Without its pictures a paper is not done: `reproduce all` takes it up again.
    assert reproduce_all.kept(out, False) is None
    before = json.loads((out / "partial.json").read_text())["seconds"]
    monkeypatch.setattr(page, "publish", lambda *_: None)
    found = run()
    assert ran == ["one", "two", "two"]
    assert (found["one"], found["two"]) == ("ONE", "TWO")
    assert found["took_seconds"] >= before > 0
    assert reproduce_all.kept(out, False) == found
    assert [path.name for path in out.iterdir()] == ["results.json"]
    # Other settings: nothing of it is used.
    run(settings=Sizes(size=2))
    assert ran[3:] == ["one", "two"]


def test_results_that_are_cut_are_measured_again(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"quick": null, "a"')
    assert reproduce_all.kept(tmp_path, False) is None
    (tmp_path / "results.json").write_text('{"quick": null}')
    assert reproduce_all.kept(tmp_path, False) == {"quick": None}
    assert reproduce_all.kept(tmp_path, True) is None


def test_numbers_as_the_page_has_them() -> None:
    assert index.shown(241_915) == "241,915"
    assert index.shown(0.123456, "s") == "0.1235 s"
    assert index.shown(122_086.1) == "122,086"
    assert index.shown(1.3e-14) == "1.3e-14"
    assert index.shown("text") == "text"
    assert inventory.claims("svm").command == "svm"
