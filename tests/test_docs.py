"""Every Python example in the README and the docs runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text()), 1)
]


Done = subprocess.CompletedProcess[str]


def run(code: str, folder: Path) -> Done:
    """Run an example as a script of its own, in an empty folder."""
    script = folder / "example.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ},  # a copy: an import in another thread may set variables meanwhile
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Two examples at a time: a good part of each is the start of Python on one core."""
    with ThreadPoolExecutor(2) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    pool: ThreadPoolExecutor,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Future[Done]]:
    """The runs of all the examples that are to be run this time."""
    chosen = [
        str(item.callspec.params["code"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "runs" in item.fixturenames
    ]
    return {code: pool.submit(run, code, tmp_path_factory.mktemp("example")) for code in chosen}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(code: str, runs: dict[str, Future[Done]]) -> None:
    if "import torch" in code:
        pytest.importorskip("torch")
    done = runs[code].result()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_can_be_a_cell_of_a_notebook(code: str) -> None:
    # What ends the process ends the notebook.
    assert not re.search(r"SystemExit|\bexit\(|\bquit\(", code)


def test_the_sum_of_the_readme_says_the_same_each_time(
    pool: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (code,) = (code for code in BLOCK.findall(PAGES[0].read_text()) if "kofn.first(4)" in code)
    head = "from kofn.engines.local import LocalEngine\nfrom kofn.testing import Faults\n"
    scripts = []
    # Nobody is slow in its second sum, or both holders of some parts, or one of two pairs each.
    for slow in ((), (0, 1), (0, 2), (3, 4)):
        faults = "".join(f".slow({worker}, by=1e5, round=2)" for worker in slow)
        engine = f"Faults(){faults}.on(LocalEngine(6))"
        scripts.append(head + code.replace('"local", workers=6', engine))
    folders = [tmp_path_factory.mktemp("example") for _ in scripts]
    for done in pool.map(run, scripts, folders):
        assert done.stdout == "True True\nTrue\n", done.stderr


def test_there_are_examples_to_run() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
