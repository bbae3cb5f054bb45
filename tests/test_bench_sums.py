"""kofn bench sums runs, and measures what it says; no timing is a pass mark."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import kofn
from kofn.cli.bench import bare
from kofn.cli.bench import sums as bench_sums

pytestmark = pytest.mark.engine


# With it there are seven ranks that spin.
@pytest.mark.parametrize("mpi", [False, pytest.param(True, marks=pytest.mark.long)])
def test_it_measures_all_that_it_prints(mpi: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not mpi:

        def none(*_: object) -> None:
            raise kofn.CannotDo("mpiexec is not there")

        monkeypatch.setattr(bare, "ranks", none)
    monkeypatch.setattr(bench_sums, "WIDE", (600, 9000, 8))
    monkeypatch.setattr(bench_sums, "SHAPES", ((60, 4),))
    monkeypatch.setattr(bench_sums, "BLOCK", 4)
    found = bench_sums.run(10, None)
    assert len(found["problems"]) == (not mpi)
    assert len(found["figures"]) == (4 if mpi else 1)
    wide = found["wide"]
    assert wide["columns"] == 9000
    assert set(wide["us_over_broadcast"]) == {"1/64", "1/16", "1/4", "1/2", "1/1"}
    text = StringIO()
    bench_sums.table(Console(file=text, width=120), found)
    assert "9000 columns" in text.getvalue()


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(kofn.BadInput, match="--data"):
        bench_sums.run(20, tmp_path / "no")
