"""Clusters of several hosts: what happens when workers, hosts and the network between them fail.

`make test` runs one scenario an engine, `make test-all` a short set, on one cluster an engine.
`make soak` runs every scenario on a cluster of its own, in each pass beginning with others;
tests/fleet_table.py prints what they measure.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from fleet.clusters import FLEETS, opened
from fleet.scenarios import SCENARIOS
from hosts import Hosts
from support import PASS, SOAK

pytestmark = pytest.mark.hosts
Make = Callable[..., Hosts]
LETTERS = ("A", "B", "C")
PACKAGES = {"dask": "distributed", "ray": "ray", "mpi": "mpi4py"}
PAIRS = [(engine, name) for name, scenario in SCENARIOS.items() for engine in scenario.engines]
FIRST = 7 * PASS % len(PAIRS)
ONE = {"dask": "kill-host", "ray": "cut-5", "mpi": "kill-worker"}


def needs(engine: str) -> None:
    package = PACKAGES[engine]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}, which is not installed")


def play(make_hosts: Make, folder: Path, engine: str, name: str) -> None:
    needs(engine)
    hosts, scenario = make_hosts(*LETTERS, share=[folder]), SCENARIOS[name]
    with opened(engine, hosts, folder, scenario.room, **scenario.options) as fleet:
        print(scenario.play(fleet))


@pytest.mark.parametrize(("engine", "name"), ONE.items())
def test_a_fleet_goes_on_through(make_hosts: Make, tmp_path: Path, engine: str, name: str) -> None:
    play(make_hosts, tmp_path, engine, name)


@pytest.mark.long
@pytest.mark.parametrize("engine", FLEETS)
def test_a_fleet_goes_on(make_hosts: Make, tmp_path: Path, engine: str) -> None:
    needs(engine)
    with opened(engine, make_hosts(*LETTERS, share=[tmp_path]), tmp_path) as fleet:
        for name, scenario in SCENARIOS.items():
            if scenario.short and engine in scenario.engines:
                print(name, scenario.play(fleet))


@pytest.mark.long
@pytest.mark.skipif(SOAK == 1, reason="each on a cluster of its own: for `make soak`")
@pytest.mark.parametrize(
    ("engine", "name"), PAIRS[FIRST:] + PAIRS[:FIRST] if SOAK > 1 else PAIRS[:1]
)
def test_every_scenario(make_hosts: Make, tmp_path: Path, engine: str, name: str) -> None:
    play(make_hosts, tmp_path, engine, name)
