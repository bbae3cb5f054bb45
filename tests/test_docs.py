"""Every Python example in the README and the docs runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
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


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(code: str, tmp_path: Path) -> None:
    if "import torch" in code:
        pytest.importorskip("torch")
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_can_be_a_cell_of_a_notebook(code: str) -> None:
    # What ends the process ends the notebook.
    assert not re.search(r"SystemExit|\bexit\(|\bquit\(", code)


def test_the_sum_of_the_readme_says_the_same_each_time(tmp_path: Path) -> None:
    (code,) = (code for code in BLOCK.findall(PAGES[0].read_text()) if "kofn.first(4)" in code)
    script = tmp_path / "example.py"
    # Nobody is slow in its second sum, or both holders of some parts, or one of two pairs each.
    for slow in ((), (0, 1), (0, 2), (3, 4)):
        faults = "".join(f".slow({worker}, by=1e5, round=2)" for worker in slow)
        head = "from kofn.engines.local import LocalEngine\nfrom kofn.testing import Faults\n"
        engine = f"Faults(){faults}.on(LocalEngine(6))"
        script.write_text(head + code.replace('"local", workers=6', engine))
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout == "True True\nTrue\n", done.stderr


def test_there_are_examples_to_run() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
