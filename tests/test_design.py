"""docs/design.md is true: it has the rules of imports, the messages, and names that exist.

Its walks through modules are not compared: `python tests/walks.py` prints them as they are now.
"""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from test_imports import ALLOWED, COMMON

from kofn.engines.protocol import KINDS

PAGE = (Path(__file__).parent.parent / "docs" / "design.md").read_text()


def test_the_page_has_the_rules_of_imports() -> None:
    (table,) = re.findall(r"^## Layers\n(.*?)^`tests", PAGE, re.M | re.S)
    first, *rows = [re.split(r" ?\| ?", line)[1:4] for line in table.splitlines()[2:] if line]
    assert set(names(first[0])) == set(COMMON)
    rules = {package: set(names(may)) for packages, _, may in rows for package in names(packages)}
    assert rules.keys() - {"chaos", "cli", "reproduce"} == ALLOWED.keys() - set(COMMON)
    assert all(rules[package] == ALLOWED[package] for package in ALLOWED.keys() - set(COMMON))


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


PACKAGES = "arrays|codes|delays|engines|learn|report|rounds|sequence|sums"
NAMED = sorted(set(re.findall(rf"`((?:{PACKAGES})\.[\w.]+)", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name: str) -> None:
    try:
        import_module(f"kofn.{name}")
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        if module.rpartition(".")[2][0].isupper():  # a method
            module, _, owner = module.rpartition(".")
            attribute = f"{owner}.{attribute}"
        attrgetter(attribute)(import_module(f"kofn.{module}"))


def test_the_page_has_every_kind_of_message() -> None:
    (table,) = re.findall(r"^## The protocol\n(.*?)(?=^#)", PAGE, re.M | re.S)
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [kind.__name__ for kind in KINDS]
