"""What coding is compared with, in the same frame: the same master, engines and report.

`uncoded` and `whole_shares` are coded matrices with special numbers; `Replicated` keeps copies.
"""

from __future__ import annotations

from .. import checks
from ..rounds import RoundDriver
from .copies import HasDrive, Replicated, driver_of
from .matrix import CodedMatrix, Options
from .shares import shares_of, threshold

__all__ = ["HasDrive", "Replicated", "uncoded", "whole_shares"]


def uncoded(where: HasDrive, A: object) -> CodedMatrix:
    """Every live worker holds one block, and all must answer: an MDS code with k = n."""
    driver = driver_of(where)
    return _whole(driver, A, len(driver.engine.workers))


def whole_shares(where: HasDrive, A: object, k: int) -> CodedMatrix:
    """Non-adaptive MDS: every live worker multiplies its whole share, the first k replies count."""
    return _whole(driver_of(where), A, k)


def _whole(driver: RoundDriver, A: object, k: int) -> CodedMatrix:
    array = checks.matrix(A, check_finite=True)
    n = len(driver.engine.workers)
    code = threshold(k, n)
    options = Options(margin=n - code.k, late=None, measured_loads=False)
    return CodedMatrix(driver, shares_of(array, code), options)
