"""Altered files and command lines, a few hundred of each run of fuzz.py; `make soak` has more."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest
from support import PASS, SOAK

COUNT = 300 * SOAK


@pytest.mark.slow
def test_altered_files_and_lines_are_refused_or_read_rightly(tmp_path: Path) -> None:
    counts, failed = fuzz.run(tmp_path, fuzz.names(), PASS * COUNT, COUNT)
    assert failed == []
    assert counts.total() == COUNT
    for name in fuzz.names():  # nothing is left out, and something is refused
        assert counts[f"{name}: refused"] + counts[f"{name}: right"] > 0
    assert sum(many for what, many in counts.items() if what.endswith(": refused")) > COUNT / 4
