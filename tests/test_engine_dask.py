"""The Dask engine keeps the contract, and what it promises beyond."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("distributed", reason="kofn[dask] is not installed")

from kofn.engines.dask import DaskEngine
from kofn.testing.engines import EngineChecks


class TestDaskEngine(EngineChecks):
    kills = 20

    @pytest.fixture
    def engine(self) -> Iterator[DaskEngine]:
        with DaskEngine(4) as engine:
            yield engine
