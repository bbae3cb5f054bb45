"""A coded matrix of what makes its shares, for one code or for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..rounds import RoundDriver
from .matrix import CodedMatrix
from .options import Options
from .shares import Shares, threshold

Make = Callable[[Any], Shares]  # of a code


def placed(driver: RoundDriver, make: Make, code: Any, options: Options, left: bool) -> CodedMatrix:
    """The matrix whose shares `make` makes; `left`: k and the margin are left to kofn."""
    if left:
        options = replace(options, recode=lambda k: make(threshold(k, code.n)))
    return CodedMatrix(driver, make(code), options)
