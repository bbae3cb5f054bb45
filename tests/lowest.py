"""The lowest versions that pyproject.toml allows, as requirements for pip; see `make lowest`.

python tests/lowest.py plot store      with these extras, and with what tests need
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

TOOLS = ("mypy", "ruff", "scipy-stubs", "torch")  # of the group `dev`; tests do without
_BOUND = re.compile(r"([\w.-]+)>=([\d.]+)")


def pinned(requirements: Iterable[str]) -> Iterator[str]:
    """The same requirements, with a lower bound as the one version."""
    for requirement in requirements:
        bound = _BOUND.fullmatch(requirement)
        if bound is None:
            raise ValueError(f"a dependency has a lower bound, as in numpy>=2.0; got {requirement}")
        yield f"{bound[1]}=={bound[2]}"


def lowest(extras: Iterable[str]) -> list[str]:
    """Requirements of the package with these extras, and of its tests."""
    with Path(__file__).parents[1].joinpath("pyproject.toml").open("rb") as file:
        whole = tomllib.load(file)
    project, group = whole["project"], whole["dependency-groups"]["dev"]
    wanted = [each for each in group if not each.startswith(TOOLS)]
    for needed in (project["dependencies"], *map(project["optional-dependencies"].get, extras)):
        wanted += needed
    return sorted(set(pinned(wanted)))


if __name__ == "__main__":
    print(*lowest(sys.argv[1:]), sep="\n")
