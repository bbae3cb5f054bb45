"""Every Python example in the README and the docs runs: as a script, as lines, as a cell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from codeop import compile_command
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkdtemp
from typing import Any

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text()), 1)
]
# All in three ways takes minutes: KOFN_WAYS=all. Else every one as a script, and by turns as pasted
# lines or as a cell; that it can be pasted is seen for all of them without running it.
ALL = os.environ.get("KOFN_WAYS") == "all"
OTHERS = ("lines", "cell")
RUNS = [
    pytest.param(example.values[0], way, id=f"{example.id}-{way}")
    for number, example in enumerate(EXAMPLES)
    for way in ("script", *(OTHERS if ALL else OTHERS[number % 2 :][:1]))
]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))

Done = dict[str, str]


class Runner:
    """Runs examples in processes of their own, two at a time; see ways.py."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folder = folders.mktemp("examples")  # here: not two threads may make the first one
        self._free: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._servers = [
            subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "ways.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ},
            )
            for _ in range(2)
        ]
        for server in self._servers:
            self._free.put(server)
        self.pool = ThreadPoolExecutor(len(self._servers))

    def run(self, way: str, code: str, cells: list[str] | None = None) -> Done:
        task = {"way": way, "code": code, "cells": cells}
        server = self._free.get()
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            folder = mkdtemp(dir=self._folder)
            server.stdin.write(json.dumps(task | {"folder": folder}) + "\n")
            server.stdin.flush()
            done: Done = json.loads(server.stdout.readline())
            return done
        finally:
            self._free.put(server)

    def submit(self, *task: Any) -> Future[Done]:
        return self.pool.submit(self.run, *task)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        for server in self._servers:
            server.communicate()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, runner: Runner) -> dict[tuple[str, str], Future[Done]]:
    """The runs of all the examples that are to be run this time."""
    chosen = [
        (str(item.callspec.params["way"]), str(item.callspec.params["code"]))
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "runs" in item.fixturenames
    ]
    return {task: runner.submit(*task) for task in chosen}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_can_be_pasted(code: str) -> None:
    """A blank line ends a block at Python's prompt, and a block needs one to end."""
    pasted: list[str] = []
    for line in [*code.splitlines(), ""]:
        pasted.append(line)
        if compile_command("\n".join(pasted), symbol="single") is not None:
            pasted = []
    assert not "".join(pasted)


@pytest.mark.parametrize(("code", "way"), RUNS)
def test_the_example_runs(code: str, way: str, runs: dict[tuple[str, str], Future[Done]]) -> None:
    for module in ("torch", "opentelemetry", "distributed"):
        if f"import {module}" in code or f"from {module}" in code:
            pytest.importorskip(module)
    assert not runs[way, code].result()["failed"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, runner: Runner) -> None:
    cells = json.loads(path.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert sources
    assert not runner.run("cell", "", sources)["failed"]


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
    for done in [runner.submit("script", one) for one in scripts]:
        assert done.result() == {"failed": "", "out": "True True\nTrue\n"}


def test_there_are_examples_to_run() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
