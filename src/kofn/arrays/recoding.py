"""A matrix whose k is left to kofn: coded anew for fewer workers, when too few are left for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import TooFewWorkers
from ..model import Record
from ..rounds.lateness import NEVER

if TYPE_CHECKING:
    from .matrix import CodedMatrix


MOST = 4  # times as much as at first a worker may come to keep


def with_fewer(X: CodedMatrix, product: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Do a product. Where too few workers are left for it, code X anew for those, and begin again.

    That takes the source of X: not after an update, nor with shares from a store. Joiners are
    waited for as long as coding takes; and as long as the cluster waits, where nothing can be done.
    """
    if X._planner.wait == NEVER:
        return product()
    driver, planner = X._driver, X._planner
    while True:
        try:
            return product()
        except TooFewWorkers as error:
            recode, fewest = X._options.recode, X._fewest
            if recode is None or X.updates or X.code.k <= fewest:
                if planner.wait == NEVER:
                    raise
                planner.wait = NEVER
                continue
            if error.live < fewest:
                driver.await_enough(lambda: len(driver.roster.workers), fewest)
            live = len(driver.roster.workers)
            k = max(fewest, (live + 1) // 2)
            if k >= X.code.k:  # others have come meanwhile
                continue
            why = f"k = {k}, not {X.code.k}: {live} workers are left"
            driver.log.append(Record(driver.engine.now(), "tuned", -1, -1, -1, 0, why))
            X._begin(recode(k))
            planner = X._planner
            planner.tuned = (why,)
