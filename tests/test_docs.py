"""Every Python example in the README and the docs runs: as a script, as lines, as a cell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from codeop import compile_command
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = {page: BLOCK.findall(page.read_text()) for page in PAGES}
EXAMPLES = [
    pytest.param(page, number, id=f"{page.stem}-{number + 1}")
    for page in PAGES
    for number in range(len(BLOCKS[page]))
]
# Those of a page are run as scripts in one process. Each by itself, as pasted lines and as a cell,
# takes minutes: `make test-all`, or KOFN_WAYS=all. That all can be pasted is seen at once.
ALL = os.environ.get("KOFN_WAYS") == "all"
OTHERS = [pytest.param(way, marks=[] if ALL else pytest.mark.long) for way in ("lines", "cell")]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


class Runner:
    """Runs examples in processes of their own; see ways.py."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folder = folders.mktemp("examples")
        self._pages = dict[Path, list[list[str]]]()
        self._server = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "ways.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )

    def run(self, *runs: tuple[str, Any]) -> list[list[str]]:
        """Run pairs of way and source in one process; return what went wrong, and the output."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        task = {"folder": mkdtemp(dir=self._folder), "runs": runs}
        self._server.stdin.write(json.dumps(task) + "\n")
        self._server.stdin.flush()
        said: list[list[str]] = json.loads(self._server.stdout.readline())
        return said

    def page(self, page: Path) -> list[list[str]]:
        """Run all examples of a page, once."""
        if page not in self._pages:
            here = [code for code in BLOCKS[page] if all(map(find_spec, needed(code)))]
            said = dict(zip(here, self.run(*(("script", code) for code in here)), strict=True))
            self._pages[page] = [said.get(code, ["", ""]) for code in BLOCKS[page]]
        return self._pages[page]

    def close(self) -> None:
        self._server.communicate()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory)
    yield runner
    runner.close()


def needed(code: str) -> list[str]:
    """The packages that an example imports and that need not be installed."""
    return re.findall(
        r"^\s*(?:import|from) (torch|opentelemetry|distributed)\b", code, re.MULTILINE
    )


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_the_example_can_be_pasted(page: Path, number: int) -> None:
    """A blank line ends a block at Python's prompt, and a block needs one to end."""
    pasted: list[str] = []
    for line in [*BLOCKS[page][number].splitlines(), ""]:
        pasted.append(line)
        if compile_command("\n".join(pasted), symbol="single") is not None:
            pasted = []
    assert not "".join(pasted)


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_the_example_runs(page: Path, number: int, runner: Runner) -> None:
    for package in needed(BLOCKS[page][number]):
        pytest.importorskip(package)
    failed, _ = runner.page(page)[number]
    assert not failed


@pytest.mark.parametrize("way", OTHERS)
@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_the_example_runs_as(page: Path, number: int, way: str, runner: Runner) -> None:
    for package in needed(BLOCKS[page][number]):
        pytest.importorskip(package)
    ((failed, _),) = runner.run((way, BLOCKS[page][number]))
    assert not failed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, runner: Runner) -> None:
    cells = json.loads(path.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert sources
    ((failed, _),) = runner.run(("notebook", sources))
    assert not failed


def test_the_sum_of_the_guide_says_the_same_each_time(runner: Runner) -> None:
    page = (ROOT / "docs" / "start.md").read_text()
    (code,) = (code for code in BLOCK.findall(page) if "kofn.first(4)" in code)
    head = "from kofn.engines.local import LocalEngine\nfrom kofn.testing import Faults\n"
    scripts = []
    # Nobody is slow in its second sum, or both holders of some parts, or one of two pairs each.
    for slow in ((), (0, 1), (0, 2), (3, 4)):
        faults = "".join(f".slow({worker}, by=1e5, round=2)" for worker in slow)
        engine = f"Faults(){faults}.on(LocalEngine(6))"
        scripts.append(head + code.replace('"local", workers=6', engine))
    for said in runner.run(*(("script", script) for script in scripts)):
        assert said == ["", "True True\nTrue\n"]


def test_there_are_examples_to_run() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
