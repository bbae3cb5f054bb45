"""EngineChecks under mpiexec: `mpiexec --with-ft ulfm -n 5 python checks.py [pytest options]`.

The first engine has the ranks of mpiexec as its workers; once these are gone (some checks end
workers), the next ones spawn theirs. With `far` as the first argument nobody is let in at the
master's socket, so all workers are spoken to by MPI, as those of another machine are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from turns import Turn, Turns

from kofn.engines.mpi import MPIEngine
from kofn.testing.engines import EngineChecks, descendants, held_names


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    turns = Turns(lambda: MPIEngine(4))
    yield turns
    turns.close()
    assert descendants() == set()
    assert held_names() == set()  # nor of the memory that MPI's ranks share


class TestUnderMPIExec(EngineChecks):
    # As in tests/support.py, which imports more than pytest wants imported before it begins.
    kills = 4 * int(os.environ.get("KOFN_SOAK", "1"))
    seed = 20 + int(os.environ.get("KOFN_PASS", "0"))

    @pytest.fixture
    def engine(self, turns: Turns) -> Iterator[Turn]:
        with turns.turn() as turn:
            yield turn


if __name__ == "__main__":
    from kofn.engines._mpi_setup import start

    if start().COMM_WORLD.Get_rank():
        MPIEngine()
    if sys.argv[1:2] == ["far"]:
        from apart import refuse_all

        refuse_all()
        del sys.argv[1]
    options = ["-q", "-s", "-W", "error", "-p", "no:cacheprovider", "--color=no"]
    sys.exit(pytest.main([__file__, *options, *sys.argv[1:]]))
