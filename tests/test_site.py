"""What the documentation site makes of docstrings, and what its check of links sees."""

from __future__ import annotations

import importlib.util
import inspect
import json
from pathlib import Path
from types import ModuleType

import kofn

SITE = Path(__file__).parent.parent / "site"


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(thing: object) -> list[str]:
    lines = (inspect.getdoc(thing) or "").split("\n")
    program("conf").plain(None, "function", "", thing, None, lines)
    return lines


def test_options_in_a_docstring_become_a_list() -> None:
    found = shown(kofn.connect)
    assert "- ``workers``: how many to start, or a kofn.plan" in "\n".join(found)
    options = [line.split("``")[1] for line in found if line.startswith("- ")]
    assert set(options) <= set(inspect.signature(kofn.connect).parameters)
    assert len(options) >= 7
    assert any(":doc:`/fleet`" in line for line in found)


def test_a_docstring_without_options_stays_as_it_is() -> None:
    found = shown(kofn.Cluster.lose)
    assert found == (inspect.getdoc(kofn.Cluster.lose) or "").replace("`", "``").split("\n")


def test_what_looks_like_an_address_and_is_none_is_no_link(tmp_path: Path) -> None:
    assert r"FILE\:NAME" in "\n".join(shown(kofn.simulate))
    (tmp_path / "other.html").write_text("<p id='there'></p>")
    (tmp_path / "page.html").write_text(
        "<a href='FILE:NAME'></a><a href='other.html#there'></a><a href='none.html'></a>"
        "<a href='other.html#gone'></a><img src='https://example.org/x.png'>"
    )
    said = [line.removeprefix("page.html ") for line in program("build").faults(tmp_path)]
    assert said == [
        "loads https://example.org/x.png from another host",
        "links to FILE:NAME, which is no address",
        "links to none.html, which is not there",
        "links to other.html#gone, which has no such place",
    ]


def test_figures_on_pages_are_those_that_are_recorded() -> None:
    figures = program("figures")
    results = json.loads(figures.RECORDED.read_text())["results"]
    for path in figures.pages():
        text = path.read_text()
        assert figures.filled(text, results) == text, f"{path.name}: run `python site/figures.py`"


def test_a_mark_is_filled_with_what_is_recorded() -> None:
    row = {"value": 0.29, "unit": "ms", "limit": 0.1, "of": "pipes", "ratio": 2.9, "spread": None}
    at = {"machine": {"processor": "P", "cores": 2}, "when": "2026-01-02T00:00:00"}
    cell = {"total": 3.7, "worst_ms": 22.0, "done": 300}
    results = {
        "overhead": {"figures": {"X @ w, tiny": row}, **at},
        "peers": {"cells": {"kofn, products, quiet": cell, "Ray, products, quiet": cell}, **at},
    }
    text = (
        "takes <!-- figure overhead: X @ w, tiny -->9 s<!-- /figure -->, "
        "<!-- ratio overhead: X @ w, tiny --><!-- /ratio --> times\n"
        "<!-- bench peers products: quiet -->\nold\n<!-- /bench -->\n"
    )
    figures = program("figures")
    page = figures.filled(text, results)
    assert "-->0.29 ms<!--" in page
    assert "-->2.90<!--" in page
    assert "| **kofn** | 3.7 (22 ms) |\n| Ray | 3.7 (22 ms) |" in page
    assert "old" not in page
    assert figures.filled(page, results) == page
