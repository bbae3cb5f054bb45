"""Wall clocks around whole rounds, kinds interleaved in one run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster, connect
from ..delays import Delays, PerUnit
from ..engines.base import Engine
from ..engines.local import LocalEngine
from ..engines.paced import Paced
from ..engines.virtual import VirtualEngine

OnStep = Callable[[str], None]  # called after each step, with what is being done
Product = Callable[[], NDArray[Any]]

DRAIN = 2.0  # seconds at most that workers get to drop the work of the round before


def stand_ins(workers: int, delays: Delays | None, simulated: bool = True) -> Engine:
    """Workers that stand in for machines with these delays: simulated ones, or processes.

    Simulated workers compute, too, but their clock is simulated.
    """
    if simulated:
        return VirtualEngine(workers, delays=delays)
    processes = LocalEngine(workers)
    return processes if delays is None else Paced(processes, delays)


def paced(
    workers: int,
    rows: float,
    share_seconds: float,
    slow: Mapping[int, float] | None = None,
    simulated: bool = False,
    **options: Any,
) -> Cluster:
    """Workers, each a stand-in for a machine that reads `rows` rows in `share_seconds`."""
    delays = PerUnit(share_seconds / rows, slow or {})
    return connect(stand_ins(workers, delays, simulated), **options)


class Timer:
    """Times rounds and checks each result against `exact`."""

    def __init__(self, exact: NDArray[Any] | float) -> None:
        self.exact, self.worst = exact, 0.0
        self._norm = float(np.linalg.norm(exact))

    def rounds(
        self,
        kinds: Mapping[str, tuple[Cluster, Product]],
        rounds: int,
        on_step: Callable[[], None],
        warm: int = 1,
    ) -> dict[str, list[float]]:
        """Seconds of each round by kind; one round of each in turn, `warm` turns uncounted.

        What a round leaves running is cancelled with it; the next one begins when it has been
        dropped, so that no kind pays for the one before it.
        """
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(warm + rounds):
            for kind, (cluster, product) in kinds.items():
                drain(cluster)
                start = cluster.engine.now()
                y = product()
                spent = cluster.engine.now() - start
                self.worst = max(self.worst, float(np.linalg.norm(y - self.exact)) / self._norm)
                if turn >= warm:
                    seconds[kind].append(spent)
            on_step()
        return seconds


def drain(cluster: Cluster) -> None:
    """Wait until no worker is at the work of an earlier round."""
    driver = cluster._driver
    now = driver.engine.now
    end = now() + DRAIN
    driver.settle()
    while driver.roster.owing(driver.engine.workers) and now() < end:
        driver.settle(0.01)


def unvalued(part: Any, x: Any) -> float:
    """Stand for the function of a sum of which only the time is simulated."""
    raise AssertionError("values are not computed here")


def machine() -> dict[str, Any]:
    """What the results were measured on, for results.json."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
    }


def mean_of(times: NDArray[Any]) -> dict[str, float]:
    """The mean, and its standard error."""
    return {"mean": float(times.mean()), "error": float(times.std() / np.sqrt(len(times)))}


def summary(seconds: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and quartiles of each kind, in seconds."""
    return {
        kind: {
            "median": float(np.median(values)),
            "lower": float(np.quantile(values, 0.25)),
            "upper": float(np.quantile(values, 0.75)),
            "rounds": len(values),
        }
        for kind, values in seconds.items()
    }
