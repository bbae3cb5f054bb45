"""The MPI engine keeps the contract, by its own mpiexec and under the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("mpi4py", reason="engine 'mpi' is not installed: pip install 'kofn[mpi]'")

from kofn.engines.mpi import MPIEngine
from kofn.testing.engines import EngineChecks


class TestMPIEngine(EngineChecks):
    kills = 8

    @pytest.fixture
    def engine(self) -> Iterator[MPIEngine]:
        with MPIEngine(4) as engine:
            yield engine
