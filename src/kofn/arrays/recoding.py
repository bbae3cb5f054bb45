"""A matrix whose k is left to kofn: coded anew for fewer workers, when too few are left for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import TooFewWorkers
from ..model import Record
from ..rounds.lateness import NEVER

if TYPE_CHECKING:
    from .matrix import CodedMatrix

MOST = 4  # times as much as at first a worker may come to keep
T = TypeVar("T")


def with_fewer(X: CodedMatrix, product: Callable[[], T]) -> T:
    """Do a product. Where too few workers are left for it, code X anew for those, and begin again.

    That takes the source of X: not after an update, nor with shares from a store. Joiners are
    waited for as long as coding takes; and as long as the cluster waits, where nothing can be done.
    """
    driver, fewest = X._driver, X._fewest
    while X._placing is not None and not X.updates and X.code.k > fewest:
        X._planner.wait = X._placing
        try:
            return product()
        except TooFewWorkers as error:
            live = error.live
        finally:
            X._planner.wait = NEVER
        if live < fewest:
            driver.await_enough(lambda: len(driver.roster.workers), fewest, lambda: driver.wait)
        roster, key = driver.roster, X._holders.key
        # Who could not keep its share may keep one of another code, but does not help with this.
        live = sum((worker, key) not in roster.refused for worker in roster.workers)
        k = max(fewest, (live + 1) // 2)
        if k < X.code.k:  # else others have come meanwhile
            _recode(X, k, f"k = {k}, not {X.code.k}: {live} workers are left")
    return product()


def _recode(X: CodedMatrix, k: int, why: str) -> None:
    driver, recode = X._driver, X._options.recode
    assert recode is not None
    driver.log.append(Record(driver.engine.now(), "tuned", -1, -1, -1, 0, why))
    made = recode(k)
    X._begin(made.double() if X._doubled and made.double is not None else made)
    X._planner.tuned = (why,)
